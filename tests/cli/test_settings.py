"""Settings: precedence, errors that name file and line, and the commands that change the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from stillhash.cli import settings as source
from stillhash.cli.main import app
from stillhash.cli.toml_lines import set_value, unset_value
from stillhash.errors import InvalidInput, StillhashError
from tests.cli.commands import ROOT, stillhash

SETTINGS = {each.key: each for each in source.all_settings(ROOT)}
KEYS = sorted(SETTINGS)


def call(*args: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Return the exit code, stdout, and the message of an error."""
    done = CliRunner().invoke(app, list(args), env=env)
    if isinstance(done.exception, StillhashError):
        return done.exception.exit_code, done.stdout, str(done.exception)
    return done.exit_code, done.stdout, repr(done.exception)


def call_json(*args: str, env: dict[str, str] | None = None) -> Any:
    code, out, err = call(*args, "--json", env=env)
    assert code == 0, err
    return json.loads(out)


@pytest.fixture
def films(tmp_path: Path) -> Path:
    call_json("create", str(tmp_path / "films"), "--dim", "2")
    rows = "".join(json.dumps({"id": i, "features": [i, 1]}) + "\n" for i in range(9))
    (tmp_path / "rows.jsonl").write_text(rows)
    call_json("add", str(tmp_path / "films"), str(tmp_path / "rows.jsonl"))
    return tmp_path / "films"


def hits(films: Path, *options: str, env: dict[str, str] | None = None) -> int:
    return len(call_json("search", str(films), "--vector", "[1, 1]", *options, env=env)["answers"][0]["hits"])


def test_command_line_before_environment_before_file_before_default(films: Path, settings_path: Path) -> None:
    assert hits(films) == 9
    settings_path.write_text("[search]\nk = 3\n", encoding="utf-8")
    assert hits(films) == 3
    assert hits(films, env={"STILLHASH_SEARCH_K": "4"}) == 4
    assert hits(films, "-k", "5", env={"STILLHASH_SEARCH_K": "4"}) == 5
    assert hits(films, env={"STILLHASH_SEARCH_K": ""}) == 3  # empty is unset


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[serve]\nprot = 8000\n", ["config.toml:2", "serve.prot", "serve.port"]),
        ("[serve]\n\nport = '8000'\n", ["config.toml:3", "serve.port", "whole number"]),
        ("[serve]\nport = 70000\n", ["config.toml:2", "serve.port", "65535"]),
        ("[serve]\nport = true\n", ["serve.port", "True"]),
        ("[serve]\ntimeout = nan\n", ["serve.timeout", "finite", "nan"]),
        ("[serve]\ntimeout = inf\n", ["serve.timeout", "finite", "inf"]),
        ("[create]\nfilter-field = 'year'\n", ["create.filter-field", "list"]),
        ("[create]\nfilter-field = [1]\n", ["create.filter-field", "list"]),
        ("[delete]\nall = true\n", ["config.toml:2", "delete.all", "command line"]),
        ("[search]\njson = true\n", ["search.json", "command line"]),
        ("[nosuch]\n", ["nosuch", "unknown"]),
        ("serve = 3\n", ["config.toml:1", "serve"]),
        ("[serve\n", ["config.toml", "line 1"]),
        ("[serve]\nport = 1\nport = 2\n", ["config.toml", "line 3"]),
        ("[cluster.status]\nkey = 12345\n", ["cluster.status.key", "text", "****"]),
    ],
)
def test_wrong_files_are_refused_and_nothing_runs(
    text: str, words: list[str], tmp_path: Path, settings_path: Path
) -> None:
    settings_path.write_text(text, encoding="utf-8")
    code, out, message = call("create", str(tmp_path / "new"), "--dim", "4")
    assert code == 2 and not out and not (tmp_path / "new").exists()
    assert all(word in message for word in words), message
    assert "12345" not in message
    code, out, _ = call("config", "check")
    assert code == 2 and all(word in out for word in words)
    assert call("config", "path")[0] == 0


