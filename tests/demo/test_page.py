"""The demo with a page, as a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stillhash

TIMEOUT = 60.0  # seconds, at the end of which a test fails


@pytest.mark.slow
def test_the_demo_serves_a_page_while_it_learns_and_keeps_its_collection(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stillhash", "demo", "--port", "0", "--scenes", "2000", "--path", "demo"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert process.stdout is not None
        address = re.search(r"http://\S+:\d+", process.stdout.readline())
        assert address is not None
        with stillhash.Client(address[0]) as client:
            end = time.monotonic() + TIMEOUT
            while len(client.quality()["curve"]) < 3 and time.monotonic() < end:
                time.sleep(0.2)
            curve, count = client.quality()["curve"], client.count()
            assert len(curve) >= 3 and curve[-1]["map"] > curve[-1]["before"]["map"]
            (item,) = client.sample()
            picture = client.picture(item.id)
            assert picture is not None
            assert client.search(client.encode(picture), 3).hits  # a thumbnail is an image like any other
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, errors
    with stillhash.open(tmp_path / "demo", read_only=True) as collection:
        assert collection.count() >= count and collection.verify() == []
