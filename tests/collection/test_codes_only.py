"""Collections of ready codes: exact against brute force, and every verb takes codes in place of features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stillhash
from stillhash import Collection, codes
from stillhash.collection.storage.store import Store
from stillhash.errors import BadState, Conflict, InvalidInput, StillhashError, WrongType

BITS = 44  # no multiple of 8
LEARN = 60


def some_codes(n: int, bits: int = BITS, seed: int = 0) -> Any:
    """Return codes around a few centres, so that ties and near matches are common."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).random((8, bits)) < 0.5
    return codes.from_bits(centres[rng.integers(8, size=n)] ^ (rng.random((n, bits)) < 0.12))


def brute_force(stored: Any, query: Any) -> list[tuple[int, int]]:
    """Return the distance and the number of each code, nearest first, ties in row order."""
    return sorted((int(distance), row) for row, distance in enumerate(codes.hamming(stored, query)))


@pytest.fixture
def collection(tmp_path: Path) -> Any:
    with stillhash.open(tmp_path / "c", bits=BITS, codes_only=True, learn_rows=LEARN) as one:
        yield one


def as_pairs(answer: Any) -> list[tuple[int, int]]:
    return [(hit.distance, hit.id) for hit in answer.hits]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**31), st.sampled_from([8, 13, 64, 200, 512]), st.integers(1, 300))
