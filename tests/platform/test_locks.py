"""The contract of locks, on the system that runs the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhash.platform import SYSTEM

HANDLES = 3
Operations = st.lists(st.tuples(st.sampled_from(["lock", "unlock", "close"]), st.integers(0, HANDLES - 1)), max_size=20)


@given(operations=Operations)
def test_one_handle_has_the_lock_at_a_time(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int]]
) -> None:
    file = tmp_path_factory.mktemp("lock") / "lock"
    handles = [SYSTEM.open_file(file, os.O_RDWR | os.O_CREAT) for _ in range(HANDLES)]
    owner: int | None = None
    for operation, number in operations:
        if operation == "lock" and owner != number:  # whether one handle may lock twice is left open
            assert SYSTEM.try_lock(handles[number]) == (owner is None)
            owner = number if owner is None else owner
        elif operation == "unlock" and owner == number:
            SYSTEM.unlock(handles[number])
            owner = None
        elif operation == "close":
            os.close(handles[number])
            handles[number] = SYSTEM.open_file(file, os.O_RDWR)
            owner = None if owner == number else owner
    for handle in handles:
        os.close(handle)


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    handle = SYSTEM.open_file(file, os.O_RDWR | os.O_CREAT)
    command = [sys.executable, "-m", "tests.platform.lock_process", str(file)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, env=environment, encoding="utf-8") as process:
        assert process.stdout is not None and process.stdout.readline() == "True\n"
        assert not SYSTEM.try_lock(handle)
        process.kill()
        process.wait()
        assert SYSTEM.try_lock(handle)
    os.close(handle)


def test_lock_waits_for_the_other_handle(tmp_path: Path) -> None:
    first, second = (SYSTEM.open_file(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    SYSTEM.lock(first)
    events: list[str] = []

    def wait() -> None:
        SYSTEM.lock(second)
        events.append("second")

    thread = threading.Thread(target=wait)
    thread.start()
    events.append("first")
    SYSTEM.unlock(first)
    thread.join()
    assert events == ["first", "second"] and not SYSTEM.try_lock(first)
    for handle in (first, second):
        os.close(handle)


def test_a_folder_has_one_lock(tmp_path: Path) -> None:
    first, second = (SYSTEM.open_folder_lock(tmp_path) for _ in range(2))
    assert SYSTEM.try_lock(first) and not SYSTEM.try_lock(second)
    SYSTEM.unlock(first)
    assert SYSTEM.try_lock(second)
    for handle in (first, second):
        os.close(handle)
