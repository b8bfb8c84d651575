"""Duplicates in a collection: those of brute force over its codes, with filters and deleted items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash.errors import InvalidInput, NotFitted
from stillhash.numeric import reference_groups
from tests.collection.fixtures import begin
from tests.collection.test_codes_only import some_codes


def expected_groups(names: list[Any], codes: Any, distance: int) -> list[list[Any]]:
    groups: dict[int, list[Any]] = {}
    for name, first in zip(names, reference_groups.near_groups(codes, distance).tolist(), strict=True):
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
    waiting, _ = begin(tmp_path / "d", 20)
    with waiting, pytest.raises(NotFitted):
        waiting.duplicates()
