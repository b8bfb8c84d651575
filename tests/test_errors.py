"""What the system lacks becomes one of our errors; all other errors pass as they are."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from stillhash.errors import Busy, InvalidInput, OutOfMemory, report_shortages, shortage

NOT_THERE = 1 << 60  # bytes that no machine has


class Allocating:
    @report_shortages
    def allocate(self) -> int:
        """Allocate."""
        return len(np.empty(NOT_THERE, np.uint8))


@report_shortages
class Various:
    def too_much(self) -> int:
        return len(np.empty(NOT_THERE, np.uint8))

    def too_many(self) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def other(self) -> None:
        raise FileNotFoundError(errno.ENOENT, "none")

    def ours(self) -> None:
        raise InvalidInput("k: expected 1, got 0")

    def _private(self) -> int:
        return len(np.empty(NOT_THERE, np.uint8))


def test_lack_of_memory_is_busy_and_a_memory_error() -> None:
    with pytest.raises(OutOfMemory) as caught:
        Allocating().allocate()
    assert isinstance(caught.value, (Busy, MemoryError)) and caught.value.retry_after >= 1
    assert (OutOfMemory.status, OutOfMemory.exit_code) == (503, 13)
    assert isinstance(caught.value.__cause__, MemoryError)


def test_public_methods_of_a_class_report_shortages() -> None:
    with pytest.raises(OutOfMemory):
        Various().too_much()
    with pytest.raises(Busy, match=r"^file handles"):
        Various().too_many()
    with pytest.raises(FileNotFoundError):
        Various().other()
    with pytest.raises(InvalidInput):
        Various().ours()
    with pytest.raises(MemoryError) as caught:
        Various()._private()
    assert not isinstance(caught.value, OutOfMemory)
    assert Allocating.allocate.__doc__ == "Allocate." and Various.too_many.__name__ == "too_many"


def test_shortages_of_the_system_are_told_apart() -> None:
    assert isinstance(shortage(OSError(errno.ENOMEM, "")), OutOfMemory)
    assert type(shortage(OSError(errno.ENFILE, ""))) is type(shortage(RuntimeError("can't start new thread"))) is Busy
    assert shortage(RuntimeError("something else")) is shortage(OSError(errno.EIO, "")) is shortage(KeyError()) is None
    assert shortage(OutOfMemory("already ours")) is None
