"""Learn from votes without labels: a matrix N that corrects the weights of every query, + q @ N.

The codes that a query's ranking shows are tilted towards its weights w: their mean is m + s S w, with the mean m and
covariance S of all codes. Codes that are liked are tilted further, so d = S^-1 (mean liked - m) / s - w is what a query
should add to its weights; disliked ones are tilted the other way. N is the ridge regression of d on the features of
queries. Each query is also predicted without its own votes: N counts for as much as these predictions are right,
less two standard errors, so that few votes teach nothing and never harm. docs/method.md derives it.
"""

import numpy as np

from stillhash.collection.storage.votes import StoredVote
from stillhash.hashers import LinearHasher, Model
from stillhash.numeric.codes import signs
from stillhash.numeric.validation import Codes, Doubles, Floats

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
