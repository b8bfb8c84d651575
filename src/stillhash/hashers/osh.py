"""OSH: principal directions of a whole stream, from a sketch of a few rows."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stillhash.hashers.base import COUNT, parameter
from stillhash.hashers.linear import LinearHasher
from stillhash.numeric.hashing import HashFunctions
from stillhash.numeric.labels import Labels
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Doubles, Floats, check_arrays, check_integer

ROTATION_STREAM, COMPLETION_STREAM = 1, 2  # streams of random numbers of the seed
MAX_SKETCH = 10_000  # rows: a state may not take memory without bound
MIN_SPECTRUM = 1e-10  # of the largest squared singular value: below it a direction is rounding, not data


class FrequentDirections:
    """At most s rows whose scatter approximates that of all rows inserted (Liberty, KDD 2013; s even).

    For the rows A so far and any unit x: 0 <= x^T (A^T A - Sk^T Sk) x <= 2 |A|_F^2 / s.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.rows = rows
        self._buffer = np.zeros((rows, columns))
        self._filled = 0

    @property
    def Sk(self) -> Doubles:
        return self._buffer[: self._filled]

    def insert(self, A: Doubles) -> None:
        while len(A):
            if self._filled == self.rows:
                self._shrink()
            taken = A[: self.rows - self._filled]
            self._buffer[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            A = A[len(taken) :]

    def _shrink(self) -> None:
        """Subtract the middle squared singular value from all of them, which empties half of the rows."""
        squares, Q = self._spectrum()
        half = len(squares) // 2
        rest = np.maximum(squares[:half] - squares[half], 0)
        scale = np.sqrt(np.divide(rest, squares[:half], out=np.zeros(half), where=squares[:half] > 0))
        self._buffer[:half] = (Q[:, :half] * scale).T @ self._buffer  # row i of Q^T Sk is s_i v_i^T
        self._filled = half

    def directions(self, most: int) -> Doubles:
        """Return up to `most` leading right singular vectors (D, r); the largest entry of each is positive."""
        squares, Q = self._spectrum()
        r = int((squares[:most] > MIN_SPECTRUM * max(squares[0], 0)).sum())
        V: Doubles = self.Sk.T @ (Q[:, :r] / np.sqrt(squares[:r]))
        V *= np.sign(V[np.abs(V).argmax(axis=0), np.arange(r)])
        return V

    def _spectrum(self) -> tuple[Doubles, Doubles]:
        """Return squared singular values, falling, and left singular vectors, by the s x s Gram matrix."""
        squares, Q = np.linalg.eigh(self.Sk @ self.Sk.T)
        return squares[::-1], Q[:, ::-1]


@dataclass(eq=False, repr=False, kw_only=True)
class OSH(LinearHasher):
    """Online Sketching Hashing (Leng et al., CVPR 2015), unsupervised: it learns from every row, labelled or not.

    A sketch follows the scatter of all rows seen, around their exact mean mu; the code is sgn(R^T V^T (x - mu)), with V
    the b leading directions of the sketch and R a random rotation that spreads the variance over the bits. The name
    clash: OHSL's paper says OSH for this method; other papers call it SketchHash, and mean by OSH what is here OSupH.

    Departures: R is fixed by the seed, where the published code draws a new one after every chunk, and each direction
    has a fixed sign, so that codes drift instead of jumping. Where the data has fewer than b directions, random ones of
    the seed complete them. `fit` only makes the first hash functions, which are used until b rows have come; its rows
    are not sketched, for the stream brings them again. Features are centred and scaled as for all methods.

    Parameters
    ----------
    bits, center, unit_norm : code length b, 8 to 512, and pre-processing: see Hasher.
    sketch : rows s of the sketch, at most 10,000; raised to at least 2 b, and to an even number.
    random_state : seed of the rotation.
    """

    name = "osh"
    supervised = False
    chunk_invariant = False  # a chunk enters around its own mean, and a shrink of the sketch falls on another row
    saved_arrays: ClassVar = {"mu": "float64 D"}
    saved_values: ClassVar = {"n": COUNT}

    sketch: int = parameter(200, partial(check_integer, low=2, high=MAX_SKETCH))

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        self._clear()
        self._absorb(X)
        self._fix(self._functions())
        self._clear()

    def _empty_sketch(self) -> FrequentDirections:
        s = max(self.sketch, 2 * self.bits)
        return FrequentDirections(s + s % 2, self.n_features_in_)

    def _clear(self) -> None:
        self.sketch_ = self._empty_sketch()
        self.mu_: Doubles = np.zeros(self.n_features_in_)  # (D,), mean of the rows so far
        self.n_ = 0  # how many they are

    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        self._absorb(X)
        if self.n_ >= self.bits:
            before = self.W_, self.t_
            self._fix(self._functions())
            self.stale_ = not all(map(np.array_equal, before, (self.W_, self.t_)))

    @one_thread
    def _absorb(self, X: Floats) -> None:
        n, m = self.n_, len(X)
        mA = X.mean(axis=0, dtype=np.float64)
        for s in range(0, m, self.bits):
            self.sketch_.insert(X[s : s + self.bits] - mA)
        if n:  # the scatter around the common mean = the sum of both scatters + that of the two means
            self.sketch_.insert(np.sqrt(n * m / (n + m)) * (mA - self.mu_)[None])
        self.mu_ = (n * self.mu_ + m * mA) / (n + m)
        self.n_ = n + m

    @one_thread
    def _functions(self) -> HashFunctions:
        V = self.sketch_.directions(self.bits)  # (D, r)
        if (r := V.shape[1]) < self.bits:
            more = self._random(COMPLETION_STREAM, (self.n_features_in_, self.bits))[:, r:]
            V = np.concatenate([V, more / np.linalg.norm(more, axis=0)], axis=1)
        R = np.linalg.qr(self._random(ROTATION_STREAM, (self.bits, self.bits)))[0]
        W = V @ R
        return HashFunctions(W.astype(np.float32), (-self.mu_ @ W).astype(np.float32))

    def _random(self, stream: int, shape: tuple[int, int]) -> Doubles:
        return np.random.default_rng([self.random_state, stream]).standard_normal(shape)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {**super()._arrays(), "sketch": self.sketch_.Sk}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        self.sketch_ = self._empty_sketch()
        rows = min(len(arrays["sketch"]), self.sketch_.rows)
        check_arrays(arrays, {"sketch": "float64 s D"}, {"s": rows, "D": self.n_features_in_})
        self.sketch_.insert(arrays["sketch"])
