"""Catalogs: models and votes without a store, and the answers of the collection ranked by them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stillhash import Collection
from stillhash.cluster import catalog as catalog_module
from stillhash.cluster.catalog import Catalog, catalog_key, write_catalog
from stillhash.collection.searching import Searchable
from stillhash.collection.types import Vote
from stillhash.collection.validation import input_rows
from stillhash.errors import BadState, InvalidInput, NotFitted, StillhashError, Unsupported
from tests.collection.fixtures import begin, some_rows


class CatalogReader(Searchable):
    """Searches the index of a collection by the models and votes of a catalog."""

    def __init__(self, collection: Collection, catalog: Catalog) -> None:
        self.bits, self._store, self._input = collection.bits, catalog, input_rows(catalog.settings)
        self._collection, self._view = collection, self

    @contextmanager
    def pinned(self, condition: Any = None) -> Iterator[Any]:
        with self._collection._view.pinned(condition) as own, self._store.reading() as connection:
            state = {name: getattr(self._store, name) for name in ("functions", "version", "model", "source_shares")}
            share = 0.0 if own.current_page is None else own.current_page.labelled_share
            state["page_model"] = lambda model: self._store.page_model(model)._replace(labelled_share=share)
            theirs = ("index", "allowed", "count_allowed", "select_allowed", "repeats", "contents", "rank_by_cosine")
            state |= {name: getattr(own, name) for name in (*theirs, "page_items")}
            weigh = lambda Q, model=None: state["functions"].weigh_by(model or state["model"], Q)  # noqa: E731
            yield SimpleNamespace(connection=connection, weigh=weigh, **state)


def write(collection: Collection, path: Path) -> Catalog:
    with collection._store.reading() as connection:
        write_catalog(collection._store, connection, path)
    return Catalog(path)


def key_of(collection: Collection) -> str:
    with collection._store.reading() as connection:
        return catalog_key(connection)


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Return a collection with several versions, votes of several sources, and voted items that are gone."""
    collection, _ = begin(tmp_path_factory.mktemp("catalog") / "c", 320, source_cap=2.5)
    X = some_rows(320).X
    with collection:
        collection.add([f"late{r}" for r in range(90)], *some_rows(90, seed=5))
        for source in ("ann", "bo"):
            votes = [
                Vote(X[q], 20 + q + step, "up" if step % 2 else "down", source) for q in range(4) for step in range(3)
            ]
            collection.feedback_many(votes)
        collection.feedback(X[0], 50, "up", source="cy")
        collection.delete([21, 22])
        collection.upsert([50], X[50:51] + 0.01)
        yield collection


