"""Run every code block of the guides, as a reader would type it, against real files and a real server.

A block of Python or of the shell that is not run stands in `tests.support.guides.NOT_RUN`, with the reason.
"""

from __future__ import annotations

import ast
import importlib
import shutil
from pathlib import Path

import pytest

from tests.support.guides import (
    NOT_RUN,
    RUN_ELSEWHERE,
    first_line,
    guide_name,
    guide_path,
    is_run,
    run_guide,
    runnable_blocks,
)
from website.command_lines import GUIDES, check_call, code_blocks, guide_commands, inline_calls, stillhash_calls

QUICK = [
    "README.md",
    "active-learning.md",
    "clicks.md",
    "codes.md",
    "concepts.md",
    "duplicates.md",
    "faiss.md",
    "forgetting.md",
    "index.md",
    "search.md",
    "text.md",
]
SLOW = ["collection.md", "http.md", "images.md", "integrations/sklearn.md", "tutorial.md"]
LANGUAGES = {"python", "pycon", "sh", "text", "ini", "nginx", "caddy", "yaml", "json", "toml", "mermaid"}


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_guide_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "faiss.md":
        pytest.importorskip("faiss", reason="faiss is not installed")
    if name in ("tutorial.md", "http.md") and shutil.which("curl") is None:
        pytest.skip("curl is not installed, and the guides use it")
    assert run_guide(name, monkeypatch, tmp_path) >= 1


@pytest.mark.parametrize("guide", GUIDES, ids=guide_name)
def test_every_block_is_run_or_listed(guide: Path) -> None:
    name = guide_name(guide)
    assert {kind for kind, _ in code_blocks(guide)} <= LANGUAGES
    if name not in QUICK + SLOW and name not in RUN_ELSEWHERE:
        assert [first_line(block) for block in runnable_blocks(guide) if is_run(name, block)] == []


def test_listed_blocks_exist() -> None:
    for name, reasons in NOT_RUN.items():
        assert set(reasons) <= {first_line(block) for block in runnable_blocks(guide_path(name))}, name
        assert all(reasons.values())


@pytest.mark.parametrize("guide", GUIDES, ids=guide_name)
def test_command_lines_parse(guide: Path) -> None:
    """Commands and options of all calls of `stillhash` exist, also of those that are not run."""
    calls = [(line, words, True) for line in guide_commands(guide) for words in stillhash_calls(line)]
    calls += [(line, words, False) for line in inline_calls(guide) for words in stillhash_calls(line)]
    checked = [(line, check_call(words, complete)) for line, words, complete in calls]
    assert [each for each in checked if each[1]] == []


def test_wrong_command_lines_are_noticed() -> None:
    assert check_call(["search", "films", "--vectr", "query.npy"]) == "no such option: --vectr"
    assert check_call(["serch", "films"]).startswith("no such command")
    assert check_call(["keys", "ad", "keys.jsonl"]).startswith("no such command")
    assert check_call(["search", "films", "--vector"]) == "no value for --vector"
    assert check_call(["rollback", "films", "3", "4"]) == "expected 2 to 2 arguments, got 3"
    assert check_call(["search", "films", "--vector", "query.npy", "-k", "5", "--json"]) == ""
    line = "runuser -u stillhash -- /opt/bin/stillhash verify a && stillhash stats b | head  # stillhash no"
    assert list(stillhash_calls(line)) == [["verify", "a"], ["stats", "b"]]


@pytest.mark.medium
@pytest.mark.parametrize("name", NOT_RUN)
def test_python_that_is_not_run_imports_what_exists(name: str) -> None:
    for block in runnable_blocks(guide_path(name)):
        if block.kind == "python" and not is_run(name, block):
            for node in ast.walk(ast.parse(block.text)):
                if isinstance(node, ast.ImportFrom) and node.module:
                    pytest.importorskip("ray", reason="ray is not installed")
                    module = importlib.import_module(node.module)
                    assert all(hasattr(module, each.name) for each in node.names)
