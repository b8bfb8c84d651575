"""Rescoring codes: written with their items, never changed, and the same in every file that holds them."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import Collection
from stillhash.collection.storage.database import stored_format
from stillhash.collection.storage.row_arrays import RowArrayTable
from stillhash.collection.storage.segments import CodeTable
from stillhash.collection.storage.store import Store
from stillhash.errors import BadState, Conflict, InvalidInput
from stillhash.numeric.rescoring import Rescorer
from tests.collection.fixtures import BITS, DIM, INIT, begin, rescoring_codes, some_rows

MORE = 700
Added = dict[Any, np.ndarray]  # features by id


def encoded(collection: Collection, X: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return what the rescoring codes of features should be, marked where the codes hold labels."""
    with collection._store.reading() as connection:
        functions = collection._trainer.functions(connection)
    assert functions is not None
    rescorer = Rescorer(DIM, collection.stats()["rescore_bits"])
    return rescorer.mark(rescorer.encode(functions.prepare(X)), (codes != functions.encode(X)).any(axis=1))


def check(collection: Collection, added: Added) -> None:
    """Check that items have the codes of their features, and nothing is wrong."""
    ids = list(added)
    codes, known = rescoring_codes(collection, ids)
    assert known.all() and len(codes) == len(ids) == collection.count() and collection.verify() == []
    short = collection.codes(ids)
    assert short is not None
    np.testing.assert_array_equal(codes, encoded(collection, np.array(list(added.values())), short))


def fill(path: Path, **settings: Any) -> tuple[Collection, Added]:
    """Create a collection with items that waited for hash functions, and later ones."""
    collection, _ = begin(path, 0, **settings)
    added: Added = {}
    for start in range(0, INIT, 100):
        put(collection, added, range(start, start + 100), seed=start)
    put(collection, added, [f"m{r}" for r in range(MORE)], seed=7)
    return collection, added


def put(collection: Collection, added: Added, ids: Any, seed: int) -> None:
    rows = some_rows(len(ids), seed=seed)
    collection.upsert(list(ids), *rows)
    for id_, x in zip(ids, rows.X, strict=True):
        added.pop(id_, None)
        added[id_] = x


@pytest.mark.medium
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_codes_are_those_of_what_was_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    monkeypatch.setattr(CodeTable, "segment_rows", 256)
    collection, added = fill(tmp_path / "c", rescore_bits=bits)
    check(collection, added)
    collection.seal()
    check(collection, added)
    put(collection, added, [*range(40), *(f"n{r}" for r in range(90))], seed=8)
    for id_ in [*range(100, 200, 3), "m5", "n7"]:
        collection.delete([id_])
        del added[id_]
    check(collection, added)
    collection.close()
    with stillhash.open(tmp_path / "c", rescore_bits=bits) as collection:
        check(collection, added)
        collection.relabel(["m1"], [["a"]])
        collection.learn(*some_rows(50, seed=9)[:2])
        collection.snapshot(tmp_path / "before")
        collection.compact()
        check(collection, added)
        collection.forget(["m2"])
        del added["m2"]
        check(collection, added)
        collection.snapshot(tmp_path / "copy")
        files = {file.suffix for file in (tmp_path / "c" / "segments").iterdir()}
        assert files == {".tiles", ".columns", ".rescoring"}
    with stillhash.open(tmp_path / "copy", read_only=True) as copy:
        check(copy, added)
    with stillhash.open(tmp_path / "before", read_only=True) as copy:
        assert copy.verify() == [] and rescoring_codes(copy, ["m2"])[1].all()


def test_kept_features_and_codes_agree(tmp_path: Path) -> None:
    """Codes are of the features that are kept, which are rounded, so that they can be built from those again."""
    collection, added = fill(tmp_path / "c", keep_features=True)
    for _ in range(2):
        kept, codes = collection.reconstruct(list(added)), collection.codes(list(added))
        assert codes is not None
        np.testing.assert_array_equal(rescoring_codes(collection, list(added))[0], encoded(collection, kept, codes))
        collection.compact()


