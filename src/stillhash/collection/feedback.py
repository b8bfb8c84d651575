"""Feedback: votes on (query, item) pairs become a correction N to the similarity, q^T M x~ + q^T N x~.

A vote says something about the query's labels: up, that it has one of the item's; down, that it has none of them. So a
query's predicted labels y are moved as little as possible (by factors: least Kullback-Leibler divergence) until they
agree with its votes, and its weights are computed from them again. Each vote owns one factor on the labels of its item:
down divides them by MAX_FACTOR; up multiplies them by the least that brings their sum to LIKED_SUM, at most MAX_FACTOR.
That is a Passive-Aggressive step on the bilinear form q^T U y: nothing moves where a vote is satisfied, nothing far.

Where an item has no labels, or a model none, the step is made on the codes instead: OASIS's update for the rectangular
form, for each pair of a liked and a disliked item.

N is the smallest matrix that gives each of these queries its new weights, so that others, which are mostly orthogonal,
keep theirs: N = Q^T (Q Q^T + lambda I)^-1 dW. It is computed from all votes whenever a version is published.
"""

import itertools

import numpy as np

from stillhash.collection.storage.votes import StoredVote
from stillhash.hashers import Hasher, LabelSpace, Model
from stillhash.numeric.codes import signs
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Doubles

LIKED_SUM = 0.7  # of a unit label vector: what the labels of a liked item should add up to
MAX_FACTOR = 3.0  # of a vote
MIN_LABEL = 0.01  # a predicted label is never less likely than this
FACTOR_ROUNDS, FACTOR_TOLERANCE = 20, 1e-3  # of adjusting factors to each other, until none changes by more
CODE_STEP = 0.1  # of a step on codes, in units of the weights
CORRECTION_RIDGE = 0.1  # lambda, in units of a query's square
MAX_CORRECTED_QUERIES = 1000  # the latest

QueryVotes = list[tuple[StoredVote, float]]  # items, and all sources' votes together, from -1 to 1


@one_thread
def correct(hasher: Hasher, model: Model, votes: list[StoredVote]) -> Model:
    """Return the model with a correction by these votes."""
    by_query = _by_query(votes)
    if not by_query:
        return model
    queries = np.stack([np.frombuffer(query, np.float32) for query in by_query])
    functions, space = hasher.functions(), hasher.label_space()
    W = functions.weigh_by(model, queries).astype(np.float64)
    Q = functions.prepare(queries).astype(np.float64)
    pairs = zip(Q, W, by_query.values(), strict=True)
    targets = np.stack([_target_weights(functions.bits, space, q, w, cast) for q, w, cast in pairs])
    K = Q @ Q.T
    K[np.diag_indices_from(K)] += CORRECTION_RIDGE * max(float(np.mean(np.diag(K))), 1e-12)
    N = Q.T @ np.linalg.solve(K, targets - W)
    return model._replace(N=N.astype(np.float32))


def _by_query(votes: list[StoredVote]) -> dict[bytes, QueryVotes]:
    last = {(vote.query, vote.item): vote for vote in votes}
    totals = dict.fromkeys(last, 0.0)
    for vote in votes:
        totals[vote.query, vote.item] += vote.vote
    by_query: dict[bytes, QueryVotes] = {}
    for pair, total in totals.items():
        if total:
            by_query.setdefault(pair[0], []).append((last[pair], min(1.0, max(-1.0, total))))
    return by_query


def _target_weights(bits: int, space: LabelSpace | None, q: Doubles, w: Doubles, votes: QueryVotes) -> Doubles:
    """Return the weights that a query should have."""
    if space is not None:
        places = {name: c for c, name in enumerate(space.names)}
        known = [(vote, total) for vote, total in votes if any(name in places for name in vote.labels)]
        if known:
            X = np.zeros((len(known), len(places)))
            for x, (vote, _) in zip(X, known, strict=True):
                x[[places[name] for name in vote.labels if name in places]] = 1
            y = np.maximum(q @ space.U + space.u, 0)
            totals = np.array([total for _, total in known])
            before, after = y @ space.V, agreeing_labels(y, X, totals) @ space.V
            after = after * (np.linalg.norm(w) / max(float(np.linalg.norm(before)), 1e-12))
            return np.asarray(w + np.abs(totals).max() * (after - w))  # a weak vote moves them a little
    codes = signs(np.frombuffer(b"".join(vote.code for vote, _ in votes), np.uint8).reshape(len(votes), -1), bits)
    return step_on_codes(w, codes.astype(np.float64), np.array([total for _, total in votes]))


def agreeing_labels(y: Doubles, X: Doubles, votes: Doubles) -> Doubles:
    """Move labels y (c,) until they agree with votes on items that have the labels X (n, c)."""
    y, a, most = np.maximum(y, MIN_LABEL), np.zeros(len(votes)), np.abs(votes) * np.log(MAX_FACTOR)
    for _ in range(FACTOR_ROUNDS):  # coordinate ascent on the logarithms of the factors
        before = a.copy()
        for i, x in enumerate(X):
            to = -most[i] if votes[i] < 0 else np.clip(a[i] + np.log(LIKED_SUM / (x @ y)), 0.0, most[i])
            y = y * np.exp((to - a[i]) * x)
            a[i] = to
        if np.abs(a - before).max() < FACTOR_TOLERANCE:
            break
    return y


def step_on_codes(w: Doubles, codes: Doubles, votes: Doubles) -> Doubles:
    """Return weights w (b,) after a Passive-Aggressive step for each pair of a liked and a disliked code (n, b).

    Where all votes are alike, the other side of each pair is zero. The margin is the deviation of the scores of random
    codes, |w|.
    """
    size = float(np.linalg.norm(w)) or 1.0
    liked = [(x, vote) for x, vote in zip(codes, votes, strict=True) if vote > 0]
    disliked = [(x, -vote) for x, vote in zip(codes, votes, strict=True) if vote < 0]
    zero = [(np.zeros_like(w), 1.0)]
    for (x, up), (z, down) in itertools.product(liked or zero, disliked or zero):
        difference = x - z
        square = float(difference @ difference)
        if square:
            loss = max(0.0, size - float(w @ difference))
            w = w + min(CODE_STEP * size * min(up, down) / np.sqrt(square), loss / square) * difference
    return w
