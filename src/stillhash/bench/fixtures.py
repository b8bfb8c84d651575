"""Codes and weights that were really learnt, in any number: what a search meets in use, unlike random ones.

OHSL is trained on made-up features of several labels each; queries are held-out rows. A few tens of thousands of rows
are really hashed, and more codes are drawn from their projections with a little noise, so that the bits
keep their marginals and correlations.

Features have norm 30 and are centred, but not scaled to unit norm. With unit norm and C = 0.01 nearly every step is
capped (note 8 of docs/paper-notes.md), and the weights of these queries lie along two or three directions. Weights so
much alike are no benchmark, and are refused. The magnitude of the cosine is judged: centred queries that all lie
along one line have both signs, and their plain median is near zero.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.bench.timing import one_blas_thread
from stillhash.errors import InvalidInput
from stillhash.hashers import OHSL
from stillhash.numeric import kernels
from stillhash.numeric.codes import Tiles, empty_tiles, pack
from stillhash.numeric.validation import Floats

COLUMNS = 1024
LABELS = 80
TAIL = 0.5  # the label of rank r has a frequency like r^-TAIL
PER_ROW = 3  # labels of a row, about
NUISANCE = 16  # directions that vary and mean nothing
NORM = 30
SAMPLE = 300  # rows that fix the hash functions
CHUNK = 1000
TAUGHT = 10_000  # rows learnt from
HASHED = 60_000  # rows really hashed
JITTER = 0.25  # noise on a resampled projection, in standard deviations of its bit
SLICE = 250_000  # codes made at a time
ASKED = 64  # queries at least: of a few, the diversity would be a matter of luck
DIVERSE = 0.3  # the median |cosine| between two queries' weights stays below


KINDS = ("gaussian", "learnt")  # weights on random codes; weights and codes of a trained hasher


class Learnt(NamedTuple):
    weights: Floats  # (queries, bits)
    projections: Floats  # (rows, bits), whose signs are the codes
    cosine: float  # median magnitude, between the weights of two queries


def made(kind: str, bits: int, rows: int, queries: int, *, quick: bool = False) -> tuple[Tiles, Floats]:
    """Tiles of codes, and weights (queries, bits)."""
    if kind == "gaussian":
        return random_tiles(bits, rows), np.random.default_rng(bits).standard_normal((queries, bits), dtype=np.float32)
    found = learnt(bits, queries, quick=quick)
    return resampled(found.projections, rows), found.weights[:queries]


def learnt(bits: int, queries: int, *, quick: bool = False, seed: int = 0) -> Learnt:
    """A trained hasher's weights for held-out rows, and its projections of a database."""
    taught, hashed = (TAUGHT // 5, HASHED // 20) if quick else (TAUGHT, HASHED)
    with one_blas_thread():
        world = World(seed)
        hasher = OHSL(bits, unit_norm=False, random_state=seed).fit(world.rows(SAMPLE)[0])
        for _ in range(0, taught, CHUNK):
            hasher.partial_fit(*world.rows(CHUNK))
        weights = hasher.weigh(world.rows(max(queries, ASKED))[0])
        projections = [projected(hasher, world.rows(CHUNK)[0]) for _ in range(0, hashed, CHUNK)]
    return Learnt(weights, np.concatenate(projections), diversity(weights))


class World:
    """Rows of features after a rectifier: the sum of their labels' centres, nuisances and noise, of norm 30."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.centres = self.rng.standard_normal((LABELS, COLUMNS), dtype=np.float32) / 2
        self.nuisances = self.rng.standard_normal((NUISANCE, COLUMNS), dtype=np.float32) / 4
        frequency = np.arange(1, LABELS + 1) ** -TAIL
        self.frequency = frequency / frequency.sum()

    def rows(self, count: int) -> tuple[Floats, NDArray[np.bool_]]:
        rng = self.rng
        labels = rng.random((count, LABELS)) < PER_ROW * self.frequency
        labels[np.arange(count), rng.choice(LABELS, count, p=self.frequency)] |= ~labels.any(axis=1)
        strength = labels * rng.uniform(0.5, 1.5, labels.shape).astype(np.float32)
        X = strength @ self.centres
        X += rng.standard_normal((count, NUISANCE), dtype=np.float32) @ self.nuisances
        X += np.float32(0.5) * rng.standard_normal(X.shape, dtype=np.float32)
        X = np.maximum(X - np.float32(0.5), 0)
        return X * (NORM / np.linalg.norm(X, axis=1, keepdims=True)), labels


def projected(hasher: OHSL, X: Floats) -> Floats:
    """What `encode` takes the signs of, for a hasher without unit norm."""
    return kernels.project(X - hasher.mean_, hasher.W_) + hasher.t_


def diversity(weights: Floats) -> float:
    """The median |cosine| between two queries' weights; weights that are all alike are refused."""
    unit = weights / np.maximum(np.linalg.norm(weights, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    found = float(np.median(np.abs(unit @ unit.T)[np.triu_indices(len(unit), 1)]))
    if not found < DIVERSE:
        raise InvalidInput(f"weights has a median |cosine| of {found:.2f} between queries; below {DIVERSE} is wanted")
    return found


def resampled(projections: Floats, rows: int, seed: int = 0) -> Tiles:
    """Codes of projections drawn from the given ones, with noise."""
    rng = np.random.default_rng(seed)
    bits = projections.shape[1]
    noise = np.float32(JITTER) * projections.std(axis=0)
    tiles = empty_tiles(rows, bits)
    for start in range(0, rows, SLICE):
        count = min(SLICE, rows - start)
        drawn = rng.standard_normal((count, bits), dtype=np.float32)
        drawn *= noise
        drawn += projections[rng.integers(len(projections), size=count)]
        kernels.write_tiles(tiles, start, pack(drawn))
    return tiles


def random_tiles(bits: int, rows: int, seed: int = 0) -> Tiles:
    """Codes of fair coins; `bits` fills its bytes."""
    rng = np.random.default_rng(seed)
    tiles = empty_tiles(rows, bits)
    for start in range(0, rows, SLICE):
        codes = rng.integers(0, 256, (min(SLICE, rows - start), bits // 8), dtype=np.uint8)
        kernels.write_tiles(tiles, start, codes)
    return tiles
