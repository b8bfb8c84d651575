"""Exit codes: one table, and each of them through the real command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stillhash as library
from stillhash import errors
from stillhash.cli import output
from tests.cli.commands import LAUNCHER, stillhash
from tests.cli.conftest import RunMain
from tests.support.toys import toy

GUIDE = Path(__file__).parents[2] / "docs" / "shell.md"
MEANINGS = {each.code: each for each in output.EXIT_CODES}


def error_classes(base: type[errors.StillhashError] = errors.StillhashError) -> Iterator[type[errors.StillhashError]]:
    yield base
    for below in base.__subclasses__():
        if below.__module__ == "stillhash.errors":
            yield from error_classes(below)


def test_the_table_has_every_error() -> None:
    for error in error_classes():
        row = MEANINGS[error.exit_code]
        assert issubclass(error, getattr(errors, row.error)), error
    assert len(MEANINGS) == len(output.EXIT_CODES)


def test_the_table_is_in_the_guide_and_in_the_help() -> None:
    guide = GUIDE.read_text()
    for each in output.EXIT_CODES:
        name = f"`{each.error}`" if each.error else ""
        assert f"| {each.code} | {name} | {each.meaning} |" in guide
    out = " ".join(stillhash("--help").stdout.split())
    assert output.exit_code_help() in out


@pytest.fixture
def films(tmp_path: Path) -> Path:
    with library.open(tmp_path / "films", 2) as collection:
        collection.add(["a", "b"], [[1.0, 0.0], [0.0, 1.0]])
    return tmp_path / "films"


def check(code: int, *args: Any, **options: Any) -> str:
    """Run the command in a process of its own; return what it prints to stderr, which names the error of the code."""
    done = stillhash(*args, "--json", **options)
    assert done.returncode == code, done.stderr
    assert json.loads(done.stderr)["error"] == MEANINGS[code].error
    return done.stderr


def test_codes_of_requests(films: Path, tmp_path: Path, run_main: RunMain) -> None:
    assert run_main("count", films) == (0, "2\n", "")
    assert run_main("count", films, "--nosuch")[0] == 2
    assert run_main("count", films, "--where", "{")[0] == 2
    assert run_main("duplicates", films, "--distance", 3)[0] == 3
    assert run_main("create", films, "--dim", 2)[0] == 4
    assert run_main("keys", "add", tmp_path / "keys.json", "--name", "ann", "--role", "read")[0] == 0
    assert run_main("keys", "remove", tmp_path / "keys.json", "bob")[0] == 8


@pytest.mark.medium
def test_a_collection_that_another_process_writes_is_a_conflict(films: Path) -> None:
    with library.open(films):
        assert check(4, "delete", films, "a")


def test_damage_is_reported_by_verify_and_by_its_code(tmp_path: Path, run_main: RunMain) -> None:
    with library.open(tmp_path / "films", 8, init_rows=300) as collection:
        collection.add(list(range(300)), toy(300, 8, 2)[0])
        collection.seal()
    assert run_main("verify", tmp_path / "films") == (0, "OK\n", "")
    segment = max((tmp_path / "films").rglob("*.tiles"))
    data = bytearray(segment.read_bytes())
    data[0] ^= 255
    segment.write_bytes(data)
    code, out, _ = run_main("verify", tmp_path / "films", "--json")
    assert code == 5 and json.loads(out)["problems"]


@pytest.mark.medium
def test_a_missing_package_names_the_extra(films: Path) -> None:
    assert "stillhash[server]" in check(6, "serve", films, before="import sys; sys.modules['fastapi'] = None")


@pytest.mark.medium
@pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no folders")
def test_a_disk_that_refuses_writes() -> None:
    assert check(7, "create", "/proc/nosuch", "--dim", "2")


@pytest.mark.slow
def test_a_server_that_needs_a_key_or_does_not_answer(films: Path) -> None:
    words = [sys.executable, "-c", LAUNCHER, "serve", str(films), "--port", "0", "--log", "off", "--json"]
    env = {**os.environ, "STILLHASH_READ_KEYS": "a-key-of-sufficient-length-0123456789"}
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        assert check(9, "cluster", "status", "--url", url)
    finally:
        server.terminate()
        rest = server.communicate()[0]
    assert rest == ""  # the address was all
    assert check(11, "cluster", "status", "--url", url)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
def test_a_lack_of_file_handles(films: Path) -> None:
    imports = "import resource, stillhash.__main__, stillhash.platform, stillhash.cli.main"
    assert check(10, "count", films, before=f"{imports}; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))")


@pytest.mark.medium
def test_a_lack_of_memory(films: Path) -> None:
    assert check(13, "count", films, before="import stillhash; stillhash.open = lambda *_, **__: bytearray(1 << 60)")


@pytest.mark.medium
@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_an_interrupted_command(as_json: list[str], films: Path) -> None:
    words = [sys.executable, "-c", LAUNCHER, "add", str(films), "-", "--chunk", "1", *as_json]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = subprocess.Popen(words, **pipes, text=True)
    assert command.stdin is not None
    for name in ("c", "d"):
        command.stdin.write(json.dumps({"id": name, "features": [1, 2]}) + "\n")
        command.stdin.flush()
    while not library.open(films, read_only=True).get(["c"])[0]:
        assert command.poll() is None
    command.send_signal(signal.SIGINT)
    out, err = command.communicate()
    assert command.returncode == 130 and not out and "row" in err and "Traceback" not in err
    assert not as_json or json.loads(err.splitlines()[-1])["error"] == "Interrupted"


@pytest.mark.medium
@pytest.mark.skipif(sys.platform == "win32", reason="pipes differ")
def test_a_reader_that_went_away() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", LAUNCHER, "info"], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert done.returncode == 1 and not done.stderr
