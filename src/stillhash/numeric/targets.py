"""Target codes g in {-1, +1}^l of label sets, for a vocabulary that may grow without limit.

Every label owns a row of l integers generated from the seed and the label itself, so it is the same row in any order of
arrival, in any process and on any machine. The draws come from SHAKE-256, not from NumPy's generators,
whose streams may change between releases: a saved model must give its labels the same codes later.
"""

import hashlib
from collections.abc import Hashable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.labels import Labels, from_json, stable_key

Merge = Literal["sum_lsh", "hmoh"]
MERGES: tuple[Merge, ...] = ("sum_lsh", "hmoh")

TargetArray = NDArray[np.int8]  # (n, l)


def gaussian_integers(count: int, seed: int, key: bytes) -> NDArray[np.int64]:
    """Return nearly normal integers (sums of eight uniform 16-bit draws, centred) that depend on seed and key alone."""
    stream = hashlib.shake_256(b"stillhash:%d:" % seed + key).digest(16 * count)
    draws = np.frombuffer(stream, "<u2").reshape(count, 8)
    return np.asarray(draws.sum(axis=1, dtype=np.int64) - 4 * 65535)


class TargetCodes:
    """Turn rows of labels into target codes.

    merge="sum_lsh": g = sgn(sum of the labels' rows). Deterministic per label set; for label sets A and B the expected
    agreement E[g_A . g_B] / l is (2 / pi) asin(|A n B| / sqrt(|A| |B|)).

    merge="hmoh": the faithful reading of HMOH. Labels own rows of a Hadamard matrix in order of arrival; the sign of
    their sum has its zeros filled at random, towards balance, for each row of data; then sgn(h R) where the
    matrix is wider than l. It has orthogonal rows for max(l, capacity) labels.
    """

    def __init__(self, length: int, *, merge: Merge = "sum_lsh", seed: int = 0, capacity: int = 0) -> None:
        self.length, self.merge, self.seed = length, merge, seed
        self.names: dict[Hashable, int] = {}  # label -> place in the codebook, in order of arrival
        self.rows_seen = 0  # rows of data merged so far: the position in hmoh's random stream
        self.side = 1 << (max(length, capacity) - 1).bit_length() if merge == "hmoh" else length
        self._codebook = np.empty((0, self.side), np.int64)  # (labels, side)
        self._R: NDArray[np.int64] | None = None  # (side, l), drawn once from the seed: the length reduction of HMOH
        if self.side != length:
            self._R = gaussian_integers(self.side * length, seed, b"reduction").reshape(self.side, length)

    def __call__(self, labels: Labels) -> TargetArray:
        """Return the target codes (n, l) of rows that each have a label."""
        for name in _by_arrival(labels) if self.merge == "hmoh" else ():
            self._place(name)
        places = np.array([self._place(name) for name in labels.names], np.int64)[labels.indices]
        if not len(places):
            return np.empty((len(labels), self.length), np.int8)
        sums = np.add.reduceat(self._codebook[places], labels.indptr[:-1], axis=0)  # (n, side)
        if self.merge == "hmoh":
            sums = self._balanced(np.sign(sums))
            if self._R is not None:
                sums = sums @ self._R
        return np.where(sums >= 0, np.int8(1), np.int8(-1))

    def state(self) -> dict[str, Any]:
        """Return what the seed does not determine: only hmoh depends on the order of arrival."""
        return {"names": list(self.names), "rows_seen": self.rows_seen} if self.merge == "hmoh" else {}

    def load(self, state: dict[str, Any]) -> None:
        for name in state.get("names", ()):
            self._place(from_json(name))
        self.rows_seen = state.get("rows_seen", 0)

    def _place(self, name: Hashable) -> int:
        if name not in self.names:
            row = self._hadamard(name) if self.merge == "hmoh" else self._random(name)
            if len(self.names) == len(self._codebook):
                spare = np.zeros((max(16, len(self._codebook)), self.side), np.int64)
                self._codebook = np.concatenate([self._codebook, spare])
            self._codebook[len(self.names)] = row
            self.names[name] = len(self.names)
        return self.names[name]

    def _random(self, name: Hashable) -> NDArray[np.int64]:
        return gaussian_integers(self.side, self.seed, stable_key(name))

    def _hadamard(self, name: Hashable) -> NDArray[np.int64]:
        """Return row c of Sylvester's matrix, (-1)^popcount(c & j); random signs once its rows are used up (note 6)."""
        c = len(self.names)
        if c >= self.side:
            return np.where(self._random(name) >= 0, 1, -1)
        shared = np.array([(c & j).bit_count() for j in range(self.side)])
        return 1 - 2 * (shared % 2)

    def _balanced(self, signs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Fill zeros with the minority sign until both are even, the rest half and half, at random places."""
        for r in np.flatnonzero((signs == 0).any(axis=1)):
            zeros = np.flatnonzero(signs[r] == 0)
            np.random.default_rng([self.seed, self.rows_seen + int(r)]).shuffle(zeros)
            surplus = int(signs[r].sum())  # more +1 than -1
            even = min(abs(surplus), len(zeros))
            signs[r, zeros[:even]] = -1 if surplus > 0 else 1
            rest = zeros[even:]
            signs[r, rest[: len(rest) // 2]] = 1
            signs[r, rest[len(rest) // 2 :]] = -1
        self.rows_seen += len(signs)
        return signs


def _by_arrival(labels: Labels) -> list[Hashable]:
    """Return the names in order of their first rows, so that a label's place does not depend on the chunks."""
    rows = np.repeat(np.arange(len(labels)), np.diff(labels.indptr))
    first = np.full(len(labels.names), len(labels))
    np.minimum.at(first, labels.indices, rows)
    arrivals = sorted((int(row), stable_key(name), name) for row, name in zip(first, labels.names, strict=True))
    return [name for _, _, name in arrivals]
