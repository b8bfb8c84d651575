"""What votes teach: labels of similar queries, and weights of all queries once there are enough of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stillhash.collection.learning.votes import (
    LIKED_SUM,
    MAX_FACTOR,
    MIN_LABEL,
    agreeing_labels,
    correct,
    leave_one_out,
)
from stillhash.collection.storage.votes import StoredVote
from stillhash.experiments.metrics import evaluate
from stillhash.hashers import LSH, OHSL, Hasher, Model, Tally
from stillhash.numeric.codes import signs
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
    y = np.array([[0.4, 0.2, 0.1, 0.0]])
    (up,) = agreeing_labels(y, [(0, [1, 2], 1.0)])
    assert up[1] + up[2] == pytest.approx(LIKED_SUM) and up[1] / up[2] == pytest.approx(2) and up[0] == y[0, 0]
    (down,) = agreeing_labels(y, [(0, [0], -1.0)])
    assert down[0] == pytest.approx(0.4 / MAX_FACTOR) and down[1] == y[0, 1]
    content = agreeing_labels(y, [(0, [0, 1, 2], 1.0)])
    assert np.array_equal(content, np.maximum(y, MIN_LABEL))  # passive: the vote says what was thought
    (weak,) = agreeing_labels(y, [(0, [3], 1.0)])
    assert weak[3] == pytest.approx(MIN_LABEL * MAX_FACTOR)  # and no vote moves things further than this
    (half,) = agreeing_labels(y, [(0, [3], 0.5)])
    assert half[3] == pytest.approx(MIN_LABEL * np.sqrt(MAX_FACTOR))


def test_order_of_votes_and_other_queries_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        y = rng.random((3, 8)) * 0.4
        votes = [
            (int(rng.integers(3)), sorted(set(rng.integers(8, size=2).tolist())), float(rng.choice([-1, 1])))
            for _ in range(12)
        ]
        together = agreeing_labels(y, votes)
        np.testing.assert_allclose(agreeing_labels(y, votes[::-1]), together, rtol=0.1, atol=0.01)
        for query in range(3):
            own = [(0, labels, cast) for number, labels, cast in votes if number == query]
            np.testing.assert_allclose(
                agreeing_labels(y[query : query + 1], own)[0], together[query], rtol=0.1, atol=0.01
            )


def test_votes_on_labelled_items_move_labels_and_the_first_page() -> None:
    hasher = learnt()
    model, liked = hasher.model(), [item for item in range(300) if 2 in NAMES[item]][:6]
    disliked = [item for item in range(300) if 4 in NAMES[item] and 2 not in NAMES[item]][:6]
    votes = [*(make_vote(hasher, i, 1.0) for i in liked), *(make_vote(hasher, i, -1.0) for i in disliked)]
    corrected = correct(hasher, model, votes, hasher.encode(X))
    after = scores(hasher, corrected) - scores(hasher, model)
    twos = np.array([2 in named and 4 not in named for named in NAMES])
    fours = np.array([4 in named and 2 not in named for named in NAMES])
    assert after[twos].mean() > after[fours].mean() + 0.05
    before, now = (hasher.functions().ranking_by(some, QUERY[None]).labels for some in (model, corrected))
    assert before is not None and now is not None
    assert now[0, 2] - before[0, 2] > 0 > now[0, 4] - before[0, 4]


def test_opposite_votes_cancel_and_faint_ones_are_faint() -> None:
    hasher = learnt()
    model, codes = hasher.model(), hasher.encode(X)
    both = [make_vote(hasher, 3, 1.0, "ann"), make_vote(hasher, 3, -1.0, "bo")]
    np.testing.assert_array_equal(weights(hasher, correct(hasher, model, both, codes)), weights(hasher, model))
    assert correct(hasher, model, [], codes) is model
    loud, faint = (
        correct(hasher, model, [make_vote(hasher, i, size, "bo", labels=NAMES[-1]) for i in range(5)], codes)
        for size in (-1.0, -0.01)
    )
    change = [np.linalg.norm(weights(hasher, some) - weights(hasher, model)) for some in (loud, faint)]
    assert change[1] < 0.1 * change[0]
    louder = correct(hasher, model, [make_vote(hasher, 3, 1.0, "ann"), make_vote(hasher, 3, 1.0, "bo")], codes)
    once = correct(hasher, model, [make_vote(hasher, 3, 1.0, "ann")], codes)
    np.testing.assert_array_equal(weights(hasher, louder), weights(hasher, once))  # a vote is at most one


def test_a_vote_changes_its_query_and_similar_ones_most() -> None:
    hasher = learnt()
    model = hasher.model()
    after = correct(hasher, model, [make_vote(hasher, item, -1.0) for item in range(8)], hasher.encode(X))
    assert model.U is not None and after.U is not None and after.N is None
    step = after.U - model.U
    assert np.linalg.matrix_rank(step, tol=1e-4 * np.linalg.norm(step)) == 1
    rng = np.random.default_rng(0)
    similar = QUERY + 0.05 * np.linalg.norm(QUERY) / np.sqrt(24) * rng.standard_normal(24)
    own, near, *others = np.linalg.norm(
        hasher.prepare(np.stack([QUERY, similar, *X[:200]]).astype(np.float32)) @ step, axis=1
    )
    assert near > 0.7 * own and np.sqrt(np.mean(np.square(others))) < 0.5 * own


def test_many_queries_are_corrected_as_few_are() -> None:
    hasher = Tally(bits=48).fit(X[:300]).partial_fit(X[:800], Y[:800])
    few = [make_vote(hasher, n, 1.0, query=X[500 + n]) for n in range(20)]
    more = [*few, *(make_vote(hasher, 9, -1.0, query=x) for x in X[:20])]
    assert len(few) < X.shape[1] < len(more)
    for votes in (few, more):
        model = correct(hasher, hasher.model(), votes, hasher.encode(X))
        assert model.U is not None and np.isfinite(model.U).all()


# ---- clicks: items without labels ----


def clicks(hasher: Hasher, queries: range) -> list[StoredVote]:
    """Return clicks on the first relevant hits, and votes down on the first others."""
    codes = signs(hasher.encode(X), hasher.bits)
    votes = []
    for query in queries:
        order = np.argsort(-codes @ hasher.weigh(X[query][None])[0], kind="stable")
        order = order[order != query][:20]
        for item in order.tolist():
            vote = 1.0 if (Y[item] & Y[query]).any() else -1.0
            votes.append(make_vote(hasher, item, vote, query=X[query], labels=[]))
    return votes


@pytest.mark.parametrize("method", [Tally, OHSL, LSH])
def test_clicks_teach_queries_that_were_never_asked(method: type[Hasher]) -> None:
    hasher = method(bits=48).fit(X[:300])
    model, codes = hasher.model(), hasher.encode(X)
    after = correct(hasher, model, clicks(hasher, range(500)), codes)
    assert after.N is not None and after.learnt
    unseen = range(500, 900)
    before, now = (
        evaluate(hasher.functions().weigh_by(some, X[unseen]), codes, Y[unseen], Y).precision_10
        for some in (model, after)
    )
    assert now > before


def test_few_or_random_clicks_teach_nothing() -> None:
    hasher = Tally(bits=48).fit(X[:300])
    model, codes = hasher.model(), hasher.encode(X)
    one = [make_vote(hasher, 7, 1.0, labels=[])]
    assert correct(hasher, model, one, codes) is model
    rng = np.random.default_rng(0)
    random = [
        make_vote(hasher, int(rng.integers(900)), float(rng.choice([-1, 1])), query=X[n], labels=[])
        for n in range(300)
        for _ in range(3)
    ]
    assert correct(hasher, model, random, codes).N is None
    assert correct(hasher, model, clicks(hasher, range(30)), codes[:0]) is model  # nothing to compare with


def test_leaving_one_query_out_is_what_it_says() -> None:
    rng = np.random.default_rng(0)
    for rows, columns in ((5, 9), (9, 5)):
        Q, T = rng.standard_normal((rows, columns)), rng.standard_normal((rows, 4))
        N, predicted = leave_one_out(Q, T, 0.5)
        for row in range(rows):
            others = np.arange(rows) != row
            G = Q[others].T @ Q[others] + 0.5 * np.eye(columns)
            np.testing.assert_allclose(predicted[row], Q[row] @ np.linalg.solve(G, Q[others].T @ T[others]))
        np.testing.assert_allclose(N, np.linalg.solve(Q.T @ Q + 0.5 * np.eye(columns), Q.T @ T))
