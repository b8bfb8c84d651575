"""Feedback: thumbs on (query, item) pairs become a correction N to the similarity, q^T M x~ + q^T N x~.

A thumb says something of the query's labels: up, that it has one of the item's; down, that it has none of them. So a
query's predicted labels y are moved as little as possible (in the sense of Kullback and Leibler: by factors) until they
agree with its thumbs, and its weights are made anew from them. Each thumb owns one factor on the labels of its item:
down divides them by FORCE; up multiplies them by the least that brings their sum to ENOUGH, at most FORCE. That is a
Passive-Aggressive step on the bilinear form q^T U y: nothing moves where a thumb is content, and none moves things far.

Where an item has no labels, or a model none, the step is made on the codes instead: OASIS's update for the rectangular
form, for each pair of an item that was liked and one that was not.

N is the smallest matrix that gives each of these queries its new weights, so that others, which are mostly orthogonal,
keep theirs: N = Q^T (Q Q^T + lambda I)^-1 dW. It is made from all thumbs whenever a version is published.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.hashers import Hasher, LabelSpace, Model
from stillhash.numeric.codes import signs
from stillhash.numeric.threads import one_thread

ENOUGH = 0.7  # of a unit label vector: what the labels of a liked item should add up to
FORCE = 3.0  # the largest factor of a thumb
FLOOR = 0.01  # a predicted label is never less likely than this
ROUNDS, STILL = 20, 1e-3  # of adjusting factors to each other; until none changes by more
STEP = 0.1  # of a step on codes, in units of the weights
HELD = 0.1  # lambda, in units of a query's square
MOST = 1000  # queries, the latest, that are corrected

Doubles = NDArray[np.float64]


class Vote(NamedTuple):
    """What is stored of a thumb; it outlives its item."""

    asked: bytes  # the query, float32
    item: str  # its id, as JSON
    code: bytes
    labels: list[Any]
    vote: float  # the weight, negative for a thumb down
    source: str


@one_thread
def corrected(hasher: Hasher, model: Model, thumbs: list[Vote]) -> Model:
    """The model, with what these thumbs teach."""
    by_query = _by_query(thumbs)
    if not by_query:
        return model
    asked = np.stack([np.frombuffer(query, np.float32) for query in by_query])
    functions, space = hasher.functions(), hasher.label_space()
    W = functions.weigh_by(model, asked).astype(np.float64)
    Q = functions.prepare(asked).astype(np.float64)
    moved = [_moved(functions.bits, space, q, w, votes) for q, w, votes in zip(Q, W, by_query.values(), strict=True)]
    K = Q @ Q.T
    K[np.diag_indices_from(K)] += HELD * max(float(np.mean(np.diag(K))), 1e-12)
    N = Q.T @ np.linalg.solve(K, np.stack(moved) - W)
    return model._replace(N=N.astype(np.float32))


def _by_query(thumbs: list[Vote]) -> dict[bytes, list[tuple[Vote, float]]]:
    """For each query its items and their votes, all sources taken together, from -1 to 1."""
    votes: dict[tuple[bytes, str], float] = {}
    last: dict[tuple[bytes, str], Vote] = {}
    for thumb in thumbs:
        pair = thumb.asked, thumb.item
        votes[pair] = votes.get(pair, 0.0) + thumb.vote
        last[pair] = thumb
    found: dict[bytes, list[tuple[Vote, float]]] = {}
    for pair, vote in votes.items():
        if vote:
            found.setdefault(pair[0], []).append((last[pair], min(1.0, max(-1.0, vote))))
    return found


def _moved(bits: int, space: LabelSpace | None, q: Doubles, w: Doubles, votes: list[Any]) -> Doubles:
    """The weights that a query should have."""
    if space is not None:
        places = {name: c for c, name in enumerate(space.names)}
        known = [(thumb, vote) for thumb, vote in votes if any(name in places for name in thumb.labels)]
        if known:
            X = np.zeros((len(known), len(places)))
            for x, (thumb, _) in zip(X, known, strict=True):
                x[[places[name] for name in thumb.labels if name in places]] = 1
            y = np.maximum(q @ space.U + space.u, 0)
            cast = np.array([vote for _, vote in known])
            before, after = y @ space.V, agreeing(y, X, cast) @ space.V
            after = after * (np.linalg.norm(w) / max(float(np.linalg.norm(before)), 1e-12))
            return np.asarray(w + np.abs(cast).max() * (after - w))  # a faint vote makes them anew but faintly
    codes = signs(np.frombuffer(b"".join(t.code for t, _ in votes), np.uint8).reshape(len(votes), -1), bits)
    return stepped(w, codes.astype(np.float64), np.array([vote for _, vote in votes]))


def agreeing(y: Doubles, X: Doubles, votes: Doubles) -> Doubles:
    """Labels y (c,) moved until they agree with votes on items that have the labels X (n, c)."""
    y, a, most = np.maximum(y, FLOOR), np.zeros(len(votes)), np.abs(votes) * np.log(FORCE)
    for _ in range(ROUNDS):  # coordinate ascent on the logarithms of the factors
        before = a.copy()
        for i, x in enumerate(X):
            to = -most[i] if votes[i] < 0 else np.clip(a[i] + np.log(ENOUGH / (x @ y)), 0.0, most[i])
            y = y * np.exp((to - a[i]) * x)
            a[i] = to
        if np.abs(a - before).max() < STILL:
            break
    return y


def stepped(w: Doubles, codes: Doubles, votes: Doubles) -> Doubles:
    """Weights w (b,) after a Passive-Aggressive step for each pair of a liked and a disliked code (n, b).

    Where all votes are alike, the other side of each pair is a code that is neither: zero. The margin wanted is the
    deviation of the scores of random codes, |w|.
    """
    size = float(np.linalg.norm(w)) or 1.0
    liked = [(x, vote) for x, vote in zip(codes, votes, strict=True) if vote > 0]
    disliked = [(x, -vote) for x, vote in zip(codes, votes, strict=True) if vote < 0]
    nobody = [(np.zeros_like(w), 1.0)]
    for (x, up), (z, down) in itertools.product(liked or nobody, disliked or nobody):
        apart = x - z
        square = float(apart @ apart)
        if square:
            loss = max(0.0, size - float(w @ apart))
            w = w + min(STEP * size * min(up, down) / np.sqrt(square), loss / square) * apart
    return w