@pytest.mark.parametrize("bits", [0, 2])
def test_only_stores_with_codes_have_format_7(tmp_path: Path, bits: int) -> None:
    collection, _ = fill(tmp_path / "c", rescore_bits=bits)
    assert stored_format(tmp_path / "c") == (7 if bits else 5)
    collection.seal()
    collection.delete([1, 2])
    collection.compact()
    assert stored_format(tmp_path / "c") == (7 if bits else 6)
    assert (collection._store.rescoring is not None) == (collection._store.rescorer is not None) == (bits > 0)
    assert len(list((tmp_path / "c" / "segments").glob("*.rescoring"))) == (1 if bits else 0)


def test_which_collections_have_codes(tmp_path: Path) -> None:
    def bits_of(name: str, *args: Any, **settings: Any) -> int:
        with stillhash.open(tmp_path / name, *args, **settings) as collection:
            return int(collection.stats()["rescore_bits"])

    assert bits_of("a", DIM, BITS) == bits_of("a") == bits_of("a", rescore_bits=4) == 4
    assert bits_of("many", 512, BITS) == 4 and bits_of("more", 513, BITS) == 2
    assert bits_of("b", DIM, BITS, rescore_bits=0) == bits_of("b") == 0
    assert bits_of("c", bits=64, codes_only=True) == bits_of("d", bits=64, codes_only=True, rescore_bits=0) == 0
    assert bits_of("e", DIM, BITS, params={"unit_norm": False}) == 0
    assert bits_of("f", DIM, BITS, method="ohsl", rescore_bits=np.int64(8)) == 8
    for name, bits in (("a", 2), ("a", 0), ("b", 2)):
        with pytest.raises(Conflict, match=r"^rescore_bits"):
            stillhash.open(tmp_path / name, rescore_bits=bits)
    refused: list[dict[str, Any]] = [{"rescore_bits": bits} for bits in (3, -1, 16, "2", True)]
    refused += [{"params": {"unit_norm": False}, "rescore_bits": 2}]
    for settings in refused:
        with pytest.raises(InvalidInput, match="rescore_bits"):
            stillhash.open(tmp_path / "g", DIM, BITS, **settings)
    with pytest.raises(InvalidInput, match=r"^rescore_bits"):
        stillhash.open(tmp_path / "g", bits=64, codes_only=True, rescore_bits=1)
    assert not (tmp_path / "g").exists()


def test_damage_is_found_and_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CodeTable, "segment_rows", 250)
    path = tmp_path / "c"
    collection, added = fill(path, rescore_bits=8)
    ids = list(added)
    with closing(collection):
        collection.compact()
        codes, _ = rescoring_codes(collection, ids)
    file, *_ = sorted((path / "segments").glob("*.rescoring"))
    sound = file.read_bytes()
    file.write_bytes(sound[:5000] + bytes([sound[5000] ^ 4]) + sound[5001:])
    with stillhash.open(path) as collection:
        with pytest.raises(BadState, match="rescoring: damaged"):
            rescoring_codes(collection, ids)
        assert any("rescoring" in problem for problem in collection.verify())
    assert "rows have lost their rescoring codes" in stillhash.repair(path).actions[0]
    with stillhash.open(path) as collection:
        again, known = rescoring_codes(collection, ids)
        lost = np.flatnonzero(~known)
        assert 0 < len(lost) <= 250 < len(ids)
        assert collection.verify() == [] and (again[lost] == 0xFF).all() and (again[known] == codes[known]).all()
        collection.delete([ids[0]])
        collection.compact()  # what is lost stays lost, and nothing else is
        after, still = rescoring_codes(collection, ids[1:])
        assert (after == again[1:]).all() and (still == known[1:]).all()
        collection.snapshot(tmp_path / "i")
    with stillhash.open(tmp_path / "i") as copy:
        assert copy.verify() == [] and (rescoring_codes(copy, ids[1:])[0] == after).all()
    for file in (path / "segments").glob("*.rescoring"):
        file.unlink()
    with stillhash.open(path) as collection:
        assert "missing" in collection.verify()[0]
        with pytest.raises(BadState, match="rescoring: missing"):
            rescoring_codes(collection, ids[1:])
        with pytest.raises(BadState, match="rescoring: missing"):
            collection.search(some_rows(1).X[0], 5)
    assert "rows have lost their rescoring codes" in stillhash.repair(path).actions[0]
    with stillhash.open(path) as collection:
        assert collection.verify() == [] and not rescoring_codes(collection, ids[1:])[1].any()
        assert collection.search(some_rows(1).X[0], 5).hits


