"""The search backend of MTEB: exact, in parts, for reranking, and in an evaluation of MTEB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhash.errors import InvalidInput, NotFitted
from stillhash.hashers import Tally
from stillhash.numeric.codes import signs
from tests.support.guides import run_guide
from tests.support.toys import toy

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of libraries that MTEB uses
]
mteb: Any = pytest.importorskip("mteb", reason="MTEB is an extra")
torch: Any = pytest.importorskip("torch", reason="MTEB needs torch")
from stillhash.integrations.mteb import StillhashSearchIndex  # noqa: E402

X, _ = toy(500, 24)
NAMES = [f"d{row}" for row in range(500)]


def unused(*_: Any) -> Any:
    raise AssertionError("the similarity of the model")


def filled(bits: int = 64) -> StillhashSearchIndex:
    index = StillhashSearchIndex(bits)
    index.add_documents(X[:300], NAMES[:300])
    index.add_documents(torch.from_numpy(X[300:]), NAMES[300:])
    return index


@settings(max_examples=20)
@given(st.sampled_from([8, 33, 64, 256]), st.integers(1, 600), st.integers(0, 2**32))
def test_search_ranks_by_weights_and_signs(bits: int, k: int, seed: int) -> None:
    queries = X[:3] + np.random.default_rng(seed).normal(size=(3, 24)).astype(np.float32)
    hasher = Tally(bits).fit(X[:300])
    plain = hasher.weigh(queries) @ signs(hasher.encode(X), bits).T
    scores, rows = filled(bits).search(queries, k, unused)
    assert all(len(each) == min(k, 500) for each in rows)
    np.testing.assert_allclose(scores, -np.sort(-plain, axis=1)[:, :k], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(plain, np.array(rows), 1), scores, rtol=1e-5, atol=1e-5)


def test_reranking_orders_the_documents_of_each_query() -> None:
    index, queries = filled(), torch.from_numpy(X[:3])
    everything = index.search(queries, 500, unused)[1]
    lists = {"a": NAMES[40:90], "b": NAMES[480:450:-1]}  # and none for the third
    scores, rows = index.search(queries, 10, unused, lists, {0: "a", 1: "b", 2: "c"})
    assert [len(each) for each in rows] == [len(each) for each in scores] == [10, 10, 0]
    for ranking, name, local in zip(everything, lists, rows, strict=False):
        places = {f"d{row}": place for place, row in enumerate(ranking)}
        best = sorted(lists[name], key=places.__getitem__)[:10]
        assert [lists[name][row] for row in local] == best
    with pytest.raises(InvalidInput, match="query_idx_to_id"):
        index.search(queries, 10, unused, lists)


def test_cleared_index_can_be_filled_again() -> None:
    index = filled()
    index.clear()
    with pytest.raises(NotFitted):
        index.search(X[:1], 1, unused)
    index.add_documents(X[:100, :5], NAMES[:100])  # of another length
    assert index.search(X[7:8, :5], 1, unused)[1] == [[7]]


def test_documents_that_do_not_fit_change_nothing() -> None:
    index = filled()
    before = index.search(X[:5], 20, unused)
    for embeddings in (X[:3], np.full((2, 24), np.nan), X[:2, :5]):
        with pytest.raises(InvalidInput):
            index.add_documents(embeddings, ["x", "y"])
    assert index.search(X[:5], 20, unused) == before


def test_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert run_guide("integrations/mteb.md", monkeypatch, tmp_path) == 3