OPTIONS: list[dict[str, Any]] = [
    {},
    {"k": 500},
    {"version": 0},
    {"version": 1},
    {"version": "hamming"},
    {"balance": 0.0},
    {"balance": 1.0, "where": {"odd": True}},
    {"explain": True, "k": 5},
    {"explain": 1, "where": {"n": {"$lt": 60}}, "k": 200},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_catalog_ranks_as_the_collection(collection: Collection, tmp_path: Path, options: dict[str, Any]) -> None:
    with closing(write(collection, tmp_path / "c.db")) as catalog:
        reader = CatalogReader(collection, catalog)
        for queries in (some_rows(320).X[:6], some_rows(5, seed=9).X, some_rows(1).X[0]):
            answer, own = reader.search(queries, **options), collection.search(queries, **options)
            assert answer == own
            for ours, theirs in zip(as_list(answer), as_list(own), strict=True):
                assert [(hit.version, hit.placed) for hit in ours.hits] == [
                    (hit.version, hit.placed) for hit in theirs.hits
                ]
        placed = {hit.placed for answer in collection.search(some_rows(320).X[:6], 500) for hit in answer.hits}
        assert {"liked", "disliked"} <= placed  # so that votes count in what is compared


def as_list(answer: Any) -> list[Any]:
    return answer if isinstance(answer, list) else [answer]


def test_the_other_verbs(collection: Collection, tmp_path: Path) -> None:
    Q = some_rows(4, seed=9).X
    with closing(write(collection, tmp_path / "c.db")) as catalog:
        reader = CatalogReader(collection, catalog)
        assert reader.versions() == collection.versions()
        assert reader.quality() == collection.quality()
        assert reader.encoder == collection.encoder and reader.alignments() == collection.alignments()
        for version in (None, 0, 1, "hamming"):
            assert np.array_equal(reader.weigh(Q, version=version), collection.weigh(Q, version=version))
        score = float(np.median([hit.score for answer in collection.search(Q, 300) for hit in answer.hits]))
        assert reader.range_search(Q, score) == collection.range_search(Q, score)
        assert reader.range_search(Q, distance=4) == collection.range_search(Q, distance=4)
        weights = np.ones(collection.bits)
        assert reader.search(weights=weights) == collection.search(weights=weights)
        for wrong in ({"version": 99}, {"version": -1}, {"balance": 2}, {"where": {"a": {"$x": 1}}}):
            errors = []
            for one in (reader, collection):
                with pytest.raises(StillhashError) as info:
                    one.search(Q, **wrong)
                errors.append((info.type, str(info.value)))
            assert errors[0] == errors[1]


def test_the_key_changes_with_what_a_catalog_says(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 320)
    X = some_rows(320).X
    with collection:
        keys = [key_of(collection)]
        for change, changes in [
            (lambda: collection.add(["new"], X[:1] + 0.5), False),
            (lambda: collection.relabel([1], [["a"]], learn=False), False),
            (lambda: collection.delete(["new"]), False),
            (collection.compact, False),
            (lambda: collection.feedback(X[0], 5, "up"), True),
            (lambda: collection.upsert([5], X[5:6]), True),  # a voted item has another row
            (lambda: collection.upsert([6], X[6:7]), False),
            (lambda: collection.delete([5]), True),
            (lambda: collection.tag(1, "first"), True),
            (lambda: collection.feedback(X[0], 5, 0), True),
        ]:
            change()
            keys.append(key_of(collection))
            assert (keys[-1] != keys[-2]) == changes, len(keys)


def test_what_is_left_out_is_refused(collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, latest = some_rows(320).X, collection.stats()["version"]
    monkeypatch.setattr(catalog_module, "MAX_MODEL_BYTES", 1)
    monkeypatch.setattr(catalog_module, "MAX_CATALOG_VOTES", 12)
    with closing(write(collection, tmp_path / "c.db")) as catalog:
        reader = CatalogReader(collection, catalog)
        unvoted = some_rows(5, seed=9).X
        assert reader.search(unvoted) == collection.search(unvoted)
        assert reader.search(X[0]) == collection.search(X[0])  # the latest query that was voted on
        assert [row["version"] for row in reader.versions()] == [row["version"] for row in collection.versions()]
        learnt = [row["version"] for row in reader.versions() if row["version"] != latest and row["kind"] != "fit"]
        for refused in (lambda: reader.search(unvoted, version=learnt[-1]), lambda: reader.search(X[:4])):
            with pytest.raises(Unsupported, match="writer"):
                refused()


def test_a_collection_that_is_not_fitted(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 20)
    with collection, closing(write(collection, tmp_path / "c.db")) as catalog:
        assert catalog.functions is None and catalog.version == 0
        with pytest.raises(NotFitted):
            CatalogReader(collection, catalog).weigh(some_rows(1).X)


def test_damaged_catalogs_are_refused(collection: Collection, tmp_path: Path) -> None:
    write(collection, tmp_path / "c.db").close()
    data = (tmp_path / "c.db").read_bytes()
    for damaged in (
        b"",
        data[:4096],
        data[:5000] + b"\0" + data[5001:] if data[5000] else b"x" * 10_000,
        b"SQLite" * 9999,
    ):
        (tmp_path / "d.db").write_bytes(damaged)
        with pytest.raises(BadState):
            Catalog(tmp_path / "d.db")
    with pytest.raises((BadState, InvalidInput)):
        Catalog(tmp_path / "absent.db")
