"""Fixed hash functions x~ = sgn(W^T x + t): random projections, PCA-ITQ, and ITQ guided by labels."""

from typing import NamedTuple

import numpy as np

from stillhash.errors import InvalidInput
from stillhash.numeric import kernels
from stillhash.numeric.labels import MIN_ROWS, LabelBelief, agreement
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Doubles, Floats

ITQ_ITERATIONS = 50
LABEL_RIDGE = 1.0  # is the ridge of predicted labels, in units of the mean square of a row


class HashFunctions(NamedTuple):
    W: Floats  # (D, b)
    t: Floats  # (b,)
    G: Floats | None = None  # (labels, k): the first k hash functions of a row with labels y, where these are known,
    g: Floats | None = None  # (k,): are y @ G + g
    belief: LabelBelief = LabelBelief()  # in labels, by how they agree with the first k hash functions


def check_variance(measure: float) -> None:
    """Refuse a sample whose variance, by any measure of it, is zero."""
    if not measure > 0:
        raise InvalidInput("X: expected rows that differ, got equal rows after pre-processing (no variance)")


def squared_distances(X: Floats, anchors: Floats) -> Floats:
    """Return squared distances (n, m) of rows of X (n, D) to columns of anchors (D, m), never negative by rounding."""
    own, theirs = np.einsum("ij,ij->i", X, X)[:, None], np.einsum("ij,ij->j", anchors, anchors)
    return np.asarray(np.maximum(own + theirs - 2 * kernels.project(X, anchors), np.float32(0)))


def lsh(X0: Floats, bits: int, rng: np.random.Generator) -> HashFunctions:
    """Return sign random projections, centred on the mean of the sample X0."""
    W = rng.standard_normal((X0.shape[1], bits))
    W /= np.linalg.norm(W, axis=0)
    mean = X0.mean(axis=0, dtype=np.float64)
    return HashFunctions(W.astype(np.float32), (-mean @ W).astype(np.float32))


def identity(X0: Floats, bits: int) -> HashFunctions:
    """Return hash functions that are the features themselves: bit i is the sign of feature i."""
    if X0.shape[1] != bits:
        raise InvalidInput(f"init: expected as many features as bits for identity, got {X0.shape[1]} for {bits} bits")
    return HashFunctions(np.eye(bits, dtype=np.float32), np.zeros(bits, np.float32))


@one_thread
def pca_itq(X0: Floats, bits: int, rng: np.random.Generator) -> HashFunctions:
    """Return the principal directions of the sample X0, rotated so that signs lose least (Gong et al.)."""
    mean = X0.mean(axis=0, dtype=np.float64)
    Z = X0 - mean  # (n0, D)
    P = principal_directions(Z, bits)  # (D, r), r <= b
    R, _ = itq_rotation(Z @ P, bits, rng)  # (r, b)
    W = P @ R
    return HashFunctions(W.astype(np.float32), (-mean @ W).astype(np.float32))


def principal_directions(Z: Doubles, most: int) -> Doubles:
    """Return up to `most` principal directions (D, r) of centred rows, by a thin SVD: never the D x D covariance."""
    _, s, Vt = np.linalg.svd(Z, full_matrices=False)
    rank = int((s > s[0] * max(Z.shape) * np.finfo(s.dtype).eps).sum()) if len(s) and s[0] > 0 else 0
    check_variance(rank)
    return Vt[: min(most, rank)].T


def itq_rotation(A: Doubles, bits: int, rng: np.random.Generator) -> tuple[Doubles, list[float]]:
    """Return R (r, b), R R^T = I, that brings A R close to its signs; and the objective |sgn(A R) - A R|^2 by step.

    With r = b this is ITQ's rotation. With r < b (features narrower than the code, or a small sample) R is a
    tight frame instead, and both alternating steps stay optimal, so the objective still never rises (note 5).
    """
    R = np.linalg.qr(rng.standard_normal((bits, A.shape[1])))[0].T
    objective = []
    for _ in range(ITQ_ITERATIONS):
        B = np.where(A @ R >= 0, 1.0, -1.0)
        objective.append(float(((B - A @ R) ** 2).sum()))
        left, _, right = np.linalg.svd(A.T @ B, full_matrices=False)  # Procrustes: max tr(R^T A^T B)
        R = left @ right
    return R, objective


@one_thread
def label_itq(X0: Floats, Y0: Floats, bits: int, share: float, rng: np.random.Generator) -> HashFunctions:
    """Return ITQ where labels are known: `share` of the bits hash the directions that predict the labels Y0 (n0, C)
    best, the others the principal directions of what is left, so that later labels are represented too."""
    mean, y_mean = X0.mean(axis=0, dtype=np.float64), Y0.mean(axis=0, dtype=np.float64)
    Z = X0 - mean
    P, components = predictive_directions(Z, Y0 - y_mean, round(share * bits))
    predictive = P @ components
    Q = np.linalg.qr(predictive)[0]
    rest = Z - (Z @ Q) @ Q.T
    split = round(share * bits) if predictive.shape[1] else 0
    if np.linalg.norm(rest) <= 1e-6 * np.linalg.norm(Z):
        split = bits  # the labels explain everything
    parts, G = [], np.empty((len(components), 0))
    if split:
        R = itq_rotation(Z @ predictive, split, rng)[0]
        G = components @ R
        parts.append(P @ G)
    if split < bits:
        principal = principal_directions(rest, bits - split)
        parts.append(principal @ itq_rotation(rest @ principal, bits - split, rng)[0])
    W = np.concatenate(parts, axis=1)
    belief = estimate_belief(Z, Y0 - y_mean, components, rng) if split else LabelBelief()
    single = [np.asarray(array, np.float32) for array in (W, -mean @ W, G, -y_mean @ G)]
    return HashFunctions(single[0], single[1], single[2], single[3], belief)


def estimate_belief(Z: Doubles, Y: Doubles, components: Doubles, rng: np.random.Generator) -> LabelBelief:
    """Estimate how far labels Y can be believed: each half of the rows is predicted by the other half."""
    if len(Z) < MIN_ROWS:
        return LabelBelief()
    predicted, labels, half = np.empty((len(Z), components.shape[1])), Y @ components, rng.random(len(Z)) < 0.5
    for rows in (half, ~half):
        predicted[rows] = Z[rows] @ predictive_directions(Z[~rows], Y[~rows], 0)[0] @ components
    agreements, shuffled = (agreement(predicted, labels[order]) for order in (slice(None), rng.permutation(len(Z))))
    return LabelBelief.estimate(agreements, shuffled)


def predictive_directions(Z: Doubles, Y: Doubles, most: int) -> tuple[Doubles, Doubles]:
    """Return P (D, C), the ridge regression of Y on Z, both centred; and up to `most` principal components (C, r) of
    what it predicts. Their product is r directions of features, longer where they predict better."""
    tall = Z.shape[1] <= len(Z)
    S = Z.T @ Z if tall else Z @ Z.T  # the smaller of the two forms of ridge regression
    S[np.diag_indices_from(S)] += LABEL_RIDGE * max(float((Z * Z).sum()) / len(Z), 1e-30)
    P = np.linalg.solve(S, Z.T @ Y) if tall else Z.T @ np.linalg.solve(S, Y)  # (D, C)
    _, s, Vt = np.linalg.svd(Z @ P, full_matrices=False)
    rank = int((s > s[0] * 1e-6).sum()) if len(s) and s[0] > 0 else 0
    return np.asarray(P, np.float64), np.asarray(Vt[: min(most, rank)].T, np.float64)
