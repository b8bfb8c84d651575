"""Filters of Haystack: the translated condition matches what Haystack's own, slow comparison matches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

pytest.importorskip("haystack", reason="haystack-ai is not installed")

from haystack import Document
from haystack.errors import FilterError
from haystack.utils.filters import document_matches_filter

from stillhash.integrations.haystack import StillhashDocumentStore

pytestmark = pytest.mark.integrations
VALUES = [None, True, False, 0, 1, 2, -3, 1.0, 2.5, "1", "text", "2024-05-06", "2024-05-06T10:00:00", "2025-01-01"]
FIELDS = ["meta.x", "meta.y", "y", "meta.deep.z", "meta.none", "content", "id", "score", "meta.deep", "odd.field"]
DOCUMENTS = [
    Document(
        id=f"d{row}",
        content=None if row % 5 == 0 else f"text {row % 3}",
        score=None if row % 2 else row / 4,
        meta={"x": value, "deep": {"z": VALUES[-row % len(VALUES)]}} | ({} if row % 3 else {"y": row % 4}),
        embedding=[float(row), 1.0] if row % 2 else None,
    )
    for row, value in enumerate([*VALUES, [1, 2], {"z": 1}])
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StillhashDocumentStore]:
    store = StillhashDocumentStore(tmp_path_factory.mktemp("filters") / "documents", 2)
    store.write_documents(DOCUMENTS)
    yield store
    store.close()


def conditions() -> st.SearchStrategy[dict[str, Any]]:
    field, value = st.sampled_from(FIELDS), st.sampled_from([*VALUES, "d3", "text 1", 0.5])
    equal, order = st.sampled_from(["==", "!="]), st.sampled_from([">", ">=", "<", "<="])
    ordered = st.sampled_from([one for one in VALUES if one not in ("1", "text")])
    compare = st.fixed_dictionaries({"field": field, "operator": equal, "value": value})
    compare |= st.fixed_dictionaries({"field": field, "operator": order, "value": ordered})
    within = st.fixed_dictionaries(
        {"field": field, "operator": st.sampled_from(["in", "not in"]), "value": st.lists(value, max_size=4)}
    )
    vector = st.fixed_dictionaries(
        {"field": st.just("embedding"), "operator": st.sampled_from(["==", "!="]), "value": st.none()}
    )
    logic = st.sampled_from(["AND", "OR", "NOT"])
    return st.recursive(
        compare | within | vector,
        lambda inner: st.fixed_dictionaries({"operator": logic, "conditions": st.lists(inner, max_size=3)}),
        max_leaves=6,
    )


def slow_matches(filters: dict[str, Any]) -> list[str] | None:
    """Return the ids that match by Haystack's own comparison; None where it compares what has no order."""
    try:
        return [each.id for each in DOCUMENTS if document_matches_filter(filters, each)]
    except (FilterError, TypeError):
        return None


@given(filters=conditions())
def test_translated_filters_match_the_same_documents(store: StillhashDocumentStore, filters: dict[str, Any]) -> None:
    expected = slow_matches(filters)
    assume(expected is not None)
    assert [each.id for each in store.filter_documents(filters)] == expected
    assert store.count_documents_by_filter(filters) == len(expected or [])
    embedded = {each.id for each in DOCUMENTS if each.embedding is not None}
    hits = {each.id for each in store.embedding_retrieval([1.0, 1.0], filters=filters, top_k=100)}
    assert hits == embedded & set(expected or [])


@pytest.mark.parametrize("operator", [">", ">=", "<", "<="])
@pytest.mark.parametrize("field", ["meta.deep.z", "meta.x", "score"])
def test_numbers_and_dates_in_order(store: StillhashDocumentStore, operator: str, field: str) -> None:
    """Where all values can be compared: of documents that match another condition first."""
    for value, kinds in ((1, (int, float)), (0.5, (int, float)), ("2024-05-06T09:00:00", str)):
        filters = {"field": field, "operator": operator, "value": value}
        comparable = [each for each in DOCUMENTS if isinstance(field_value(each, field), kinds)]
        dated = [each for each in comparable if not isinstance(value, str) or "-0" in field_value(each, field)]
        expected = [each.id for each in dated if document_matches_filter(filters, each)]
        matching = [each.id for each in store.filter_documents(filters)]
        assert [name for name in matching if name in {each.id for each in dated}] == expected


def field_value(document: Document, field: str) -> Any:
    value: Any = document
    for part in field.split("."):
        value = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
    return value


def nested(depth: int) -> dict[str, Any]:
    filters: dict[str, Any] = {"field": "meta.x", "operator": "==", "value": 1}
    for _ in range(depth):
        filters = {"operator": "AND", "conditions": [filters]}
    return filters


@pytest.mark.parametrize(
    "filters",
    [
        [],
        "text",
        {"field": "meta.x"},
        {"field": 3, "operator": "==", "value": 1},
        {"field": "meta.x", "operator": "~", "value": 1},
        {"field": "meta.x", "operator": "==", "value": [1]},
        {"field": "meta.x", "operator": "==", "value": {"$gt": 1}},
        {"field": "meta.x", "operator": "==", "value": float("nan")},
        {"field": "meta.x", "operator": "in", "value": [{}]},
        {"field": "meta.x", "operator": ">", "value": "text"},
        {"field": "meta.x", "operator": ">", "value": object()},
        {"field": "embedding", "operator": "==", "value": [1.0, 2.0]},
        {"field": "blob", "operator": "in", "value": [None]},
        {"operator": "XOR", "conditions": []},
        {"operator": "AND", "conditions": {}},
        {"operator": "OR", "conditions": ["text"]},
        nested(9),
        nested(100_000),
    ],
    ids=range(18),
)
def test_malformed_filters_are_refused(store: StillhashDocumentStore, filters: Any) -> None:
    for method in (store.filter_documents, store.count_documents_by_filter, store.delete_by_filter):
        with pytest.raises(FilterError):
            method(filters)
    assert store.count_documents() == len(DOCUMENTS)
    assert len(store.filter_documents(nested(8))) == 3  # True, 1 and 1.0
