"""Files from someone else: an import either raises an error of this library or gives the same collection.

STILLHASH_FLIPS is how many bits of each export are flipped, one at a time; 2,000 make a campaign.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash.collection.export_formats import open_export, records
from stillhash.collection.export_formats.records import ExportDigest, ExportShape
from stillhash.errors import BadState, Conflict, InvalidInput, StillhashError
from tests.collection.fixtures import DIM, begin, some_rows
from tests.collection.golden import PICTURE
from tests.collection.test_export import ANOTHER_ENCODER, FORMATS, QUERIES, answers
from tests.support.toys import toy

pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")

FLIPS = int(os.environ.get("STILLHASH_FLIPS", "8"))


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """Exports of two small collections in every format, with something in every record, and what they answer."""
    folder, files = tmp_path_factory.mktemp("exports"), {}
    for name, rows in (("fitted", 320), ("waiting", 40)):
        collection, _ = begin(folder / name, rows)
        collection.upsert(["x", "y"], *some_rows(2, seed=3), pictures=[PICTURE, None])
        if rows == 320:
            collection.delete([n for n in range(300) if n % 9])  # smaller, so that flips reach everything
            collection.feedback(QUERIES[0], [9, 18], ["up", "down"], source="ann", position=3)
            collection.add(
                ["p", "q"],
                *some_rows(5, seed=4)._replace(X=some_rows(5).X[:2], labels=[["a"], ["b"]], metadata=[None, {}]),
            )
            collection.relabel([301, 302], [["a"], ["d"]])  # wait to be learnt, and to be taken out
        collection.align(ANOTHER_ENCODER, toy(40, 5, 4).X, toy(40, DIM, 4).X)
        for format in FORMATS:
            collection.export(folder / f"{name}.{format}")
            files[f"{name}.{format}"] = folder / f"{name}.{format}", answers(collection)
        collection.close()
    return files


def check_import(data: bytes, folder: Path, suffix: str, expected: str | None) -> str:
    """Import these bytes; return the error's name, and otherwise check the answers. Nothing may be left behind."""
    file = folder / f"file.{suffix}"
    file.write_bytes(data)
    try:
        with stillhash.import_export(file, folder / "i") as copy:
            assert expected is not None and answers(copy) == expected
            return ""
    except StillhashError as error:
        assert isinstance(error, (BadState, InvalidInput)), repr(error)
        assert [path.name for path in folder.iterdir()] == [file.name]
        return type(error).__name__
    finally:
        shutil.rmtree(folder / "i", ignore_errors=True)


