"""Duplicates in a collection: those of brute force over its codes, with filters and deleted items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash.errors import InvalidInput, NotFitted
from stillhash.numeric import reference
from tests.collection.fixtures import begin
from tests.collection.test_codes_only import some_codes


def expected_groups(names: list[Any], codes: Any, distance: int) -> list[list[Any]]:
    groups: dict[int, list[Any]] = {}
    for name, first in zip(names, reference.near_groups(codes, distance).tolist(), strict=True):
        groups.setdefault(first, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def test_duplicates_of_ready_codes(tmp_path: Path) -> None:
    stored = some_codes(400)
    names: list[Any] = [f"n{r}" if r % 2 else r for r in range(400)]
    with stillhash.open(tmp_path / "c", bits=44, codes_only=True) as one:
        assert one.duplicates() == []
        one.add(names[:300], stored[:300], None, [{"r": r} for r in range(300)])
        one.seal()
        one.add(names[300:], stored[300:])
        one.delete(names[::7])
        left = [r for r in range(400) if r % 7]
        for distance in (0, 1, 2, 4, 44):
            expected = expected_groups([names[r] for r in left], stored[left], distance)
            assert one.duplicates(distance, limit=10_000) == expected
            assert one.duplicates(distance, limit=2) == expected[:2]
        some = [r for r in left if r < 100]
        assert one.duplicates(3, where={"r": {"$lt": 100}}) == expected_groups(
            [names[r] for r in some], stored[some], 3
        )
        shares: list[float] = []
        one.duplicates(3, progress=shares.append)
        assert shares[-1] == 1.0
        for bad in ({"distance": -1}, {"distance": 45}, {"distance": "3"}, {"limit": 0}):
            with pytest.raises(InvalidInput):
                one.duplicates(**bad)
    with stillhash.open(tmp_path / "c", read_only=True) as reader:
        assert reader.duplicates(2, limit=10_000) == expected_groups([names[r] for r in left], stored[left], 2)


def test_duplicates_of_features(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 320)
    with collection:
        codes = collection.codes(range(320))
        assert collection.duplicates(1, limit=10_000) == expected_groups(list(range(320)), np.asarray(codes), 1)
    waiting, _ = begin(tmp_path / "d", 20, rescore_bits=0)
    with waiting, pytest.raises(NotFitted):
        waiting.duplicates()


def copied_rows(n: int, copies: int, dim: int = 256) -> tuple[Any, list[str]]:
    """Return features with slightly changed copies at their end, and labels that many rows share."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(5, dim))
    label = rng.integers(5, size=n + copies)
    X = centres[label] + rng.normal(size=(n + copies, dim))
    X[n:] = X[:copies] + 0.1 * rng.normal(size=(copies, dim))
    label[n:] = label[:copies]
    return X.astype(np.float32), ["abcde"[one] for one in label]


def test_items_of_the_same_labels_are_no_duplicates(tmp_path: Path) -> None:
    X, labels = copied_rows(600, 40)
    expected = [[row, 600 + row] for row in range(40)]
    with stillhash.open(tmp_path / "c", 256, init_rows=300) as one:
        one.add(range(640), X, [[label] for label in labels], [{"r": row} for row in range(640)])
        one.flush()
        assert one.duplicates() == one.duplicates(cosine=0.97) == expected
        assert one.duplicates(limit=3) == expected[:3]
        assert any(len(group) > 2 for group in one.duplicates(distance=14))  # labels join others
        one.seal()
        one.delete([0, 601])
        assert one.duplicates() == expected[2:]
        assert one.duplicates(where={"r": {"$lt": 620}}) == expected[2:20]
        one.compact()
        one.add([1000], X[5:6], [[labels[5]]])
        assert one.duplicates()[3] == [5, 605, 1000]
        shares: list[float] = []
        assert one.duplicates(cosine=1, progress=shares.append) == [[5, 1000]]
        assert shares[-1] == 1.0
        for bad in ({"cosine": 0.4}, {"cosine": 1.1}, {"cosine": "0.97"}, {"cosine": 0.9, "distance": 1}):
            with pytest.raises(InvalidInput):
                one.duplicates(**bad)


def test_items_that_wait_for_hash_functions_are_compared_by_their_features(tmp_path: Path) -> None:
    X, _ = copied_rows(50, 10)
    with stillhash.open(tmp_path / "c", 256) as one:
        assert one.duplicates() == []
        one.add(range(60), X, None, [{"r": row} for row in range(60)])
        assert one.duplicates(cosine=0.98) == [[row, 50 + row] for row in range(10)]
        assert one.duplicates(where={"r": {"$gt": 4}}) == [[row, 50 + row] for row in range(5, 10)]
        with pytest.raises(NotFitted):
            one.duplicates(distance=3)


def test_without_rescoring_codes_duplicates_are_by_distance(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "c", bits=44, codes_only=True) as one:
        one.add(range(100), some_codes(100))
        assert one.duplicates() == one.duplicates(3)
        with pytest.raises(InvalidInput):
            one.duplicates(cosine=0.97)
