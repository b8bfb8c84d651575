"""Check docs/architecture.md: every function named in its walks exists, a caller may import what it calls, and the
files that it says a call passes are those that a profiler sees."""

from __future__ import annotations

import re
import tomllib
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import stillhash
from stillhash.numeric import kernels
from tests.support.called_files import called_files

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


def documented_files() -> dict[str, str]:
    """Return what the section about files says of each call."""
    section = (ROOT / "docs" / "architecture.md").read_text().split("## The files that a call passes", 1)[1]
    return dict(re.findall(r"^- \*\*(.*?)\*\*: (.*)$", section, re.M))


def described(files: set[str]) -> str:
    """Return files as the section lists them: how many, and the modules of each package."""
    packages: dict[str, list[str]] = {}
    for file in sorted(files):
        package, _, module = file.removesuffix(".py").rpartition("/")
        packages.setdefault(package or "stillhash", []).append(module)
    parts = [f"`{package}` {', '.join(modules)}" for package, modules in packages.items()]
    return f"{len(files)} files. {'; '.join(parts)}."


@pytest.fixture(scope="module")
def seen_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Make each call once in a collection with default settings, and return the files that it passed."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6000, 32)).astype(np.float32)
    labels, metadata = [[n % 10] for n in range(6000)], [{"price": n % 100} for n in range(6000)]
    with stillhash.open(tmp_path_factory.mktemp("walks") / "c", 32) as collection:
        collection.add(range(4000), X[:4000], labels[:4000], metadata[:4000])
        collection.search(X[4000], 10, where={"price": {"$gt": 50}})  # what is cached is cached
        collection.search(X[4000], 10)
        calls = {
            "a search": lambda: collection.search(X[4001], 10),
            "a filtered search": lambda: collection.search(X[4002], 10, where={"price": {"$gt": 20}}),
            "a vote": lambda: collection.feedback(X[4003], 5, "up"),
            "`add` of 1,000 labelled rows": lambda: collection.add(
                range(4000, 5000), X[4000:5000], labels[4000:5000], metadata[4000:5000]
            ),
            "`relabel` of 1,000 items": lambda: collection.relabel(range(1000), labels[1:1001]),
            "`forget` of 10 items": lambda: collection.forget(range(10)),
        }
        return {name: described(called_files(call)) for name, call in calls.items()}


@pytest.mark.skipif(kernels.lanes() == "numpy", reason="the NumPy reference passes other files")
def test_the_files_of_calls_are_complete(seen_files: dict[str, str]) -> None:
    assert documented_files() == seen_files
