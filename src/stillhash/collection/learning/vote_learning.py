"""Feedback: what votes on (query, item) pairs teach the model beyond their own query.

The order of a voted item for its own query is not learnt: search puts it first or last. What a vote teaches is small.

On an item with labels it says something about the query's labels: up, that it has one of the item's; down, that it has
none of them. So a query's predicted labels y are moved as little as possible (by factors: least Kullback-Leibler
divergence) until they agree with its votes. Each vote owns one factor on the labels of its item: down divides them by
MAX_FACTOR; up multiplies them by the least that brings their sum to LIKED_SUM, at most MAX_FACTOR. That is a
Passive-Aggressive step on the bilinear form q^T U y: nothing moves where a vote is satisfied, nothing far. U changes so
that each of the n queries gets its new labels y', nearly, and the rows that were learnt keep theirs: by
(lambda n^1.5 S + Q^T Q)^-1 Q^T (y' - y), with S the mean of x x^T over these rows. One vote moves its query and similar
ones nearly all the way; of many votes only what they have in common is left, so that other queries do not suffer.

Where an item has no labels, or a model none, its code is compared with the codes at large (click_correction.py).

All of it is computed from all votes whenever a version is published, so a vote that is taken back leaves no trace.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.votes import StoredVote
from stillhash.collection.types import Id
from stillhash.hashers import Hasher, LabelSpace, LinearHasher, Model
from stillhash.numeric.codes import signs
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Doubles, Floats

LIKED_SUM = 0.7  # of a unit label vector: what the labels of a liked item should add up to
MAX_FACTOR = 3.0  # of a vote
MIN_LABEL = 0.01  # a predicted label is never less likely than this
FACTOR_ROUNDS, FACTOR_TOLERANCE = 20, 1e-3  # of adjusting factors to each other, until none changes by more
LEARNT_WEIGHT = 100.0  # lambda: the more, the less U changes
MAX_CORRECTED_QUERIES = 3000  # the latest

Places = dict[object, int]  # of labels, in a model
LabelVote = tuple[int, list[int], float]  # number of the query, labels of the item, and the vote


@one_thread
def correct(hasher: Hasher, model: Model, votes: list[StoredVote], sample: Codes) -> Model:
    """Return the model with what votes teach; `sample` are codes of the collection at large."""
    if not votes:
        return model
    space, functions = hasher.label_space(), hasher.functions()
    places: Places = {} if space is None else {name: place for place, name in enumerate(space.names)}
    known = [any(name in places for name in vote.labels) for vote in votes]
    labelled = [vote for vote, is_known in zip(votes, known, strict=True) if is_known]
    others = [vote for vote, is_known in zip(votes, known, strict=True) if not is_known]
    if space is not None and labelled:
        model = model._replace(U=_corrected_labels(functions, space, places, model, labelled))
    if others and (N := click_correction(functions, model, others, sample)) is not None:
        model = model._replace(N=N)
    return model


def _corrected_labels(
    functions: LinearHasher, space: LabelSpace, places: Places, model: Model, votes: list[StoredVote]
) -> Floats:
    """Return U so that queries have labels that agree with their votes."""
    assert model.U is not None and model.u is not None
    totals: dict[tuple[bytes, Id], float] = {}
    for vote in votes:
        totals[vote.query, vote.item] = totals.get((vote.query, vote.item), 0.0) + vote.vote
    last = {(vote.query, vote.item): vote for vote in votes}
    numbers = {query: number for number, query in enumerate(dict.fromkeys(vote.query for vote in votes))}
    queries = np.frombuffer(b"".join(numbers), np.float32).reshape(len(numbers), -1)
    Q = functions.prepare(queries).astype(np.float64)
    y = np.maximum(Q @ model.U + model.u, 0)
    labels = [
        (numbers[pair[0]], [places[name] for name in last[pair].labels if name in places], min(1.0, max(-1.0, total)))
        for pair, total in totals.items()
        if total
    ]
    change = agreeing_labels(y, labels) - np.maximum(y, MIN_LABEL)
    return (model.U + _least_change(space, Q, change)).astype(np.float32)


def _least_change(space: LabelSpace, Q: Doubles, change: Doubles) -> Doubles:
    """Return the matrix (D, c) that changes each query Q (n, D) so, nearly, and other rows as little as possible."""
    n, D = Q.shape
    mean_square = float(np.trace(space.squares)) / max(space.rows, 1e-12)
    S = (space.squares + mean_square * np.eye(D)) / (space.rows + D)  # with few rows, every direction counts alike
    return np.asarray(np.linalg.solve(LEARNT_WEIGHT * n**1.5 * S + Q.T @ Q, Q.T @ change))


class VoteSlot(NamedTuple):
    """The k-th votes of all queries that have so many: their labels one after another, and the votes."""

    rows: NDArray[np.int64]  # the query of each label
    labels: NDArray[np.int64]
    votes: NDArray[np.int64]  # to which vote a label belongs
    cast: Doubles  # the votes


def agreeing_labels(y: Doubles, votes: list[LabelVote]) -> Doubles:
    """Move labels y (n, c) until they agree with votes: coordinate ascent on the logarithms of the factors."""
    y, slots = np.maximum(y, MIN_LABEL), _slots(votes)
    factors = [np.zeros(len(slot.cast)) for slot in slots]  # logarithms
    for _ in range(FACTOR_ROUNDS):
        largest = 0.0
        for k, slot in enumerate(slots):
            most = np.abs(slot.cast) * np.log(MAX_FACTOR)
            sums = np.bincount(slot.votes, y[slot.rows, slot.labels], len(slot.cast))
            up = np.clip(factors[k] + np.log(LIKED_SUM / sums), 0.0, most)
            step = np.where(slot.cast < 0, -most, up) - factors[k]
            y[slot.rows, slot.labels] *= np.exp(step)[slot.votes]
            factors[k] = factors[k] + step
            largest = max(largest, float(np.abs(step).max()))
        if largest < FACTOR_TOLERANCE:
            break
    return y


def _slots(votes: list[LabelVote]) -> list[VoteSlot]:
    """Return the first votes of all queries, the second ones, and so on."""
    slots: dict[int, list[LabelVote]] = {}
    counts: Counter[int] = Counter()
    for vote in votes:
        slots.setdefault(counts[vote[0]], []).append(vote)
        counts[vote[0]] += 1
    columns = []
    for slot in slots.values():
        numbers = np.repeat(np.arange(len(slot)), [len(labels) for _, labels, _ in slot])
        labels = np.concatenate([labels for _, labels, _ in slot]).astype(np.int64)
        rows = np.array([row for row, _, _ in slot], np.int64)[numbers]
        columns.append(VoteSlot(rows, labels, numbers, np.array([cast for _, _, cast in slot])))
    return columns


CODE_RIDGE = 2.0  # of the covariance of codes, in units of the mean variance of a bit
QUERY_RIDGE = 1.0  # of the regression on queries, in units of a query's square
STANDARD_ERRORS = 2.0
HALF_QUERIES = 100  # with so many queries N counts for half of what it would


def click_correction(functions: LinearHasher, model: Model, votes: list[StoredVote], sample: Codes) -> Floats | None:
    """Return N (D, b) by votes on items of these codes; None if it is not certain to help.

    sample: codes of the collection at large.
    """
    numbers = {query: number for number, query in enumerate(dict.fromkeys(vote.query for vote in votes))}
    if len(numbers) < 2 or not len(sample):
        return None
    queries = np.frombuffer(b"".join(numbers), np.float32).reshape(len(numbers), -1)
    W = functions.weigh_by(model._replace(N=None), queries).astype(np.float64)
    targets, certain = _targets(W, votes, numbers, sample)
    Q = functions.prepare(queries).astype(np.float64) * certain[:, None]
    targets *= certain[:, None]
    N, predicted = leave_one_out(Q, targets, QUERY_RIDGE * float(np.mean(np.square(Q).sum(axis=1) / certain**2)))
    agreement, size = (targets * predicted).sum(axis=1), np.square(predicted).sum(axis=1)
    if not size.sum():
        return None
    slope = agreement.sum() / size.sum()
    error = np.sqrt(np.square(agreement - slope * size).sum()) / size.sum()
    share = min(1.0, slope - STANDARD_ERRORS * error) * len(numbers) / (len(numbers) + HALF_QUERIES)
    return (share * N).astype(np.float32) if share > 0 else None


def _targets(W: Doubles, votes: list[StoredVote], numbers: dict[bytes, int], sample: Codes) -> tuple[Doubles, Doubles]:
    """Return what each query should add to its weights W (n, b), and how certain that is, from 0 to 1."""
    bits = W.shape[1]
    rows = np.array([numbers[vote.query] for vote in votes])
    cast = np.array([vote.vote for vote in votes])
    codes = signs(np.frombuffer(b"".join(vote.code for vote in votes), np.uint8).reshape(len(votes), -1), bits)
    common = signs(sample, bits).astype(np.float64)
    mean = common.mean(axis=0)
    S = np.cov(common, rowvar=False, bias=True)
    S[np.diag_indices(bits)] += CODE_RIDGE * float(np.mean(np.diag(S)))
    sides = []  # of liked and disliked codes: their mean, less that of all codes, as weights
    for part in (cast > 0, cast < 0):
        total, codes_sum = np.zeros(len(W)), np.zeros_like(W)
        np.add.at(total, rows[part], np.abs(cast[part]))
        np.add.at(codes_sum, rows[part], np.abs(cast[part])[:, None] * (codes[part] - mean))
        means = codes_sum / np.where(total, total, 1)[:, None]
        sides.append((np.linalg.solve(S, means.T).T, total))
    seen = [(direction[total > 0], W[total > 0]) for direction, total in sides]
    tilt = sum(float((direction * own).sum()) for direction, own in seen)
    tilt /= max(sum(float(np.square(own).sum()) for _, own in seen), 1e-30)
    total = sides[0][1] + sides[1][1]
    targets = np.zeros_like(W)
    if tilt > 0:
        for sign, (direction, total_of_side) in zip((1, -1), sides, strict=True):
            targets += sign * (total_of_side > 0)[:, None] * (direction / tilt - W)
    return targets, np.sqrt(total / (1 + total))


def leave_one_out(Q: Doubles, T: Doubles, ridge: float) -> tuple[Doubles, Doubles]:
    """Return the regression (D, b) of T (n, b) on Q (n, D), and what it predicts of each row by all other rows."""
    n, D = Q.shape
    if n <= D:
        inverse = np.linalg.inv(Q @ Q.T + ridge * np.eye(n))
        dual = inverse @ T
        return Q.T @ dual, T - dual / np.diag(inverse)[:, None]
    P = np.linalg.solve(Q.T @ Q + ridge * np.eye(D), Q.T)
    N = P @ T
    leverage = np.einsum("dn,nd->n", P, Q)[:, None]
    return N, (Q @ N - leverage * T) / (1 - leverage)
