"""The contract of locks, for the code of each system; that of Windows on a stand-in for the module that Linux lacks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhash.platform import SYSTEM, OperatingSystem, operating_system

if not SYSTEM.open_files_can_move:
    pytest.skip("Windows runs its own code only, which the tests of collections use", allow_module_level=True)

from tests.support.windows_stand_in import stand_in_msvcrt

HANDLES = 3
Operations = st.lists(st.tuples(st.sampled_from(["lock", "unlock", "close"]), st.integers(0, HANDLES - 1)), max_size=20)


@pytest.fixture(params=[sys.platform, "win32"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OperatingSystem]:
    monkeypatch.setitem(sys.modules, "msvcrt", stand_in_msvcrt())
    return operating_system(request.param)


@given(operations=Operations)
def test_one_handle_has_the_lock_at_a_time(
    system: OperatingSystem, tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int]]
) -> None:
    file = tmp_path_factory.mktemp("lock") / "lock"
    handles = [system.open_file(file, os.O_RDWR | os.O_CREAT) for _ in range(HANDLES)]
    owner: int | None = None
    for operation, number in operations:
        if operation == "lock" and owner != number:  # whether one handle may lock twice is left open
            assert system.try_lock(handles[number]) == (owner is None)
            owner = number if owner is None else owner
        elif operation == "unlock" and owner == number:
            system.unlock(handles[number])
            owner = None
        elif operation == "close":
            os.close(handles[number])
            handles[number] = system.open_file(file, os.O_RDWR)
            owner = None if owner == number else owner
    for handle in handles:
        os.close(handle)


def test_a_lock_ends_with_its_process(system: OperatingSystem, tmp_path: Path) -> None:
    file = tmp_path / "lock"
    handle = system.open_file(file, os.O_RDWR | os.O_CREAT)
    platform = "win32" if system.name == "Windows" else sys.platform
    command = [sys.executable, "-m", "tests.platform.lock_process", platform, str(file)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, env=environment, encoding="utf-8") as process:
        assert process.stdout is not None and process.stdout.readline() == "True\n"
        assert not system.try_lock(handle)
        process.kill()
        process.wait()
        assert system.try_lock(handle)
    os.close(handle)


def test_lock_waits_for_the_other_handle(system: OperatingSystem, tmp_path: Path) -> None:
    first, second = (system.open_file(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    system.lock(first)
    events: list[str] = []

    def wait() -> None:
        system.lock(second)
        events.append("second")

    thread = threading.Thread(target=wait)
    thread.start()
    events.append("first")
    system.unlock(first)
    thread.join()
    assert events == ["first", "second"] and not system.try_lock(first)
    for handle in (first, second):
        os.close(handle)


def test_a_folder_has_one_lock(system: OperatingSystem, tmp_path: Path) -> None:
    first, second = (system.open_folder_lock(tmp_path) for _ in range(2))
    assert system.try_lock(first) and not system.try_lock(second)
    system.unlock(first)
    assert system.try_lock(second)
    for handle in (first, second):
        os.close(handle)
