"""A folder that cannot be written: a closed collection in it can be read, and one with a log says what to do."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

import stillhash
from tests.collection.fixtures import begin, some_rows
from tests.collection.test_crash import ROOT
from tests.collection.unprivileged import COMMANDS


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that every user can reach, which those of pytest are not."""
    path = Path(tempfile.mkdtemp(prefix="read-only-"))
    path.chmod(0o755)
    yield path
    for each in (path, *path.iterdir()):
        set_writable(each)
    shutil.rmtree(path)


def set_writable(path: Path) -> None:
    for each in (path, *path.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)


def set_read_only(path: Path) -> Path:
    """Let everyone read this folder and all in it, and no one write."""
    for each in (*path.rglob("*"), path):
        each.chmod(0o555 if each.is_dir() else 0o444)
    return path


def start(what: str, path: Path) -> subprocess.Popen[str]:
    """Start a process that may not write to this folder."""
    warm_up = path.parent / f"warm-up {what}"
    if not warm_up.exists():
        with begin(warm_up)[0] as collection:
            collection.seal()
    set_read_only(path)
    command = [sys.executable, "-m", "tests.collection.unprivileged", what, str(path), str(warm_up)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, text=True, **pipes)


def output_of(what: str, path: Path) -> str:
    """Return what that process prints; it changes no file."""
    set_read_only(path)
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    output, errors = start(what, path).communicate(timeout=100)
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before
    assert output, errors
    return output.strip()


@pytest.mark.medium
@pytest.mark.parametrize("left", [(), ("store.db-wal",), ("store.db-shm",), ("store.db-wal", "store.db-shm")])
def test_a_closed_collection_is_read(folder: Path, left: tuple[str, ...]) -> None:
    with begin(folder / "c")[0] as collection:
        collection.seal()
        collection.upsert(["new"], *some_rows(1))
    for name in left:
        (folder / "c" / name).write_bytes(b"" if name.endswith("-wal") else bytes(1 << 15))
    assert output_of("read", folder / "c") == "321"


@pytest.mark.medium
def test_a_snapshot_is_read(folder: Path) -> None:
    with begin(folder / "c")[0] as collection:
        collection.snapshot(folder / "s")
    assert output_of("read", folder / "s") == "320"


@pytest.mark.medium
def test_a_log_with_changes_says_what_to_do(folder: Path) -> None:
    with begin(folder / "open")[0] as collection:
        collection.upsert(["new"], *some_rows(1))
        shutil.copytree(folder / "open", folder / "c", ignore=shutil.ignore_patterns("*-shm"))
    assert (folder / "c" / "store.db-wal").stat().st_size
    answer = output_of("read", folder / "c")
    assert (
        answer.startswith("BadState")
        and "store.db-wal" in answer
        and "stillhash flush" in answer
        and "snapshot" in answer
    )
    set_writable(folder / "c")
    with stillhash.open(folder / "c") as collection:  # where it can be written
        collection.flush()
    assert output_of("read", folder / "c") == "321"


@pytest.mark.medium
def test_writing_is_refused_with_what_to_do(folder: Path) -> None:
    begin(folder / "c")[0].close()
    answer = output_of("write", folder / "c")
    assert answer.startswith("StoreFailed") and "read_only=True" in answer


@pytest.mark.medium
def test_commands_that_read_work(folder: Path) -> None:
    with begin(folder / "c")[0] as collection:
        collection.seal()
    assert output_of("commands", folder / "c") == " ".join("0" for _ in COMMANDS)


@pytest.mark.medium
def test_a_change_by_another_process_is_noticed(folder: Path) -> None:
    """A process that may write changes the collection while one that may not has it open."""
    begin(folder / "c")[0].close()
    with start("watch", folder / "c") as reader:
        assert line_of(reader.stdout) == "320"
        set_writable(folder / "c")
        with stillhash.open(folder / "c") as collection:
            collection.upsert(["new"], *some_rows(1))
        set_read_only(folder / "c")
        output, errors = reader.communicate("\n", timeout=100)
        assert output == "321\n", errors


def line_of(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline().strip()
