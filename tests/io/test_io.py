"""Files of rows: every format gives the same rows, and errors name the file and the place."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhash.errors import InvalidInput, MissingExtra
from stillhash.io import format_id, parse_ids, parse_json_object, read_chunks, read_queries
from stillhash.io.rows import integer_or_text, number_or_text

DIM = 3
FEATURES = np.random.default_rng(0).standard_normal((7, DIM)).astype(np.float32)
IDS = ["a", "b", 3, "d|e", -5, "007", "g"]
LABELS: list[list[Any]] = [["cat"], [], ["cat", 4], ["dog"], [4], ["x y"], []]
METADATA: list[dict[str, Any] | None] = [{"year": 1990 + r, "who": f"n, {r}", "part": 0.5 * r} for r in range(7)]
needs_pyarrow = pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")


def as_jsonl(path: Path) -> None:
    rows = zip(IDS, FEATURES.tolist(), LABELS, METADATA, strict=True)
    names = "id", "features", "labels", "metadata"
    path.write_text(
        "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows) + "\n\n", encoding="utf-8"
    )


def as_csv(path: Path, *, array: bool = False) -> None:
    header = ["who", "id", *(["features"] if array else ["f1", "f0", "f2"]), "labels", "year", "part"]
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for id_, x, labels, metadata in zip(IDS, FEATURES.tolist(), LABELS, METADATA, strict=True):
            assert metadata is not None
            vector = [json.dumps(x)] if array else [x[1], x[0], x[2]]
            writer.writerow(
                [metadata["who"], id_, *vector, "|".join(map(str, labels)), metadata["year"], metadata["part"]]
            )


def as_npz(path: Path) -> None:
    labels = ["|".join(map(str, some)) for some in LABELS]
    metadata = list(map(json.dumps, METADATA))
    np.savez(path, ids=list(map(str, IDS)), features=FEATURES, labels=labels, metadata=metadata)


def as_parquet(path: Path, *, columns: bool = False) -> None:
    import pyarrow
    import pyarrow.parquet

    features = {f"f{c}": FEATURES[:, c] for c in range(DIM)} if columns else {"features": FEATURES.tolist()}
    others = {name: [(one or {})[name] for one in METADATA] for name in ("year", "who", "part")}
    metadata = others if columns else {"metadata": METADATA}
    labels = ["|".join(map(str, some)) for some in LABELS]
    ids = list(map(str, IDS))
    pyarrow.parquet.write_table(pyarrow.table({"id": ids, "labels": labels, **features, **metadata}), path)


def read(path: Path, size: int = 3, **options: Any) -> tuple[list[Any], np.ndarray, list[Any], list[Any]]:
    chunks = list(read_chunks(path, DIM, size, **{"require_ids": True, "first_id": 0, **options}))
    assert all(len(chunk.features) <= size for chunk in chunks) and chunks[-1].progress > 0.99
    features = np.concatenate([chunk.features for chunk in chunks]).astype(np.float32)
    ids, labels, metadata = (
        [x for c in chunks for x in (getattr(c, name) or [])] for name in ("ids", "labels", "metadata")
    )
    return ids, features, labels, metadata


WRITERS: dict[str, Callable[[Path], None]] = {
    "rows.jsonl": as_jsonl,
    "rows.csv": as_csv,
    "array.csv": lambda path: as_csv(path, array=True),
    "rows.npz": as_npz,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_rows(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    for size in (1, 3, 7, 100):
        ids, features, labels, metadata = read(tmp_path / name, size)
        assert ids == IDS and list(map(type, ids)) == list(map(type, IDS))
        np.testing.assert_array_equal(features, FEATURES)
        assert labels == LABELS and metadata == METADATA


@needs_pyarrow
@pytest.mark.parametrize("columns", [False, True])
def test_parquet_gives_the_same_rows(columns: bool, tmp_path: Path) -> None:
    as_parquet(tmp_path / "rows.parquet", columns=columns)
    ids, features, labels, metadata = read(tmp_path / "rows.parquet")
    assert ids == list(map(str, IDS))  # text stays text
    np.testing.assert_array_equal(features, FEATURES)
    assert labels == LABELS and metadata == METADATA


@needs_pyarrow
def test_parquet_types(tmp_path: Path) -> None:
    import datetime

    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "rows.parquet"
    kind = pyarrow.list_(pyarrow.float32(), DIM)
    features = pyarrow.array(FEATURES.tolist(), kind)
    columns = {"id": range(7), "labels": LABELS[:1] * 7, "day": [datetime.date(2020, 1, 2)] * 6 + [None]}
    pyarrow.parquet.write_table(pyarrow.table({"features": features, **columns}), path)
    ids, rows, labels, metadata = read(path)
    assert ids == list(range(7)) and labels == [["cat"]] * 7
    assert metadata == [{"day": "2020-01-02"}] * 6 + [None]
    np.testing.assert_array_equal(rows, FEATURES)
    pyarrow.parquet.write_table(pyarrow.table({"features": FEATURES.tolist()}), path)
    assert len(next(read_chunks(path, DIM, 10)).features) == 7
    with pytest.raises(InvalidInput, match=r"^rows.parquet, row 0: id"):
        read(path)
    pyarrow.parquet.write_table(pyarrow.table({"id": [1, 2], "features": [[1.0, 2.0, 3.0], None]}), path)
    with pytest.raises(InvalidInput, match=r"^rows.parquet, row 1: features"):
        read(path)
    path.write_bytes(b"not parquet at all")
    with pytest.raises(InvalidInput, match=r"^rows.parquet: "):
        read(path)


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "rows.parquet").touch()
    with pytest.raises(MissingExtra, match=r"pip install 'stillhash\[parquet\]'"):
        read(tmp_path / "rows.parquet")


def test_npy_rows_are_numbered_or_have_side_files(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, FEATURES)
    assert read(path, first_id=40)[0] == list(range(40, 47))
    np.save(tmp_path / "labels.npy", np.eye(7, 4, dtype=np.uint8))
    (tmp_path / "ids.txt").write_text("\n".join(map(str, IDS)))
    (tmp_path / "about.jsonl").write_text("\n".join(map(json.dumps, [*METADATA[:6], None])))
    files = {"ids": "ids.txt", "labels": "labels.npy", "metadata": "about.jsonl"}
    ids, _, labels, metadata = read(path, **{name: tmp_path / file for name, file in files.items()})
    assert ids == IDS and labels == [[0], [1], [2], [3], [], [], []] and metadata == [*METADATA[:6], None]
    np.save(tmp_path / "ids.npy", np.arange(7) * 10)
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, LABELS)))
    (tmp_path / "labels.txt").write_text("\n".join("|".join(map(str, some)) for some in LABELS) + "\n")
    for name in ("labels.jsonl", "labels.txt"):
        ids, _, labels, _ = read(path, ids=tmp_path / "ids.npy", labels=tmp_path / name)
        assert ids == list(range(0, 70, 10)) and labels == LABELS
    np.save(tmp_path / "texts.npy", np.array(list(map(str, IDS))))
    assert read(path, ids=tmp_path / "texts.npy")[0] == IDS
    (tmp_path / "ids.txt").write_text("a\n\nc\nd\ne\nf\ng\n")
    with pytest.raises(InvalidInput, match=r"^ids.txt, line 2: id"):
        read(path, ids=tmp_path / "ids.txt")
    with pytest.raises(InvalidInput, match=r"^rows.npy, row 0: id"):
        read(path, first_id=None)


def test_side_files_must_match_the_rows(tmp_path: Path) -> None:
    path, ids = tmp_path / "rows.npy", tmp_path / "ids.txt"
    np.save(path, FEATURES)
    ids.write_text("1\n2\n")
    with pytest.raises(InvalidInput, match=r"^ids.txt: .*7.*2"):
        read(path, ids=ids)
    with pytest.raises(InvalidInput, match=r"^--ids"):
        read(path, ids=tmp_path / "ids.xml")
    with pytest.raises(InvalidInput, match=r"labels.txt: "):
        read(path, labels=tmp_path / "labels.txt")
    np.save(tmp_path / "labels.npy", np.full((7, 2), 5))
    with pytest.raises(InvalidInput, match=r"^labels.npy, row 0: labels"):
        read(path, labels=tmp_path / "labels.npy")
    as_jsonl(tmp_path / "rows.jsonl")
    ids.write_text("\n".join(map(str, range(7))))
    with pytest.raises(InvalidInput, match=r"^rows.jsonl, line 1: ids"):
        read(tmp_path / "rows.jsonl", ids=ids)


GOOD = '{"id": 1, "features": [1, 2, 3]}\n'
BAD = {
    "rows.jsonl": [
        (GOOD + "{oops\n", "rows.jsonl, line 2: "),
        (GOOD + "[1, 2]\n", "rows.jsonl, line 2: .*features"),
        (GOOD + '{"id": 2}\n', "rows.jsonl, line 2: .*features"),
        (GOOD + '{"features": [1, 2, 3]}\n', "rows.jsonl, line 2: id"),
        (GOOD + GOOD, "rows.jsonl, line 2: id: .*line 1"),
        (GOOD + '{"id": 2, "features": [1, 2]}\n', "rows.jsonl, line 2: features: .*3.*2"),
        (GOOD + '{"id": 2, "features": [1, 2, NaN]}\n', r"rows.jsonl, line 2: features\[2\]: .*nan"),
        (GOOD + '{"id": 2, "features": [1, 2, "3"]}\n', "rows.jsonl, line 2: features: "),
        (GOOD + '{"id": 2, "features": [1, [2], 3]}\n', "rows.jsonl, line 2: features: "),
        (GOOD + '{"id": 2, "features": [1, 2, 3], "tags": []}\n', "rows.jsonl, line 2: .*'tags'"),
        (GOOD + '{"id": 2, "features": [1, 2, 3], "metadata": 7}\n', "rows.jsonl, line 2: metadata: .*7"),
        ("\n" + GOOD + "\xff\xfe", "rows.jsonl, line 3: .*UTF-8"),
    ],
    "rows.csv": [
        ("", "rows.csv: columns: .*none"),
        ("id,x\n1,2\n", "rows.csv: columns: .*id, x"),
        ("id,f0,f2,f3\n", "rows.csv: columns: .*f1"),
        ("id,f0,features\n", "rows.csv: columns: .*f0, features"),
        ("id,f0,f1,f2,f0\n", "rows.csv: columns: .*'f0'"),
        ("f0,f1,f2\n1,2,3\n", "rows.csv, line 2: id"),
        ("id,f0,f1,f2\n1,1,2,3\n,1,2,3\n", "rows.csv, line 3: id"),
        ("id,f0,f1,f2\n1,1,2,3\n2,1,2\n", "rows.csv, line 3: .*4.*3"),
        ("id,f0,f1,f2\n1,1,2,three\n", "rows.csv, line 2: f2: .*'three'"),
        ("id,f0,f1,f2\n1,1,2,inf\n", r"rows.csv, line 2: features\[2\]: .*inf"),
        ('id,f0,f1,f2,m\n1,1,2,3,"two\nlines"\n2,1,,3,x\n', "rows.csv, line 4: f1: .*''"),
        ('id,features\n1,"[1, 2"\n', "rows.csv, line 2: features: "),
        ('id,features\n1,"[1, 2]"\n', "rows.csv, line 2: features: .*3.*2"),
        ('id,f0,f1,f2\n1,1,2,"3\n', "rows.csv, line 2: "),
        ("id,f0,f1,f2,metadata\n1,1,2,3,7\n", "rows.csv, line 2: metadata: .*7"),
    ],
    "rows.npy": [("no array", "rows.npy: ")],
    "rows.npz": [("no arrays", "rows.npz: ")],
    "rows.txt": [("", "rows.txt: ")],
}


@pytest.mark.parametrize(("name", "text", "message"), [(n, t, m) for n, some in BAD.items() for t, m in some])
def test_errors_name_file_place_and_argument(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidInput, match=message):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"features": np.zeros(3)}, "rows.npz: features: .*1"),
        ({"ids": np.arange(3)}, "rows.npz: columns: .*features"),
        ({"features": np.zeros((2, 3)), "ids": np.arange(3)}, "rows.npz: ids: .*2.*3"),
        ({"features": np.zeros((2, 3)), "other": np.arange(2)}, "rows.npz: .*'other'"),
        ({"features": np.full((2, 3), "x")}, "rows.npz, row 0: features: "),
        ({"features": np.zeros((2, 3)), "labels": np.array([["a"], []], dtype=object)}, "rows.npz: "),
        ({"features": np.zeros((2, 3)), "metadata": np.array(["{}", "{"])}, "rows.npz, row 1: metadata: "),
    ],
)
def test_invalid_arrays_are_refused(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", **arrays)
    with pytest.raises(InvalidInput, match=message):
        read(tmp_path / "rows.npz")


def test_chunks_before_an_error_are_yielded(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,f0,f1,f2\n" + "".join(f"{r},1,2,3\n" for r in range(5)) + "x,y\n")
    chunks = read_chunks(tmp_path / "rows.csv", DIM, 2, require_ids=True)
    assert [next(chunks).ids, next(chunks).ids] == [[0, 1], [2, 3]]
    with pytest.raises(InvalidInput, match="line 7"):
        next(chunks)


def test_queries_from_text_stdin_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = FEATURES[0].tolist(), FEATURES[:2].tolist()
    (tmp_path / "q.json").write_text(json.dumps(two))
    np.save(tmp_path / "q.npy", FEATURES[:2])
    for name in ("q.json", "q.npy"):
        np.testing.assert_allclose(read_queries(str(tmp_path / name), DIM), FEATURES[:2])
    assert read_queries(json.dumps(one), DIM).shape == (1, DIM)
    for text in (json.dumps(two, indent=1), "\n".join(map(json.dumps, two)) + "\n"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))
        np.testing.assert_allclose(read_queries("-", DIM), FEATURES[:2])
    for text, message in (
        ("[]", "^vector: "),
        ("[1, 2]", "^vector 0: features: .*3.*2"),
        ("[1, 2", "^vector: "),
        ("[1] 7", "^vector: "),
    ):
        with pytest.raises(InvalidInput, match=message):
            read_queries(text, DIM)
    (tmp_path / "none.jsonl").touch()
    with pytest.raises(InvalidInput, match=r"^none.jsonl: "):
        read_queries(str(tmp_path / "none.jsonl"), DIM)
    with pytest.raises(InvalidInput, match=r"no.json: "):
        read_queries(str(tmp_path / "no.json"), DIM)


def test_options_that_hold_json() -> None:
    assert parse_json_object('{"a": 1}', "where") == {"a": 1} and parse_json_object(None, "where") is None
    for text in ("[1]", "{a: 1}"):
        with pytest.raises(InvalidInput, match=r"^where: "):
            parse_json_object(text, "where")


@given(st.integers(-(2**70), 2**70))
def test_whole_numbers_of_64_bits_are_integers(number: int) -> None:
    assert integer_or_text(str(number)) == (number if -(2**63) <= number < 2**63 else str(number))
    assert integer_or_text(f'"{number}"') == str(number)
    assert number_or_text(str(number)) == number


@given(st.integers(-(2**63), 2**63 - 1) | st.text(min_size=1).filter(str.isprintable))
def test_ids_are_read_as_they_are_printed(name: str | int) -> None:
    assert parse_ids([format_id(name)]) == [name]
    assert parse_ids([format_id(str(name))]) == [str(name)]


@given(st.text())
def test_other_texts_are_unchanged(text: str) -> None:
    assert str(integer_or_text(text)) == text or text[0] == text[-1] == '"'
    assert isinstance(number_or_text(text), str) or float(text) == float(number_or_text(text))


@pytest.mark.parametrize("text", ["007", "-0", "1_000", "+5", "nan", "1e999", "٣", "0x10", "1.", ".5", ""])
def test_texts_that_only_resemble_numbers_stay_texts(text: str) -> None:
    assert integer_or_text(text) == text
    assert number_or_text(text) == (0 if text == "-0" else text)