@pytest.mark.parametrize("other", ["of another segment", "of another collection", "features"])
def test_other_files_do_not_pass_for_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    monkeypatch.setattr(CodeTable, "segment_rows", 250)
    paths = [tmp_path / "c", tmp_path / "d"]
    for path in paths:
        collection, added = fill(path, keep_features=True, rescore_bits=2)
        collection.seal()
        collection.close()
    files = [sorted((path / "segments").glob("*.rescoring")) for path in paths]
    sources = {"of another segment": files[0][1], "of another collection": files[1][0]}
    target = files[0][0]
    shutil.copyfile(sources.get(other, target.with_suffix(".features")), target)
    with stillhash.open(paths[0]) as collection:
        assert [target.name in problem for problem in collection.verify()] == [True]
        with pytest.raises(BadState, match="expected the rescoring codes of segment"):
            rescoring_codes(collection, list(added))
    stillhash.repair(paths[0])
    with stillhash.open(paths[0]) as collection:
        known = rescoring_codes(collection, list(added))[1]
        assert collection.verify() == [] and (~known).sum() == 250


@pytest.mark.parametrize("keep_features", [True, False])
def test_forgetting_leaves_no_code_where_all_unsealed_rows_are_forgotten(tmp_path: Path, keep_features: bool) -> None:
    collection, _ = fill(tmp_path / "c", keep_features=keep_features, rescore_bits=8)
    collection.seal()
    secret = some_rows(2, seed=99).X
    collection.add(["s", "t"], secret)
    codes = rescoring_codes(collection, ["s", "t"])[0]
    parts = [*codes, *secret.astype("<f2")] if keep_features else [*codes]

    def held() -> list[str]:
        data = {file.name: file.read_bytes() for file in (tmp_path / "c").rglob("*") if file.is_file()}
        return [name for name in data if any(part.tobytes() in data[name] for part in parts)]

    assert held()
    collection.forget(["s", "t"])
    assert not held() and collection.verify() == []
    collection.close()
    assert not held()


@pytest.mark.parametrize(
    ("dim", "bits", "rows"), [(DIM, 2, 131_072), (8, 0, 131_072), (4096, 2, 32_640), (1 << 17, 8, 1024)]
)
def test_unsealed_codes_are_bounded(tmp_path: Path, dim: int, bits: int, rows: int) -> None:
    with stillhash.open(tmp_path / "c", dim, BITS, rescore_bits=bits) as collection:
        assert collection._store.seal_rows == rows


def test_so_many_unsealed_rows_are_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stillhash.collection.storage.store.MIN_SEAL_ROWS", 100)
    monkeypatch.setattr("stillhash.collection.storage.store.MAX_UNSEALED_BYTES", 350 * Rescorer(DIM, 2).width)
    collection, added = fill(tmp_path / "c", rescore_bits=2)
    assert collection._store.seal_rows == 350
    put(collection, added, range(1000, 1060), seed=4)
    assert (collection.stats()["segments"], collection.stats()["unsealed"]) == (2, 0)
    check(collection, added)


def test_a_failed_write_leaves_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection, added = fill(tmp_path / "c")
    with monkeypatch.context() as patch:
        patch.setattr(RowArrayTable, "add", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            collection.add(["x"], *some_rows(1, seed=1))
    check(collection, added)
    collection.close()
    with closing(Store(tmp_path / "c", writer=False)) as store, store.reading() as connection:
        assert store.rescoring is not None
        assert not store.rescoring.read(connection, np.array([INIT + MORE, INIT + MORE + 1]))[1].any()