@pytest.mark.parametrize("name", ["fitted", "waiting"])
@pytest.mark.parametrize("format", FORMATS)
def test_cut_and_flipped_files(tmp_path: Path, exports: Any, name: str, format: str) -> None:
    file, expected = exports[f"{name}.{format}"]
    data, rng = file.read_bytes(), random.Random(f"{name} {format}")
    assert check_import(data, tmp_path, format, expected) == ""
    for size in (0, 1, 7, 100, len(data) // 2, len(data) - 1, *(rng.randrange(len(data)) for _ in range(FLIPS // 4))):
        assert check_import(data[:size], tmp_path, format, None)
    outcomes = []
    for _ in range(FLIPS):
        flipped = bytearray(data)
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        outcomes.append(check_import(bytes(flipped), tmp_path, format, expected))
    assert outcomes.count("") <= FLIPS // 2  # some bits are of no importance, as times in an archive


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """Return an export as JSON lines with changed records and items, and with a digest that is right again.

    The change gets each line but the last; what it returns replaces the line, and None drops it.
    """
    digest, lines, at_items = ExportDigest(), [], False
    for line in path.read_bytes().splitlines()[:-1]:
        changed = change(json.loads(line))
        if changed is None:
            continue
        lines.append(json.dumps(changed).encode() + b"\n")
        if not at_items:
            digest.add_line(lines[-1])
        at_items = at_items or lines[-1] == records.ITEMS_LINE
    text = b"".join(lines)
    header = json.loads(lines[0])
    try:
        buffer = path.with_name("rewritten.jsonl")
        buffer.write_bytes(text + b'{"record": "end"}\n')
        with closing(open_export(buffer)) as reader:
            list(reader.state_lines())
            for batch in reader.batches(ExportShape.of(header)):
                digest.add_items(batch)
    except (StillhashError, KeyError, TypeError, ValueError):
        pass  # refused before its digest is compared
    return text + digest.end_line()


INVALID: dict[str, tuple[str, str, Any]] = {
    "another format": ("stillhash_export", "stillhash_export", 2),
    "an unknown member of the header": ("stillhash_export", "kept_features", 1),
    "no settings": ("stillhash_export", "settings", {}),
    "negative rows": ("stillhash_export", "next_row", -1),
    "rows past the last": ("stillhash_export", "next_row", 10),
    "more items": ("stillhash_export", "items", 10**12),
    "fewer items": ("stillhash_export", "items", 1),
    "another version": ("stillhash_export", "version", 99),
    "items without codes": ("stillhash_export", "fitted", False),
    "an unknown record": ("functions", "record", "features"),
    "an unknown member": ("functions", "more", 1),
    "other hash functions": ("functions", "data", "AAAA"),
    "no base64": ("functions", "data", "%"),
    "an unreadable learner": ("learner", "data", "AAAA"),
    "a learner of no version": ("version", "learner", 77),
    "an unreadable model": ("version", "model", "AAAA"),
    "an unknown side": ("version", "side", "x"),
    "a text for a number": ("version", "rows", "x"),
    "a truth for a number": ("version", "rows", True),
    "control characters": ("version", "kind", "\x1b[2J"),
    "notes that are no object": ("version", "notes", []),
    "no history": ("history", "history", {}),
    "other histograms": ("label_agreement", "data", "AAAA"),
    "an unreadable alignment": ("alignment", "data", "AAAAAAAAAAAA"),
    "short features": ("pending", "features", "AAAA"),
    "a pending row of no item": ("pending", "row", 3),
    "labels out of order": ("pending", "labels", ["b", "a"]),
    "a short code": ("pending", "code", "AA=="),
    "a summed row of no item": ("summed_row", "row", 3),
    "a summed row with other labels": ("summed_row", "labels", ["zebra"]),
    "a summed row of a later version": ("summed_row", "version", 99),
    "a removal with a short code": ("removal", "code", "AA=="),
    "a removal with a short rescoring code": ("removal", "rescoring", "AA=="),
    "a removal with other labels": ("removal", "labels", ["zebra"]),
    "a short query": ("voted_query", "query", "AAAA"),
    "a vote on another query": ("vote", "digest", "AAAA"),
    "a vote of a later version": ("vote", "version", 99),
    "a vote that counts too much": ("vote", "vote", 1e9),
    "an item that is no id": ("vote", "item", ""),
    "a repeated id": ("id", "id", "x"),
    "no id": ("id", "id", None),
    "an id that is not printable": ("id", "id", "\x00"),
    "an id beyond 64 bits": ("id", "id", 2**63),
    "a repeated row": ("id", "row", 0),
    "a fraction of a row": ("id", "row", 0.5),
    "labels that are no list": ("id", "labels", "a"),
    "labels that are lists": ("id", "labels", [["a"]]),
    "labels that are true": ("id", "labels", [True]),
    "metadata that is no object": ("id", "metadata", ["a"]),
    "numbers that are not finite": ("id", "metadata", {"a": float("inf")}),
    "too much metadata": ("id", "metadata", {"a": "x" * (1 << 21)}),
    "no picture": ("id", "picture", "AAAA"),
    "a code of another length": ("id", "code", "AAAAAA=="),
    "a digest beyond 64 bits": ("id", "feature_digest", 2**63),
    "an unknown member of an item": ("id", "more", 1),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_values_are_refused(tmp_path: Path, exports: Any, case: str) -> None:
    kind, key, value = INVALID[case]
    changed = []

    def change(line: dict[str, Any]) -> dict[str, Any]:
        if not (kind in line or line.get("record") == kind) or line.get("id") == "x" or len(changed) == 2:
            return line
        changed.append(line)
        return {**line, key: value}

    data = rewritten(exports["fitted.jsonl"][0], change)
    assert changed
    assert check_import(data, tmp_path, "jsonl", None)


@pytest.mark.parametrize("dropped", ["functions", "learner", "version", "voted_query", "items"])
def test_missing_records_are_noticed(tmp_path: Path, exports: Any, dropped: str) -> None:
    data = rewritten(exports["fitted.jsonl"][0], lambda line: None if line.get("record") == dropped else line)
    assert check_import(data, tmp_path, "jsonl", None)


def test_a_rewritten_file_is_taken(tmp_path: Path, exports: Any) -> None:
    """Check the tests above: without a change, the same writer gives a file that is imported."""
    file, expected = exports["fitted.jsonl"]
    assert check_import(rewritten(file, lambda line: line), tmp_path, "jsonl", expected) == ""
    assert check_import(file.read_bytes().replace(b"0.25", b"0.50", 1), tmp_path, "jsonl", None)  # the digest tells


def changed_archive(file: Path, name: str, data: bytes) -> bytes:
    """Return an archive with another member of this name, and sound checksums."""
    archive = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.namelist():
            new.writestr(member, data if member == name else old.read(member))
        if name not in old.namelist():
            new.writestr(name, data)
    return archive.getvalue()


def npy(array: Any) -> bytes:
    data = io.BytesIO()
    np.save(data, array, allow_pickle=True)
    return data.getvalue()


def test_archives_with_other_arrays_are_refused(tmp_path: Path, exports: Any) -> None:
    file, _ = exports["fitted.npz"]
    with np.load(file) as arrays:
        codes, ends = arrays["codes"], arrays["labels_ends"]
    assert check_import(changed_archive(file, "more.npy", npy([1])), tmp_path, "npz", None)
    for name, array in (
        ("codes", codes[:-1]),
        ("codes", codes[:, :1]),
        ("codes", codes.astype(np.int16)),
        ("codes", np.asfortranarray(codes)),
        ("codes", np.array([{}], object)),
        ("codes", np.zeros((10**9, 0), np.uint8)),
        ("labels_ends", -ends),
        ("labels_ends", ends + 2**40),
        ("labels_ends", ends[::-1]),
        ("labels_data", np.zeros(0, np.uint8)),
        ("rows", np.zeros(len(codes), np.int64)),
    ):
        assert check_import(changed_archive(file, f"{name}.npy", npy(array)), tmp_path, "npz", None), name
    assert check_import(
        changed_archive(file, "codes.npy", b"\x93NUMPY\x01\x00\xff\xff{" + bytes(70_000)), tmp_path, "npz", None
    )


def test_tables_with_other_columns_are_refused(tmp_path: Path, exports: Any) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    file, _ = exports["fitted.parquet"]
    table, data = parquet.read_table(file), file.read_bytes()
    state = data[4 : data.index(records.ITEMS_LINE) + len(records.ITEMS_LINE)]
    for other in (table, table.drop(["picture"]), table.rename_columns(["x", *table.column_names[1:]]), table.slice(1)):
        parquet.write_table(other, tmp_path / "other.parquet")
        rest = (tmp_path / "other.parquet").read_bytes()
        (tmp_path / "other.parquet").unlink()
        assert not stillhash.is_export(file.with_suffix(".none"))
        assert check_import(rest, tmp_path, "parquet", None)
        assert check_import(b"PAR1" + state + rest[4:], tmp_path, "parquet", None)


def test_what_is_no_export(tmp_path: Path, exports: Any) -> None:
    for name, data in (("a.jsonl", b'{"id": 1, "features": [1, 2]}\n'), ("b.npz", npy([1])), ("c.parquet", b"")):
        (tmp_path / name).write_bytes(data)
        assert not stillhash.is_export(tmp_path / name)
        with pytest.raises(BadState, match=name):
            stillhash.import_export(tmp_path / name, tmp_path / "i")
    assert not stillhash.is_export(tmp_path) and not stillhash.is_export(tmp_path / "none")
    with pytest.raises(InvalidInput, match=r"^file:"):
        stillhash.import_export(tmp_path / "none", tmp_path / "i")
    (tmp_path / "i").mkdir()
    with pytest.raises(Conflict, match=r"^path:"):
        stillhash.import_export(exports["fitted.npz"][0], tmp_path / "i")
    with pytest.raises(ZeroDivisionError):
        stillhash.import_export(exports["fitted.npz"][0], tmp_path / "j", progress=lambda done, total: done // 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.npz", "c.parquet", "i"]


def test_the_audit_log_begins_with_the_import(tmp_path: Path, exports: Any) -> None:
    with stillhash.acting_as("ann"), stillhash.import_export(exports["fitted.npz"][0], tmp_path / "i") as copy:
        (entry,) = copy.audit()
        assert (entry.who, entry.what, entry.rows) == ("ann", "import", copy.count())
