"""A process that opens a collection to write can wait for the one that writes to it, and take over from it."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import stillhash
from stillhash.errors import Conflict, InvalidInput
from tests.collection.fixtures import DIM, begin

WRITER = """
import sys, numpy as np, stillhash
collection = stillhash.open(sys.argv[1])
for number in range(10**6):
    collection.add([f"new-{number}"], np.ones((1, collection.dim)), learn=False)
    print(number, flush=True)
"""


@pytest.mark.medium
def test_a_waiting_process_takes_over_from_one_that_is_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection, _ = begin(tmp_path / "c")
    rows = collection.count()
    collection.close()
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "c")], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with pytest.raises(Conflict, match="another process"):
            stillhash.open(tmp_path / "c")
        with pytest.raises(Conflict, match="another process"):
            stillhash.open(tmp_path / "c", wait=0.05)

        class KillsWriter(logging.Handler):
            """Kills the writer when the other process has begun to wait."""

            def emit(self, record: logging.LogRecord) -> None:
                writer.kill()

        handler = KillsWriter()
        logging.getLogger("stillhash.files").addHandler(handler)
        try:
            with stillhash.open(tmp_path / "c", wait=float("inf")) as collection:
                acknowledged = 1 + len(writer.stdout.readlines())
                assert collection.count() - rows in (acknowledged, acknowledged + 1)
                collection.add(["last"], np.ones((1, DIM)), learn=False)
        finally:
            logging.getLogger("stillhash.files").removeHandler(handler)
    assert sum("c: another process is writing" in record.message for record in caplog.records) == 2  # one for each wait


@pytest.mark.parametrize("wait", [-1.0, float("nan"), "soon"])
def test_how_long_to_wait_is_validated(tmp_path: Path, wait: float) -> None:
    with pytest.raises(InvalidInput, match=r"^wait"):
        stillhash.open(tmp_path / "c", 8, wait=wait)
    assert not (tmp_path / "c").exists()