def test_help_works_with_a_wrong_file(settings_path: Path) -> None:
    settings_path.write_text("[serve", encoding="utf-8")
    for args in (["--help"], ["serve", "--help"], ["--version"]):
        assert stillhash(*args).returncode == 0
    done = stillhash("info", "--json")
    assert done.returncode == 2 and not done.stdout
    assert json.loads(done.stderr)["error"] == "InvalidInput"


@pytest.mark.parametrize("data", [b"\xff\xfe", b"#" * (source.MAX_SETTINGS_BYTES + 1)])
def test_files_that_are_no_settings_are_refused(data: bytes, settings_path: Path) -> None:
    settings_path.write_bytes(data)
    assert call("info")[0] == 2


def test_the_environment_is_checked() -> None:
    code, _, message = call("info", env={"STILLHASH_SERVE_PORT": "many"})
    assert code == 2 and "STILLHASH_SERVE_PORT" in message
    code, out, _ = call("config", "check", env={"STILLHASH_SERVE_PROT": "1", "STILLHASH_READ_KEYS": "secret"})
    assert code == 2 and "STILLHASH_SERVE_PORT" in out and "READ_KEYS" not in out and "secret" not in out
    assert call("info", env={"STILLHASH_SERVE_PROT": "1"})[0] == 0
    for word, value in (("yes", True), ("0", False)):
        env = {"STILLHASH_SERVE_READ_ONLY": word}
        assert call_json("config", "get", "serve.read-only", env=env)["value"] is value


def test_variables_of_the_server_are_no_settings() -> None:
    variables = [each.variable for each in SETTINGS.values()]
    assert set(variables) & set(source.OTHER_VARIABLES) == {"STILLHASH_KEY"}  # of the option itself
    own = [variable for variable in variables if variable != "STILLHASH_KEY"]
    assert len(own) == len(set(own))
    roles = ("READ", "FEEDBACK", "WRITE", "ADMIN")
    env = {**{f"STILLHASH_{role}_KEYS": "a-secret-key" for role in roles}, "STILLHASH_LANES": "numpy"}
    assert call_json("config", "check", env=env)["problems"] == []
    code, out, _ = call("config", "show", "--json", env={**env, "STILLHASH_KEY": "a-secret-key"})
    assert code == 0 and "a-secret-key" not in out
    shown = json.loads(out)
    assert set(shown["environment"]) == {*(f"STILLHASH_{role}_KEYS" for role in roles), "STILLHASH_KEY"}
    assert shown["settings"]["cluster.status.key"] == {"value": "********", "source": "environment: STILLHASH_KEY"}


def test_another_file_by_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    env = {"STILLHASH_CONFIG": str(file)}
    code, _, message = call("info", env=env)
    assert code == 2 and "STILLHASH_CONFIG" in message
    assert call_json("config", "set", "serve.port", "9000", env=env)["file"] == str(file)
    assert call_json("config", "path", env=env) == {"path": str(file), "exists": True}
    assert call_json("config", "get", "serve.port", env=env)["value"] == 9000
    assert call("info", env={"STILLHASH_CONFIG": "/dev/null"})[0] == 0 or sys.platform == "win32"


