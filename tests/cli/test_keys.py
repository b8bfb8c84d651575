"""`stillhash keys`: what each command prints, and what it does to the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from stillhash.cli.main import app
from stillhash.errors import Conflict, InvalidInput, NotFound
from stillhash.server import Keys, read_keys
from tests.cli.test_main import stillhash


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, ["keys", *map(str, args)])


def test_keys_are_added_listed_and_removed(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    outcome = run("add", file, "--name", "shop", "--role", "feedback", "--collections", "films, toys")
    assert outcome.exit_code == 0, outcome.output
    key = outcome.stdout.strip()  # and nothing else, so that a script can take it
    stored = Keys(file=file).find(key)
    assert (stored.name, stored.role, stored.collections) == ("shop", "feedback", {"films", "toys"})
    assert "hash" in outcome.stderr and key not in outcome.stderr
    added = json.loads(run("add", file, "--name", "ann", "--role", "admin", "--json").stdout)
    assert Keys(file=file).find(added.pop("key")).name == "ann"
    assert added == {"name": "ann", "role": "admin", "collections": None}
    listed = json.loads(run("list", file, "--json").stdout)["keys"]
    assert [(one["name"], one["role"], one["collections"]) for one in listed] == [
        ("shop", "feedback", ["films", "toys"]),
        ("ann", "admin", None),
    ]
    text = run("list", file).stdout
    assert all(word in text for word in ("shop", "feedback", "films, toys", "ann", "admin", "all", stored.id))
    assert key not in text and stored.digest.hex() not in text
    assert run("remove", file, "shop").exit_code == 0
    assert [one.name for one in read_keys(file)] == ["ann"]
    assert json.loads(run("remove", file, "ann", "--json").stdout) == {"removed": "ann"}
    assert "no keys" in run("list", file).stdout


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (("add", "FILE", "--name", "ann", "--role", "root"), InvalidInput),
        (("add", "FILE", "--name", "a b", "--role", "read"), InvalidInput),
        (("add", "FILE", "--name", "ben", "--role", "read", "--collections", ""), InvalidInput),
        (("add", "FILE", "--name", "ann", "--role", "read"), Conflict),
        (("remove", "FILE", "ben"), NotFound),
        (("list", "none"), InvalidInput),
        (("remove", "none", "ann"), InvalidInput),
    ],
)
def test_invalid_commands_change_nothing(tmp_path: Path, command: tuple[str, ...], error: type[Exception]) -> None:
    file = tmp_path / "keys"
    run("add", file, "--name", "ann", "--role", "read")
    before = file.read_text()
    words = {"FILE": str(file), "none": str(tmp_path / "none")}
    outcome = run(*(words.get(word, word) for word in command))
    assert isinstance(outcome.exception, error) and file.read_text() == before
    assert sorted(tmp_path.iterdir()) == [file]


@pytest.mark.medium
def test_plain_keys_of_a_file_are_refused_by_the_server(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("read zLw0Q5m1Jx2kTn8v\n")
    done = stillhash("serve", str(tmp_path / "c"), "--keys", str(file))
    assert done.returncode == 2 and f"stillhash keys add {file} --name NAME --role read" in done.stderr
    assert "zLw0Q5m1Jx2kTn8v" not in done.stderr