def test_search_and_range_search_equal_brute_force(
    tmp_path_factory: pytest.TempPathFactory, seed: int, bits: int, n: int
) -> None:
    stored, queries = some_codes(n, bits, seed), some_codes(3, bits, seed + 1)
    rng = np.random.default_rng(seed)
    weights = rng.integers(-3, 4, (3, bits)).astype(np.float32)
    with stillhash.open(tmp_path_factory.mktemp("c") / "c", bits=bits, codes_only=True) as one:
        one.add(range(n), stored)
        expected = [brute_force(stored, query) for query in queries]
        assert [as_pairs(answer) for answer in one.search(queries, k=n)] == expected
        assert [as_pairs(answer) for answer in one.search(codes.to_hex(queries, bits), k=7)] == [
            e[:7] for e in expected
        ]
        assert all(hit.score == bits - 2 * hit.distance for hit in one.search(queries[0], k=n).hits)
        assert all(hit.placed == "score" and hit.version == 1 for hit in one.search(queries[0], k=n).hits)
        for distance in (0, 3, bits // 3, bits):
            near = [[pair for pair in one_query if pair[0] <= distance] for one_query in expected]
            assert [as_pairs(answer) for answer in one.range_search(queries, distance=distance)] == near
        scores = weights @ codes.signs(stored, bits).T
        by_weights = one.search(weights=weights, k=n)
        for answer, row in zip(by_weights, scores, strict=True):
            assert [(hit.score, hit.id) for hit in answer.hits] == sorted(
                ((float(score), number) for number, score in enumerate(row)), key=lambda pair: (-pair[0], pair[1])
            )
        assert one.search(weights=weights[0], k=5).hits == by_weights[0].hits[:5]
        importance = np.abs(weights[0])  # weighted Hamming distance: what differs counts by its weight
        differs = (codes.signs(stored, bits) != codes.signs(queries[:1], bits)) @ importance
        weighted = one.search(weights=importance * codes.signs(queries[:1], bits)[0], k=n)
        assert [hit.id for hit in weighted.hits] == np.argsort(differs, kind="stable").tolist()


def test_codes_survive_sealing_deleting_reopening_and_repair(tmp_path: Path) -> None:
    stored = some_codes(500)
    query = some_codes(1, seed=5)[0]
    kinds = [["even"] if r % 2 == 0 else [] for r in range(500)]
    with stillhash.open(tmp_path / "c", bits=BITS, codes_only=True, learn_rows=10_000) as one:
        one.add(range(500), stored, kinds, [{"n": r} for r in range(500)])
        one.seal()
        one.delete(range(0, 500, 5))
        one.upsert([1, 500], stored[[2, 3]])
        assert one.verify() == []
        expected = as_pairs(one.search(query, k=600))
        known = {row: code for row, code in enumerate(stored) if row % 5 and row != 1} | {1: stored[2], 500: stored[3]}
        order = sorted((int(codes.hamming(code, query)), row in (1, 500), row) for row, code in known.items())
        assert expected == [(distance, row) for distance, _, row in order]
        matching = one.search(query, k=600, where={"n": {"$lt": 50}, "labels": "even"})
        assert as_pairs(matching) == [(d, row) for d, row in expected if row < 50 and row % 2 == 0]
        one.compact()
        assert as_pairs(one.search(query, k=600)) == expected
        assert np.array_equal(one.reconstruct([500, 7]), stored[[3, 7]])
        assert np.array_equal(one.codes([500, 7]), stored[[3, 7]])  # type: ignore[arg-type]
        assert one.repair() == ([], [])
    with stillhash.open(tmp_path / "c", read_only=True) as again:
        assert again.codes_only and again.stats()["codes_only"] and not again.stats()["codes_see_labels"]
        assert as_pairs(again.search(query, k=600)) == expected and again.verify() == []
    with stillhash.open(tmp_path / "c", bits=BITS, codes_only=True) as again:
        assert again.versions()[0]["version"] == 1 and len(again.versions()) == 1
        assert as_pairs(again.search(again.reconstruct([7]), k=1)[0]) == [(0, 7)]


def test_no_digests_of_features_are_stored(collection: Collection) -> None:
    collection.add(range(300), some_codes(300))
    collection.seal()
    with collection._store.reading() as connection:
        assert connection.execute("SELECT count(*) FROM items WHERE feature_digest NOT NULL").fetchone() == (0,)
    assert not collection._view._stored_features


def test_labels_are_learnt_from_codes(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stillhash.collection.learning.trainer.LEARN_CODES", 250)
    rng = np.random.default_rng(3)
    kinds = rng.integers(8, size=900)
    centres = np.random.default_rng(99).random((8, BITS)) < 0.5
    noisy = centres[kinds] ^ (rng.random((900, BITS)) < 0.3)
    noisy[:, :20] = rng.random((900, 20)) < 0.5  # bits that say nothing of the labels
    stored, names = codes.from_bits(noisy), [[f"kind-{kind}"] for kind in kinds]
    collection.add(range(800), stored[:800], names[:800])
    assert collection.stats()["pending"] == 800 % 250  # what is left of the last part waits
    assert collection.flush() > 1

    def precision(version: Any) -> float:
        answers = collection.search(stored[800:], k=10, version=version)
        return float(
            np.mean([[kinds[hit.id] == kind for hit in a.hits] for a, kind in zip(answers, kinds[800:], strict=True)])
        )

    assert collection.search(stored[800], k=1).ranking == "learnt similarity"
    assert collection.search(stored[800], k=1).hits[0].distance is None
    assert precision(None) > precision("hamming") + 0.1
    assert as_pairs(collection.search(stored[800], k=5, version=0)) == brute_force(stored[:800], stored[800])[:5]
    assert np.array_equal(collection.codes(range(800)), stored[:800])  # type: ignore[arg-type]
    assert collection.relabel([5], [["other"]]) == 1 and collection.get([5])[0].labels == ["other"]  # type: ignore[union-attr]
    assert collection.learn(stored[800:], names[800:]) > 0
    explained = collection.search(stored[0], k=2, explain=True).hits[0].explanation
    assert explained is not None and len(explained.bits) == BITS


def test_votes_take_codes_and_ids(collection: Collection) -> None:
    stored = some_codes(200)
    collection.add(range(200), stored)
    query = some_codes(1, seed=8)[0]
    first = collection.search(query, k=200)
    collection.feedback(query, [first.hits[-1].id, first.hits[0].id], ["up", "down"])
    voted = collection.search(query, k=200)
    assert voted.hits[0].id == first.hits[-1].id and voted.hits[-1].id == first.hits[0].id
    collection.feedback_many(
        [{"query": codes.to_hex(query, BITS), "id": 7, "vote": 1}, {"query_id": 9, "id": 7, "vote": 1}]
    )
    assert 7 in [hit.id for hit in collection.search(query, k=2).hits]
    assert collection.search(stored[9], k=1).hits[0].id == 7  # the query of an item is exactly its code


def test_columns_of_tables_are_codes_too(collection: Collection) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is optional")
    stored = some_codes(20)
    collection.add(range(10), pandas.Series(codes.to_hex(stored[:10], BITS)))
    collection.add(range(10, 20), list(stored[10:]))
    assert np.array_equal(collection.codes(range(20)), stored)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        collection.add([30], pandas.Series([0.5]))


def test_arrays_and_files_of_codes_are_imported(collection: Collection, tmp_path: Path) -> None:
    stored = some_codes(30)
    np.save(tmp_path / "codes.npy", stored[10:])
    assert collection.add_table(stored[:10], id=list(range(10))) == 10
    assert collection.import_file(tmp_path / "codes.npy", batch=7) == 20
    assert np.array_equal(collection.codes(range(30)), stored)  # type: ignore[arg-type]
    assert np.array_equal(collection.weigh(stored[3]), codes.signs(stored[3:4], BITS))


def test_creation_that_was_interrupted_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("stillhash.collection.learning.trainer.new_hasher", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            stillhash.open(tmp_path / "c", bits=16, codes_only=True)
    with stillhash.open(tmp_path / "c", read_only=True) as reader:
        assert reader.count() == 0 and not reader.stats()["fitted"]
    with stillhash.open(tmp_path / "c") as one:
        one.add(["a"], np.uint8([[1, 2]]))
        assert as_pairs(one.search(np.uint8([1, 2]))) == [(0, "a")]


NEW: dict[str, Any] = {"bits": 16, "codes_only": True}


@pytest.mark.parametrize(
    "arguments",
    [
        {"codes_only": True},
        {**NEW, "dim": 12},
        {**NEW, "init": np.ones((9, 16))},
        {**NEW, "method": "ohsl"},
        {**NEW, "keep_features": True},
        {**NEW, "params": {"center": True}},
        {**NEW, "params": {"init": "labels"}},
        {**NEW, "bits": 600},
        {"bits": 16, "codes_only": "yes"},
    ],
)
def test_settings_without_sense_are_refused(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        stillhash.open(tmp_path / "c", **arguments)
    assert not (tmp_path / "c").exists()


def test_what_is_no_code_is_refused_and_nothing_changes(collection: Collection) -> None:
    collection.add(["a"], some_codes(1))
    before, stray = collection.stats(), np.full((1, 6), 255, np.uint8)
    features = np.ones((1, BITS), np.float32)
    verbs: list[Any] = [
        lambda rows: collection.add(["b"], rows),
        lambda rows: collection.upsert(["a"], rows),
        lambda rows: collection.learn(rows, [["x"]]),
        lambda rows: collection.search(rows),
        lambda rows: collection.range_search(rows, distance=1),
        lambda rows: collection.feedback(rows[0], "a", "up"),
    ]
    for verb in verbs:
        for rows in (
            features,
            features.tolist(),
            stray,
            some_codes(1, 64),
            some_codes(1).astype(int),
            ["12"],
            ["zz" * 6],
        ):
            with pytest.raises(InvalidInput):
                verb(rows)
    with pytest.raises(WrongType, match=r"^codes: .* uint8"):
        collection.add(["b"], features)
    with pytest.raises(InvalidInput, match="ids"):
        collection.add(["b", "c"], some_codes(1))
    for options in ({}, {"distance": -1}, {"distance": BITS + 1}, {"distance": 1.5}, {"distance": 1, "threshold": 2.0}):
        with pytest.raises(InvalidInput):
            collection.range_search(some_codes(1), **options)
    with pytest.raises(InvalidInput, match="distance"):
        collection.range_search(some_codes(1), distance=1, version=1)
    with pytest.raises(InvalidInput, match="weights"):
        collection.search(some_codes(1), weights=np.ones(BITS))
    with pytest.raises(InvalidInput, match="weights"):
        collection.search(weights=np.ones(BITS - 1))
    with pytest.raises(InvalidInput):
        collection.search()
    with pytest.raises(Conflict):
        collection.fit(some_codes(3))
    assert collection.stats() == before


def test_codes_are_refused_where_features_are_expected(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "c", dim=48, bits=64) as one:
        for verb in (lambda rows: one.add(["a"], rows), one.search, lambda rows: one.learn(rows, [["x"]])):
            for rows in (np.zeros((1, 8), np.uint8), ["00" * 8]):
                with pytest.raises(InvalidInput, match="codes_only"):
                    verb(rows)
        with pytest.raises(StillhashError, match="weights"):
            one.search(weights=np.ones(64))  # no hash functions yet
    with pytest.raises(Conflict, match="codes_only"):
        stillhash.open(tmp_path / "c", codes_only=True)


def test_settings_of_a_damaged_store_are_refused(tmp_path: Path) -> None:
    stillhash.open(tmp_path / "c", **NEW).close()
    store = Store(tmp_path / "c", writer=True)
    with store.transaction() as connection:
        connection.execute(
            "UPDATE meta SET value = replace(value, '\"identity\"', '\"labels\"') WHERE key = 'settings'"
        )
    store.close()
    with pytest.raises(BadState, match="codes_only"):
        stillhash.open(tmp_path / "c")


def test_an_ordinary_collection_has_distances_too(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(400, 12))
    with stillhash.open(tmp_path / "c", dim=12, bits=32, init_rows=300) as one:
        one.add(range(400), X)
        stored = one.codes(range(400))
        assert stored is not None
        hits = one.range_search(X[3], distance=9).hits
        assert [(hit.distance, hit.id) for hit in hits] == [p for p in brute_force(stored, stored[3]) if p[0] <= 9]
        assert one.search(X[3]).hits[0].distance is None


def test_what_is_forgotten_is_gone_as_a_query_too(collection: Collection) -> None:
    collection.add(range(50), some_codes(50))
    collection.feedback(some_codes(50)[7], 9, "up")  # the code of an item as the query
    collection.feedback_many([{"query_id": 8, "id": 9, "vote": 1}])
    report = collection.forget([7])
    assert (report.items, report.votes) == (1, 1) and collection.get([7]) == [None]
    assert collection.search(some_codes(50)[8], k=1).hits[0].id == 9 and collection.verify() == []