def test_set_get_unset_and_show(settings_path: Path) -> None:
    settings_path.write_text("# mine\n[serve]\n# the port\nport = 1 # old\n\n[search]\nk = 3\n", encoding="utf-8")
    assert call_json("config", "set", "serve.port", "8080")["value"] == 8080
    assert call_json("config", "set", "serve.read-only", "on")["value"] is True
    assert call_json("config", "set", "create.filter-field", "year", 'a "b"')["value"] == ["year", 'a "b"']
    text = settings_path.read_text(encoding="utf-8")
    assert text.startswith("# mine\n[serve]\n# the port\nport = 8080\nread-only = true\n\n[search]\nk = 3\n")
    assert call("config", "get", "create.filter-field")[1] == 'year a "b"\n'
    shown = call_json("config", "show", "--changed")["settings"]
    assert shown["serve.port"] == {"value": 8080, "source": "file"} and len(shown) == 4
    assert set(call_json("config", "show")["settings"]) == set(SETTINGS)
    assert "serve.port = 8080  (file)" in call("config", "show")[1]
    call_json("config", "unset", "serve.port")
    assert call_json("config", "get", "serve.port") == {"key": "serve.port", "value": 8000, "source": "default"}
    assert call("config", "unset", "serve.port")[0] == 8


WRONG_VALUES = [
    "serve.prot 1",
    "serve.port x",
    "serve.port 1 2",
    "serve.timeout nan",
    "serve.read-only 2",
    "delete.all 1",
]


@pytest.mark.parametrize("words", WRONG_VALUES)
def test_wrong_values_are_not_written(words: str, settings_path: Path) -> None:
    assert call("config", "set", *words.split())[0] == 2
    assert not settings_path.exists()


def test_unknown_names_can_be_removed(settings_path: Path) -> None:
    settings_path.write_text("[serve]\nprot = 3\nport = 5\n", encoding="utf-8")
    call_json("config", "unset", "serve.prot")
    assert settings_path.read_text(encoding="utf-8") == "[serve]\nport = 5\n"


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.one_of(st.booleans(), st.integers(-9, 9), FLOATS, TEXTS, st.lists(TEXTS))
TABLES = ["[serve]", "[search]", "[cluster.up]"]
LINES = st.sampled_from([*TABLES, "# note", "", "port = 1", "k = 2 # note", "nodes = 'a # b'", "x = [1,", "]"])


@settings(max_examples=200, deadline=None)
@given(st.lists(LINES, max_size=8), st.sampled_from(["serve.port", "search.k", "cluster.up.nodes"]), VALUES)
def test_changes_of_a_file_change_one_value(lines: list[str], key: str, value: Any) -> None:
    text = "\n".join(lines) + "\n"
    try:
        before = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    try:
        after = tomllib.loads(set_value(text, key, value))
    except InvalidInput:
        return
    *table, name = key.split(".")
    for tables in (before, after):
        inner = tables
        for part in table:
            inner = inner.setdefault(part, {})
        last = inner.pop(name, None)
    assert before == after and last == value and type(last) is type(value)
    assert name not in tomllib.loads(unset_value(set_value(text, key, value), key)).get(table[0], {})


@pytest.mark.parametrize("key", KEYS)
def test_every_setting_has_a_kind_and_accepts_its_default(key: str) -> None:
    setting = SETTINGS[key]
    default = setting.parameter.default
    if default is not None:
        plain = str(default) if isinstance(default, Path) else default
        assert setting.check(plain, "default") == plain
        assert isinstance(plain, list) or setting.parse(str(plain), "text") == plain
    assert setting.kind in source.KIND_NAMES and setting.variable.startswith("STILLHASH_")


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() != 0, reason="only root can become another user")
def test_the_home_of_another_user_has_no_settings() -> None:
    """A server that runs as another user may have inherited a HOME that it cannot look into."""
    program = """
import os, sys
from pathlib import Path
from stillhash.cli.settings import read_text
os.setgid(65534), os.setuid(65534)
print(read_text(Path(sys.argv[1]), required=False))
"""
    with tempfile.TemporaryDirectory() as home:
        file = Path(home, ".config", "stillhash", "config.toml")
        file.parent.mkdir(parents=True)
        file.write_text("port = 1", encoding="utf-8")
        for mode, expected in ((0o755, "port = 1"), (0o700, "")):
            Path(home).chmod(mode)
            command = [sys.executable, "-c", program, str(file)]
            done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
            assert done.stdout.strip() == expected
