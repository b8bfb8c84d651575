"""With --json every command prints one JSON document to stdout, and errors are a JSON object on stderr."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stillhash.cli.output import dump_json
from tests.cli.commands import ROOT, leaves
from tests.cli.conftest import RunMain
from tests.support.toys import toy

X, Y = toy(330, 8, 2)
VECTOR = json.dumps(X[0].tolist(), separators=(",", ":"))
CALLS = f"""
info
create films --dim 8 --init-rows 300
add films rows.jsonl
get films 0 nosuch
count films
ids films --limit 3
stats films
search films --vector {VECTOR} --explain
range-search films --vector {VECTOR} --distance 9
lexical films --field text
search films --text red --lexical
search films --vector {VECTOR} --words red --hybrid
duplicates films
facets films --field n
suggest films ca
learn films labelled.jsonl
feedback films 1 --vector {VECTOR} --up
votes films
doubtful films
suggest-labels films --count 3 --skip 1 --seed 0
flush films
versions films
probe films
compare films 0
tag films 2 good
rollback films 1
update-metadata films 1 --set '{{"n": 1}}'
relabel films 1 sea
add-labels films 'sky|cat' 1 2
remove-labels films sky 1
delete films 1 nosuch
seal films
compact films
build-rescoring films
snapshot films copy
audit films
verify films
repair films
forget films 2
export films films.jsonl
import rows.jsonl third
fit third
keys add keys.json --name ann --role read
keys list keys.json
keys remove keys.json ann
experiment list
"""  # one call of each command, in an order that works, in a folder with rows.jsonl and labelled.jsonl
WORDS = [shlex.split(line) for line in CALLS.strip().splitlines()]
# These take long, need images or a cluster, or run until they are stopped; other tests run them.
ELSEWHERE = ("align", "cluster", "demo", "experiment", "index", "mcp", "serve")


def row(number: int, **changes: Any) -> str:
    labels = ["cat"] if Y[number][0] > 0 else ["dog"]
    return json.dumps({"id": number, "features": X[number].tolist(), "labels": labels, **changes}) + "\n"


def test_every_command_has_json() -> None:
    for place, command in leaves():
        options = [name for parameter in command.params for name in parameter.opts]
        assert "--json" in options, " ".join(place)
        assert any(tuple(words[: len(place)]) == place for words in WORDS) or place[0] in ELSEWHERE, place


@pytest.mark.slow
def test_every_result_is_one_json_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(map(row, range(320))))
    (tmp_path / "labelled.jsonl").write_text("".join(map(row, range(320, 330))))
    for words in WORDS:
        code = ROOT.main([*words, "--json"], prog_name="stillhash", standalone_mode=False)
        out, err = capfd.readouterr()
        assert not code, (words, err)
        assert isinstance(json.loads(out), dict) and out.count("\n") == 1, words
        assert not err or words[0] == "get", (words, err)


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["search", "nosuch", "--like", "1"], 2, "InvalidInput"),
        (["search", "--nosuch"], 2, "UsageError"),
        (["nosuch"], 2, "UsageError"),
        (["serve", "--port", "many"], 2, "UsageError"),
        (["keys", "remove"], 2, "UsageError"),
        (["cluster", "down"], 8, "NotFound"),
        (["cluster", "status", "--url", "http://127.0.0.1:1"], 11, "Unreachable"),
    ],
)
def test_errors_are_json_objects_on_stderr(
    words: list[str], code: int, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_main: RunMain
) -> None:
    monkeypatch.chdir(tmp_path)
    ended, out, err = run_main(*words, "--json")
    assert ended == code and not out
    problem = json.loads(err)
    assert set(problem) == {"error", "message"} and problem["error"] == error and problem["message"]
    ended, out, err = run_main(*words)
    assert ended == code and not out and err and not err.startswith("{")


def test_json_has_no_nan() -> None:
    result = {"a": [1.5, math.nan], "b": {"c": -math.inf}, "d": "NaN", "e": (1, None, True)}
    text = dump_json(result)
    assert json.loads(text) == {"a": [1.5, None], "b": {"c": None}, "d": "NaN", "e": [1, None, True]}
    assert dump_json({"a": 1.5}) == '{"a": 1.5}'


@pytest.mark.medium
def test_progress_is_only_on_a_terminal(tmp_path: Path, run_main: RunMain) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(map(row, range(320))))
    code, _, err = run_main("import", tmp_path / "rows.jsonl", tmp_path / "films", "--json")
    assert code == 0 and not err
    command = f"{sys.executable} -m stillhash import {tmp_path / 'rows.jsonl'} {tmp_path / 'more'} --json"
    with_terminal = ["script", "-qec", command, "/dev/null"]
    try:
        out = subprocess.run(with_terminal, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    except FileNotFoundError:
        pytest.skip("script is not installed, and it gives the command a terminal")
    assert "rows" in out and '"added": 320' in out
