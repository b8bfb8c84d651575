"""Check docs/architecture.md: every function named in its walks exists, and a caller may import what it calls."""

from __future__ import annotations

import re
import tomllib
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
CONTRACT = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
LAYERS = [[package.strip() for package in layer.split("|")] for layer in CONTRACT["layers"]]  # the top one first


class Step(NamedTuple):
    depth: int  # 0 for the start of a walk, one more for each call below it
    name: str  # stillhash.package.module.function


def walks() -> dict[str, list[Step]]:
    """Return the steps of each walk: the items of the nested list under a heading that starts with "A "."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    sections = re.findall(r"^## (A .*?)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return {
        title: [
            Step(len(indent) // 2, name) for indent, name in re.findall(r"^( *)- `(stillhash\.[\w.]+)`", body, re.M)
        ]
        for title, body in sections
    }


def resolve(name: str) -> object:
    """Import the module and return the function, method or class in it."""
    package, parts = name.split(".")[0], name.split(".")[1:]
    module = import_module(package)
    while parts:
        try:
            module = import_module(f"{module.__name__}.{parts[0]}")
        except ModuleNotFoundError:
            break
        parts = parts[1:]
    return reduce(getattr, parts, module)


def layer(name: str) -> int:
    return next(number for number, packages in enumerate(LAYERS) if name.split(".")[1] in packages)


def test_there_are_six_walks() -> None:
    assert len(walks()) == 6
    assert all(len(steps) >= 6 and steps[0].depth == 0 for steps in walks().values())


@pytest.mark.parametrize("title", walks())
def test_every_step_exists(title: str) -> None:
    for step in walks()[title]:
        assert callable(resolve(step.name)), step.name


@pytest.mark.parametrize("title", walks())
def test_callers_may_import_what_they_call(title: str) -> None:
    callers: list[str] = []  # of each depth, the latest step
    for step in walks()[title]:
        assert step.depth <= len(callers), f"{step.name} is indented below no caller"
        callers[step.depth :] = [step.name]
        if step.depth:
            caller, called = callers[step.depth - 1].split(".")[1], step.name.split(".")[1]
            assert caller == called or layer(callers[step.depth - 1]) < layer(step.name), f"{caller} calls {step.name}"
