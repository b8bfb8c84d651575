"""Make what benches work on: random and labelled rows, and codes and weights that were really learnt.

A search meets learnt codes in use, and random ones are unlike them. OHSL is trained on made-up features of several
labels each; queries are held-out rows. A few tens of thousands of rows are really hashed, and more codes are drawn from
their projections with a little noise, so that the bits keep their marginals and correlations.

Features have norm 30 and are centred, but not scaled to unit norm. With unit norm and C = 0.01 nearly every step is
capped (note 8 of docs/paper-notes.md), and the weights of these queries lie along two or three directions. Weights so
much alike are no benchmark, and are refused. The magnitude of the cosine is judged: centred queries that all lie
along one line have both signs, and their plain median is near zero.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import stillhash
from benchmarks.timing import CODE_BITS, one_library_thread
from stillhash.errors import InvalidInput
from stillhash.hashers import OHSL
from stillhash.numeric import kernels
from stillhash.numeric.codes import Tiles, empty_tiles, pack, to_tiles
from stillhash.numeric.validation import Floats

FEATURES, ROW_NORM = 1024, 30
LABEL_COUNT, LABELS_PER_ROW = 80, 3  # about three a row
FREQUENCY_DECAY = 0.5  # the label of rank r has a frequency like r^-FREQUENCY_DECAY
NUISANCES = 16  # directions that vary and mean nothing
INITIAL_ROWS, LEARNT_ROWS, HASHED_ROWS = 300, 10_000, 60_000  # that fix the hash functions, are learnt, are hashed
ROWS_AT_ONCE, CODES_AT_ONCE = 1000, 250_000
JITTER = 0.25  # noise on a resampled projection, in standard deviations of its bit
MIN_LEARNT_QUERIES = 64  # of fewer, the diversity would be a matter of luck
MAX_COSINE = 0.3  # the median |cosine| between two queries' weights stays below
COLLECTION_FIT_ROWS = 500  # rows that fix the hash functions of a collection
WEIGHT_KINDS = ("gaussian", "learnt")  # weights on random codes; weights and codes of a trained hasher


def random_features(rows: int, dim: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((rows, dim), dtype=np.float32)


def labelled_features(rows: int, dim: int, seed: int, labels: int = 40, noise: float = 1) -> tuple[Floats, list[int]]:
    """Make rows around centres, one for each label, so that there is something to learn."""
    chosen = np.random.default_rng([seed, 1]).integers(labels, size=rows)
    centres = random_features(labels, dim, seed=0)
    return random_features(rows, dim, seed) * np.float32(noise) + centres[chosen], chosen.tolist()


def open_fitted(path: Path, dim: int) -> stillhash.Collection:
    """Create an empty collection whose hash functions are fixed."""
    collection = stillhash.open(path, dim, CODE_BITS)
    collection.fit(random_features(COLLECTION_FIT_ROWS, dim, seed=0))
    return collection


def make_codes(kind: str, bits: int, rows: int, queries: int, *, quick: bool = False) -> tuple[Tiles, Floats]:
    """Make tiles of codes, and weights (queries, bits)."""
    if kind == "gaussian":
        codes = np.random.default_rng(0).integers(0, 256, (rows, bits // 8), dtype=np.uint8)
        return to_tiles(codes, bits), random_features(queries, bits, seed=bits)
    weights, projections = learn_codes(bits, queries, quick=quick)
    return resample(projections, rows), weights[:queries]


def learn_codes(bits: int, queries: int, *, quick: bool = False, seed: int = 0) -> tuple[Floats, Floats]:
    """Return a trained hasher's weights for held-out rows, and its projections of a database, (rows, bits) both."""
    learnt, hashed = (LEARNT_ROWS // 5, HASHED_ROWS // 20) if quick else (LEARNT_ROWS, HASHED_ROWS)
    with one_library_thread():
        source = FeatureSource(seed)
        hasher = OHSL(bits, unit_norm=False, random_state=seed).fit(source.rows(INITIAL_ROWS)[0])
        for _ in range(0, learnt, ROWS_AT_ONCE):
            hasher.partial_fit(*source.rows(ROWS_AT_ONCE))
        weights = hasher.weigh(source.rows(max(queries, MIN_LEARNT_QUERIES))[0])
        projections = [project(hasher, source.rows(ROWS_AT_ONCE)[0]) for _ in range(0, hashed, ROWS_AT_ONCE)]
    median_cosine(weights)
    return weights, np.concatenate(projections)


class FeatureSource:
    """Draws rows of features after a rectifier: the sum of their labels' centres, nuisances and noise, of norm 30."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.centres = self.rng.standard_normal((LABEL_COUNT, FEATURES), dtype=np.float32) / 2
        self.nuisances = self.rng.standard_normal((NUISANCES, FEATURES), dtype=np.float32) / 4
        frequency = np.arange(1, LABEL_COUNT + 1) ** -FREQUENCY_DECAY
        self.frequency = frequency / frequency.sum()

    def rows(self, count: int) -> tuple[Floats, NDArray[np.bool_]]:
        rng = self.rng
        labels = rng.random((count, LABEL_COUNT)) < LABELS_PER_ROW * self.frequency
        labels[np.arange(count), rng.choice(LABEL_COUNT, count, p=self.frequency)] |= ~labels.any(axis=1)
        strength = labels * rng.uniform(0.5, 1.5, labels.shape).astype(np.float32)
        X = strength @ self.centres
        X += rng.standard_normal((count, NUISANCES), dtype=np.float32) @ self.nuisances
        X += np.float32(0.5) * rng.standard_normal(X.shape, dtype=np.float32)
        X = np.maximum(X - np.float32(0.5), 0)
        return X * (ROW_NORM / np.linalg.norm(X, axis=1, keepdims=True)), labels


def project(hasher: OHSL, X: Floats) -> Floats:
    """Return what `encode` takes the signs of, for a hasher without unit norm."""
    return kernels.project(X - hasher.mean_, hasher.W_) + hasher.t_


def median_cosine(weights: Floats) -> float:
    """Return the median |cosine| between two queries' weights; refuse weights that are all alike."""
    unit = weights / np.maximum(np.linalg.norm(weights, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    cosine = float(np.median(np.abs(unit @ unit.T)[np.triu_indices(len(unit), 1)]))
    if not cosine < MAX_COSINE:
        raise InvalidInput(f"weights: expected a median |cosine| between queries below {MAX_COSINE}, got {cosine:.2f}")
    return cosine


def resample(projections: Floats, rows: int, seed: int = 0) -> Tiles:
    """Make codes of projections drawn from these, with noise."""
    rng = np.random.default_rng(seed)
    bits = projections.shape[1]
    noise = np.float32(JITTER) * projections.std(axis=0)
    tiles = empty_tiles(rows, bits)
    for start in range(0, rows, CODES_AT_ONCE):
        count = min(CODES_AT_ONCE, rows - start)
        values = rng.standard_normal((count, bits), dtype=np.float32)
        values *= noise
        values += projections[rng.integers(len(projections), size=count)]
        kernels.write_tiles(tiles, start, pack(values))
    return tiles
