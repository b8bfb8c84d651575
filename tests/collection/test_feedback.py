"""Feedback: votes move the ranking of their query the way they say, and others hardly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import Collection
from stillhash.collection.feedback import LIKED_SUM, MAX_FACTOR, MIN_LABEL, agreeing_labels, correct, step_on_codes
from stillhash.collection.storage.votes import StoredVote
from stillhash.errors import Conflict, InvalidInput, NotFitted, WrongType
from stillhash.hashers import LSH, OHSL, Hasher, Model, Tally
from tests.collection.fixtures import DIM, begin, some_rows
from tests.support.toys import toy

X, Y = toy(900, 24, 6, seed=5)
NAMES = [np.flatnonzero(y).tolist() for y in Y]
QUERY = X[-1]


def learnt(method: type[Hasher] = Tally) -> Hasher:
    return method(bits=48).fit(X[:300]).partial_fit(X[:800], Y[:800])


def make_vote(
    hasher: Hasher, item: int, weight: float, source: str = "", query: np.ndarray = QUERY, **new: Any
) -> StoredVote:
    vote = StoredVote(
        query.astype(np.float32).tobytes(),
        item,
        source,
        weight,
        None,
        hasher.encode(X[item : item + 1]).tobytes(),
        NAMES[item],
    )
    return vote._replace(**new)


def weights(hasher: Hasher, model: Model, query: np.ndarray = QUERY) -> np.ndarray:
    return hasher.functions().weigh_by(model, query[None])[0]


def scores(hasher: Hasher, model: Model, query: np.ndarray = QUERY) -> np.ndarray:
    """Return the scores of all items, standardised."""
    codes = np.unpackbits(hasher.encode(X), axis=1, bitorder="little")[:, : hasher.bits] * 2.0 - 1
    raw = codes @ weights(hasher, model, query)
    return np.asarray((raw - raw.mean()) / raw.std())


# ---- labels ----


def test_votes_move_labels_just_enough() -> None:
    y = np.array([0.4, 0.2, 0.1, 0.0])
    up = agreeing_labels(y, np.array([[0.0, 1, 1, 0]]), np.array([1.0]))
    assert up[1] + up[2] == pytest.approx(LIKED_SUM) and up[1] / up[2] == pytest.approx(2) and up[0] == y[0]
    down = agreeing_labels(y, np.array([[1.0, 0, 0, 0]]), np.array([-1.0]))
    assert down[0] == pytest.approx(0.4 / MAX_FACTOR) and down[1] == y[1]
    content = agreeing_labels(y, np.array([[1.0, 1, 1, 0]]), np.array([1.0]))
    assert np.array_equal(content, np.maximum(y, MIN_LABEL))  # passive: the vote says what was thought
    weak = agreeing_labels(y, np.array([[0.0, 0, 0, 1]]), np.array([1.0]))
    assert weak[3] == pytest.approx(MIN_LABEL * MAX_FACTOR)  # and no vote moves things further than this
    half = agreeing_labels(y, np.array([[0.0, 0, 0, 1]]), np.array([0.5]))
    assert half[3] == pytest.approx(MIN_LABEL * np.sqrt(MAX_FACTOR))


def test_order_of_votes_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        y, items = rng.random(8) * 0.4, (rng.random((6, 8)) < 0.3).astype(np.float64)
        items[items.sum(axis=1) == 0, 0] = 1
        votes, order = rng.choice([-1.0, 1.0], 6), rng.permutation(6)
        one, other = agreeing_labels(y, items, votes), agreeing_labels(y, items[order], votes[order])
        np.testing.assert_allclose(one, other, rtol=0.02, atol=1e-3)


# ---- codes ----


def test_a_step_on_codes_is_passive_aggressive() -> None:
    rng = np.random.default_rng(0)
    w, codes = rng.standard_normal(32), rng.choice([-1.0, 1.0], (4, 32))
    votes = np.array([1.0, -1.0, 1.0, -1.0])
    after = step_on_codes(w, codes, votes)
    before = codes @ w
    assert (codes @ after - before)[votes > 0].sum() > (codes @ after - before)[votes < 0].sum()
    liked = codes[0] * 0 + np.sign(w)  # as far above as can be
    assert np.array_equal(step_on_codes(w, liked[None], np.array([1.0])), w)


@pytest.mark.parametrize("method", [OHSL, LSH])
def test_without_labels_codes_are_compared(method: type[Hasher]) -> None:
    hasher = method(bits=48).fit(X[:300])
    if method is OHSL:
        hasher.partial_fit(X[:800], Y[:800])
    model = hasher.model()
    votes = [make_vote(hasher, item, 1.0 if item % 2 else -1.0, labels=[]) for item in range(10)]
    after = scores(hasher, correct(hasher, model, votes)) - scores(hasher, model)
    assert after[1:10:2].mean() > 0.1 and after[0:10:2].mean() < -0.1


# ---- queries ----


def test_votes_raise_the_scores_of_liked_items() -> None:
    hasher = learnt()
    model, liked = hasher.model(), [item for item in range(300) if 2 in NAMES[item]][:6]
    disliked = [item for item in range(300) if 4 in NAMES[item] and 2 not in NAMES[item]][:6]
    votes = [*(make_vote(hasher, i, 1.0) for i in liked), *(make_vote(hasher, i, -1.0) for i in disliked)]
    after = scores(hasher, correct(hasher, model, votes)) - scores(hasher, model)
    twos = np.array([2 in named and 4 not in named for named in NAMES])
    fours = np.array([4 in named and 2 not in named for named in NAMES])
    assert after[twos].mean() > after[fours].mean() + 0.2


def test_opposite_votes_cancel_and_faint_ones_are_faint() -> None:
    hasher = learnt()
    model = hasher.model()
    both = [make_vote(hasher, 3, 1.0, "ann"), make_vote(hasher, 3, -1.0, "bo")]
    assert correct(hasher, model, both) == model
    assert correct(hasher, model, []) is model
    faint = correct(hasher, model, [make_vote(hasher, item, -0.01, "bo") for item in range(200)])
    loud = correct(hasher, model, [make_vote(hasher, item, -1.0, "bo") for item in range(200)])
    change = [np.linalg.norm(weights(hasher, m) - weights(hasher, model)) for m in (loud, faint)]
    assert change[1] < 0.1 * change[0]
    louder = correct(hasher, model, [make_vote(hasher, 3, 1.0, "ann"), make_vote(hasher, 3, 1.0, "bo")])
    once = correct(hasher, model, [make_vote(hasher, 3, 1.0, "ann")])
    np.testing.assert_array_equal(weights(hasher, louder), weights(hasher, once))  # a vote is at most one


def test_other_queries_hardly_move() -> None:
    hasher = learnt()
    model = hasher.model()
    votes = [make_vote(hasher, item, -1.0) for item in range(8)]
    after = correct(hasher, model, votes)
    Q = hasher.prepare(X[:200])
    ours = hasher.prepare(QUERY[None])[0]
    moved = np.linalg.norm(
        hasher.functions().weigh_by(after, X[:200]) - hasher.functions().weigh_by(model, X[:200]), axis=1
    )
    own = np.linalg.norm(weights(hasher, after) - weights(hasher, model))
    np.testing.assert_allclose(moved, np.abs(Q @ ours) * own, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_votes_help_real_queries() -> None:
    """Digits: queries with ten right votes rank better, and the rest as before."""
    changes = votes_on_scenes()
    assert changes["gain"] > 0.01 and changes["others"] > -0.01


def votes_on_scenes() -> dict[str, float]:
    from stillhash.experiments.drift import open_stream
    from stillhash.experiments.feedback_study import run

    result = run(open_stream("scenes"), bits=32, seeds=2, queries=10, others=100)
    rows = [row for row in result["rows"] if row["way"] == "five and five"]
    mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0] if name not in ("way",)}
    return {"gain": mean["after"] - mean["before"], "others": mean["others_after"] - mean["others_before"]}


# ---- the verb ----


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    collection, _ = begin(tmp_path_factory.mktemp("feedback") / "c")
    yield collection
    collection.close()


def test_vote_is_a_version_and_the_last_one_counts(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c")
    query = toy(1, DIM, 4, seed=77).X[0]
    before = collection.search(query, 20)
    version = collection.feedback(query, 7, False, source="ann")
    latest = collection.versions()[-1]
    assert (latest["version"], latest["kind"], latest["rows"]) == (version, "feedback", 1)
    down = collection.search(query, 20)
    assert down.version == version and down.hits != before.hits
    collection.feedback(query, 7, True, source="bo")
    assert [hit.id for hit in collection.search(query, 20).hits] == [hit.id for hit in before.hits]  # they cancel
    collection.feedback(query, 7, False, source="bo")
    assert [hit.id for hit in collection.search(query, 20).hits] == [hit.id for hit in down.hits]
    assert collection.stats()["feedback"] == 2
    collection.delete([7])  # the vote stays
    collection.learn(*some_rows(40, seed=3)[:2])
    assert collection.versions()[-1]["kind"] == "learn"
    collection.rollback(version - 1)
    assert collection.stats()["feedback"] == 0  # it goes with what came after the version
    collection.close()
    with stillhash.open(tmp_path / "c") as reopened:
        assert reopened.stats()["feedback"] == 0 and reopened.verify() == []


def test_a_source_counts_for_no_more_than_its_cap(tmp_path: Path) -> None:
    query = toy(1, DIM, 4, seed=77).X[0]
    scores = []
    for cap in (1000.0, 2.0):
        collection, _ = begin(tmp_path / str(cap), source_cap=cap)
        before = [hit.score for hit in collection.search(query, 320).hits]
        collection.feedback(query, list(range(200)), False)
        scores.append(np.abs(np.subtract([hit.score for hit in collection.search(query, 320).hits], before)).sum())
        collection.close()
    assert scores[1] < 0.1 * scores[0]


@pytest.mark.parametrize(
    ("args", "options", "error", "match"),
    [
        ((np.ones(3), 1, True), {}, InvalidInput, "^query"),
        ((np.full(DIM, np.nan), 1, True), {}, InvalidInput, "^query"),
        ((np.ones(DIM), "nobody", True), {}, InvalidInput, "nobody"),
        ((np.ones(DIM), 1.5, True), {}, WrongType, "^ids?"),
        ((np.ones(DIM), [], []), {}, InvalidInput, "^ids?"),
        ((np.ones(DIM), [1, 1], True), {}, InvalidInput, "^ids?"),
        ((np.ones(DIM), 1, 1.5), {}, InvalidInput, "^vote"),
        ((np.ones(DIM), 1, "left"), {}, InvalidInput, "^vote"),
        ((np.ones(DIM), 1, None), {}, WrongType, "^vote"),
        ((np.ones(DIM), 1, float("nan")), {}, InvalidInput, "^vote"),
        ((np.ones(DIM), [1, 2], [True]), {}, InvalidInput, "^vote"),
        ((np.ones(DIM), [1, 2], True), {"position": [1]}, InvalidInput, "^position"),
        ((np.ones(DIM), 1, True), {"position": 0}, InvalidInput, "^position"),
        ((np.ones(DIM), 1, True), {"position": 1.5}, WrongType, "^position"),
        ((np.ones(DIM), 1, True), {"source": 3}, WrongType, "^source"),
    ],
)
def test_bad_feedback_is_refused(collection: Collection, args: Any, options: Any, error: Any, match: str) -> None:
    before = collection.stats()
    with pytest.raises(error, match=match):
        collection.feedback(*args, **options)
    assert collection.stats() == before


def test_feedback_needs_hash_functions_and_a_writer(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "c", DIM) as waiting:
        waiting.add([1], np.ones((1, DIM)))
        with pytest.raises(NotFitted, match="feedback"):
            waiting.feedback(np.ones(DIM), 1, True)
    begin(tmp_path / "d")[0].close()
    with stillhash.open(tmp_path / "d", read_only=True) as reader, pytest.raises(Conflict):
        reader.feedback(np.ones(DIM), 1, True)
