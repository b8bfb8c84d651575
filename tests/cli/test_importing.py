"""`stillhash import`: it creates the collection, names columns, and goes on after a kill at any moment."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from tests.cli.test_collection import call, call_json
from tests.support.seeds import run_seed
from tests.support.toys import toy
from tests.support.waiting import until

X, Y = toy(900, 16, 4)
NAMES = np.array(["cat", "dog", "sea", "sky"])
TEXTS = [", ".join(NAMES[row > 0]) for row in Y]
KILLS = int(os.environ.get("STILLHASH_KILLS", "4"))
KILLED_ROWS = 12_000


def write_parquet(path: Path, rows: int = 900, *, first: int = 0) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow has no Parquet")
    numbers = np.arange(rows) % len(X)
    columns = {"image_id": np.arange(first, first + rows), "embedding": list(X[numbers])}
    columns |= {"label": [TEXTS[n] if n % 7 else None for n in numbers], "red": [bool(n % 2) for n in numbers]}
    parquet.write_table(pyarrow.table({**columns, "year": numbers}), path, row_group_size=1000)
    return path


def test_import_creates_the_collection(tmp_path: Path) -> None:
    first, second = write_parquet(tmp_path / "a.parquet"), write_parquet(tmp_path / "b.parquet", 40, first=900)
    path = tmp_path / "films"
    options = ["--label-separator", ",", "--label-column", "label", "--label-column", "red"]
    result = call_json("import", first, second, path, *options, "--metadata-columns", "year", "--bits", 64)
    assert result["added"] == result["count"] == 940 and result["rows_per_second"] > 0
    stats = call_json("stats", path)
    assert (stats["dim"], stats["bits"], stats["items"]) == (16, 64, 940)
    (item,) = call_json("get", path, 901)["items"]
    assert item["metadata"] == {"year": 1} and item["labels"] == sorted([*NAMES[Y[1] > 0], "red"])
    again = [first, second, path, *options, "--metadata-columns", "year"]
    assert call_json("import", *again) | {"version": 0} == {
        "added": 0,
        "count": 940,
        "version": 0,
        "rows_per_second": 0,
    }
    assert "0 rows added" in call("import", *again)[1]
    code, _, err = call("import", first, path)
    assert code == 4 and "a.parquet: labels: " in err
    code, _, err = call("import", *again, "--bits", 32)
    assert code == 4 and "bits" in err


def test_columns_are_recognised_by_add(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "a.parquet", 20)
    call_json("create", tmp_path / "films", "--dim", 16)
    assert call_json("add", tmp_path / "films", file, "--label-separator", ",", "--chunk", 7)["added"] == 20
    (item,) = call_json("get", tmp_path / "films", 8)["items"]
    assert item == {"id": 8, "labels": sorted(NAMES[Y[8] > 0]), "metadata": {"red": False, "year": 8}}
    code, _, err = call("add", tmp_path / "films", file, "--id-column", "sku")
    assert code == 2 and "image_id, embedding, label, red, year" in err
    code, _, err = call("add", tmp_path / "films", file, "--label-separator", "")
    assert code == 2 and "--label-separator" in err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rows.csv", "sku,emb\n1,2\n", "columns: .*sku, emb"),
        ("rows.csv", "sku,f0\n1,2\n", "id: .*sku, f0"),
        ("rows.csv", "id,f0\n", "rows.csv: expected rows"),
        ("rows.jsonl", '{"id": 1, "features": [1, "a"]}', "rows.jsonl, line 1: features"),
        ("rows.txt", "", "expected a file that ends in"),
    ],
)
def test_what_cannot_be_imported_creates_nothing(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    code, out, err = call("import", tmp_path / name, tmp_path / "films")
    assert code == 2 and not out
    assert re.search(message, err)
    assert not (tmp_path / "films").exists()


def test_rows_are_numbered_on_request(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("sku,f0,f1\na,1,2\nb,3,4\n")
    options: list[Any] = [tmp_path / "rows.csv", tmp_path / "films", "--number-rows"]
    assert call_json("import", *options)["added"] == 2
    assert call_json("ids", tmp_path / "films") == {"ids": [0, 1]}
    assert call_json("import", *options)["added"] == 0
    (tmp_path / "more.csv").write_text("id,f0,f1\n1,1,2\n2,3,4\n")
    code, _, err = call("import", tmp_path / "more.csv", tmp_path / "films")
    assert code == 4 and "more.csv, line 2 to line 3: ids: " in err
    assert call_json("import", tmp_path / "more.csv", tmp_path / "films", "--skip-existing")["added"] == 1


def start_import(file: Path, path: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "stillhash", "import", str(file), str(path), "--label-separator", ","]
    return subprocess.Popen([*words, "--chunk", "200"], stdout=subprocess.DEVNULL)


@pytest.mark.slow
def test_an_import_that_is_killed_goes_on(tmp_path: Path) -> None:
    file, path = write_parquet(tmp_path / "a.parquet", KILLED_ROWS), tmp_path / "films"
    rng, counts = random.Random(run_seed()), [0]
    for number in range(KILLS):
        process = start_import(file, path)
        if number % 2:
            until(lambda process=process: process.poll() is not None or count(path) > counts[-1], "progress")
        else:
            until(lambda process=process: process.poll() is not None or (path / "store.db").is_file(), "collection")
        time.sleep(rng.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        with stillhash.open(path) as collection:
            counts.append(collection.count())
            assert collection.ids(limit=KILLED_ROWS + 1) == list(range(counts[-1])) and collection.verify() == []
    assert counts[-1] > 0 and sorted(counts) == counts
    assert start_import(file, path).wait() == 0
    with stillhash.open(path, read_only=True) as collection:
        assert collection.ids(limit=KILLED_ROWS + 1) == list(range(KILLED_ROWS))
        assert collection.count() == KILLED_ROWS and collection.verify() == []
        items = collection.get(range(0, KILLED_ROWS, 97))
    numbers = [row % len(X) for row in range(0, KILLED_ROWS, 97)]
    assert [item and item.metadata and item.metadata["year"] for item in items] == numbers
    assert [item and item.labels for item in items] == [sorted(NAMES[Y[n] > 0]) if n % 7 else [] for n in numbers]


def count(path: Path) -> int:
    with stillhash.open(path, read_only=True) as collection:
        return collection.count()
