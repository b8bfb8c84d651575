"""The demo that ends on the page, as a process of its own; and the experiments with images and bridges."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import stillhash
from stillhash.errors import InvalidInput
from stillhash.experiments import alignment_study, image_ingest_study
from stillhash.experiments.data import Dataset
from tests.support.toys import toy

PATIENCE = 60.0  # seconds, at the end of which a test fails


def test_the_demo_serves_a_page_while_it_learns_and_keeps_what_it_learnt(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stillhash", "demo", "--port", "0", "--scenes", "2000", "--path", "kept"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+:\d+", process.stdout.readline())
        assert found is not None
        with stillhash.Client(found[0]) as client:
            end = time.monotonic() + PATIENCE
            while len(client.quality()["curve"]) < 3 and time.monotonic() < end:
                time.sleep(0.2)
            curve, count = client.quality()["curve"], client.count()
            assert len(curve) >= 3 and curve[-1]["map"] > curve[-1]["hamming"]
            (item,) = client.sample()
            picture = client.picture(item.id)
            assert picture is not None
            assert client.search(client.encode(picture), 3).hits  # a thumbnail is an image like any other
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    with stillhash.open(tmp_path / "kept", read_only=True) as collection:
        assert collection.count() >= count and collection.verify() == []


def test_a_folder_that_is_killed_on_the_way_ends_whole(tmp_path: Path) -> None:
    result = image_ingest_study.run(count=800, queries=30, size=32, workers=1)
    assert (result["missing"], result["double"], result["differing"]) == (0, 0, 0)
    assert len(result["killed_at"]) == 2 and 0 < result["killed_at"][0] <= result["killed_at"][1] < 800
    assert result["skipped"] == result["killed_at"][1] and result["learnt"] > result["hamming"]
    assert json.loads(json.dumps(result)) == result


def test_a_bridge_keeps_most_of_encoding_anew() -> None:
    X, Y = toy(900)
    seen = np.maximum(X @ np.random.default_rng(0).standard_normal((48, 80)), 0).astype(np.float32)
    asked = np.arange(0, 900, 9)
    old, new = (Dataset(name, (features,), 1.0, Y, asked) for name, features in (("old", X), ("new", seen)))
    result = alignment_study.run(old, new, bits=32, seeds=1)
    assert [row["pairs"] for row in result["rows"]] == [100, 300, 800, 800]
    for row in result["rows"][1:]:
        assert result["chance"] < row["map"] and row["map"] > 0.9 * row["anew"]
    with pytest.raises(InvalidInput, match="other labels"):
        alignment_study.run(old, Dataset("wrong", (seen,), 1.0, Y[::-1].copy(), asked))
