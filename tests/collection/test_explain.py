"""Explanations: contributions add up, and ranks are those of plain rankings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhash import Collection
from stillhash.errors import InvalidInput
from tests.collection.fixtures import BITS, DIM, begin, some_rows
from tests.collection.reference import Twin
from tests.support.toys import toy

QUERIES = toy(4, DIM, 4, seed=77).X


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Collection, Twin]]:
    collection, twin = begin(tmp_path_factory.mktemp("explain") / "c")
    collection.seal()
    for seed in (1, 2):
        ids, rows = [f"{seed}/{r}" for r in range(90)], some_rows(90, seed)
        collection.add(ids, *rows)
        twin.put(ids, *rows)
    collection.delete(range(20))
    twin.delete(range(20))
    yield collection, twin
    collection.close()


@pytest.mark.parametrize("where", [None, {"odd": True}, {"n": -1}])
@pytest.mark.parametrize("other", [True, 1, 2, 3])
def test_bits_add_up_and_ranks_are_right(pair: tuple[Collection, Twin], other: Any, where: Any) -> None:
    collection, twin = pair
    answers = collection.search(QUERIES, 15, where=where, explain=other)
    plain = collection.search(QUERIES, 15, where=where)
    for query, answer, without in zip(QUERIES, answers, plain, strict=True):
        earlier = {id_: (place, score) for place, (score, id_) in enumerate(twin.ranking(query, where, int(other)), 1)}
        assert [(hit.id, hit.score) for hit in answer.hits] == [(hit.id, hit.score) for hit in without.hits]
        for rank, hit in enumerate(answer.hits, 1):
            explanation = hit.explanation
            assert explanation is not None and len(explanation.bits) == BITS
            assert np.float32(sum(explanation.bits)) == np.float32(hit.score)
            assert np.allclose(np.reshape(explanation.bits, (-1, 8)).sum(axis=1), explanation.groups)
            assert explanation.rank == rank and explanation.other_version == int(other)
            assert (explanation.other_rank, explanation.other_score) == earlier[hit.id]
        assert all(hit.explanation is None for hit in without.hits)


def test_one_query_and_an_earlier_version(pair: tuple[Collection, Twin]) -> None:
    collection, twin = pair
    answer = collection.search(QUERIES[0], 3, version=2, explain=twin.version)
    assert answer.version == 2 and [hit.explanation.other_version for hit in answer.hits] == [twin.version] * 3


def test_unknown_version_is_refused(pair: tuple[Collection, Twin]) -> None:
    collection, _ = pair
    for bad in (99, "x", 1.5):
        with pytest.raises(InvalidInput, match=r"^version"):
            collection.search(QUERIES[0], explain=bad)


def test_before_hash_functions_there_is_nothing_to_explain(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 20)
    answer = collection.search(QUERIES[0], explain=True)
    assert len(answer.hits) == 10 and all(hit.explanation is None for hit in answer.hits)
    collection.close()
