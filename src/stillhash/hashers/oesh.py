"""OESH: codes of each new chunk from vectors of its labels, which have one length for any number of labels."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState
from stillhash.hashers.base import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, parameter
from stillhash.hashers.labelled_codes import LabelCodeHasher, balanced_orthogonal, regularised
from stillhash.numeric import kernels
from stillhash.numeric.codes import pack, sgn, signs
from stillhash.numeric.labels import Labels, canonical, from_json, stable_key
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.targets import gaussian_integers
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Doubles, Floats, check_features

LAST_STEPS = 50  # of W and B by turns, at most, until B stays


class OeshSums(NamedTuple):
    """Sums over the rows of earlier chunks: g the vector of a row's labels, b its code, v near to b, x its features."""

    VV: Doubles  # (b, b) of v v^T
    GB: Doubles  # (label_dim, b) of g b^T
    GV: Doubles  # (label_dim, b) of g v^T
    XB: Doubles  # (D, b) of x b^T


class OeshTurn(NamedTuple):
    """What the steps of one turn give, in their order."""

    V: Doubles  # (n, b)
    U: Doubles  # (label_dim, b)
    W: Doubles  # (D, b)
    B: Doubles  # (n, b) in {-1, +1}


@dataclass(eq=False, repr=False, kw_only=True)
class OESH(LabelCodeHasher):
    """Online Enhanced Semantic Hashing (Wu, Luo, Zhan, Ding, Chen & Xu, AAAI 2022), ranked by Hamming distance.

    The paper calls it OASIS, which is another method here. Each label has a vector; a row's g is the sum of those of
    its labels, at unit length, so new labels change no dimension. With G of all rows and S = G G^T a chunk lowers

        |B - V|^2 + alpha |b S - V B^T|^2 + beta (|G - V U^T|^2 + theta |U|^2) + gamma (|B - X W|^2 + delta |W|^2)

    over U, W, and V and B of the new rows, by turns; those of earlier rows stay. B are codes in {-1, +1}; V is real,
    with orthogonal columns of sum 0 in each chunk, so that what earlier rows contribute are sums. Queries, and rows
    without labels, are encoded by sgn(W^T x), W the ridge regression of all codes so far on the features.

    A labelled row's code is sgn(alpha b g^T M + gamma W^T x), M the sum of g' v'^T over all rows so far, its own chunk
    included: mostly a function of its labels and of when it came. `encode(X, Y)` directly after `partial_fit(X, Y)`
    gives the codes that were learnt; later it gives those that new rows would get.

    Chunks should be large (the authors have 2,000 rows): of a chunk with n <= b rows V has rank n - 1, and one with
    a single label set adds nothing to M.

    Departures: one kind of features in place of image and text; a label without a vector in `label_vectors`, so by
    default every label, gets a random one, from the seed and the label, in place of the paper's word2vec vector of its
    name, so different labels are unlike each other; v, which the published code adds in the last step too, is left out
    there: it counts little beside alpha b M, and depends on random draws for each row; the random directions that fill
    up V are orthogonal to the others, which the published code leaves to chance; features are scaled by default, but
    not centred, as published. docs/paper-notes.md has more.

    Parameters
    ----------
    bits, center, unit_norm : code length b, 8 to 512, and pre-processing: see Hasher.
    alpha : weight of the similarity of labels between pairs of rows.
    beta, theta : weight of the regression of G on V, and its ridge.
    gamma, delta : weight of the hash functions' error, and their ridge.
    iterations : turns for each chunk.
    label_dim : length of the vectors of labels.
    label_vectors : the vectors of labels by label, such as word vectors of their names.
    random_state : seed of the first hash functions, of random label vectors and of where each chunk starts.
    """

    name = "oesh"
    saved_arrays: ClassVar = {"GB": "float64 label_dim b", "GV": "float64 label_dim b"}

    alpha: float = parameter(10.0, POSITIVE)
    beta: float = parameter(1.0, NOT_NEGATIVE)
    theta: float = parameter(1.0, POSITIVE)
    gamma: float = parameter(1.0, NOT_NEGATIVE)
    delta: float = parameter(1.0, POSITIVE)
    iterations: int = parameter(5, AT_LEAST_ONE)
    label_dim: int = parameter(300, AT_LEAST_ONE)
    label_vectors: Mapping[Hashable, Sequence[float]] | None = None

    def check_parameters(self) -> None:
        super().check_parameters()
        for label, vector in (self.label_vectors or {}).items():
            name = f"label_vectors[{canonical(label, 'label_vectors')!r}]"
            check_features([vector], name, columns=self.label_dim, whose="label_dim")

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        super()._begin(X, labels, rng)
        self.GB_: Doubles = np.zeros((self.label_dim, self.bits))
        self.GV_: Doubles = np.zeros((self.label_dim, self.bits))

    @one_thread
    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        vectors = self._vectors(labels)
        G, x = vectors.astype(np.float64), X.astype(np.float64)
        sums = OeshSums(self.VV_, self.GB_, self.GV_, self.XB_)
        XX = self.XX_ + x.T @ x
        inverse: Doubles = np.linalg.inv(regularised(XX, self.delta)).astype(np.float64)
        *_, (V, _, _, B) = oesh_turns(sums, G, x, inverse, self, self._draws())
        GV = self.GV_ + G.T @ V
        for _ in range(LAST_STEPS):
            W, before = (inverse @ (self.XB_ + x.T @ B)).astype(np.float32), B
            B = signs(self._codes_of(X, vectors, W, GV), self.bits).astype(np.float64)
            if np.array_equal(B, before):  # W is the regression of these codes
                break
        self.W_, self.XX_, self.XB_ = W, XX, self.XB_ + x.T @ B  # new arrays, so that readers need no lock
        self.VV_, self.GB_, self.GV_ = self.VV_ + V.T @ V, self.GB_ + G.T @ B, GV
        self.seen_ += len(X)

    def _labelled_codes(self, X: Floats, labels: Labels) -> Codes:
        return self._codes_of(X, self._vectors(labels), self.W_, self.GV_)

    def _codes_of(self, X: Floats, vectors: Floats, W: Floats, GV: Doubles) -> Codes:
        """Return the codes of prepared rows with these vectors of their labels."""
        by_label = kernels.project(vectors, (self.alpha * self.bits * GV).astype(np.float32))
        return pack(by_label + np.float32(self.gamma) * kernels.project(X, W))

    def _vectors(self, labels: Labels) -> Floats:
        """Return the vector (n, label_dim) of each row's labels, of unit length."""
        by_label = {canonical(name): np.asarray(v, np.float64) for name, v in (self.label_vectors or {}).items()}
        length = np.mean([np.linalg.norm(v) for v in by_label.values()]) if by_label else 1.0
        used, indices = np.unique(labels.indices, return_inverse=True)
        book = np.zeros((len(used), self.label_dim))
        for row, name in zip(book, (labels.names[i] for i in used), strict=True):
            if name in by_label:
                row[:] = by_label[name]
            else:
                row[:] = gaussian_integers(self.label_dim, self.random_state, stable_key(name))
                row *= length / max(1.0, float(np.linalg.norm(row)))
        return unit_rows(np.add.reduceat(book[indices], labels.indptr[:-1], axis=0)).astype(np.float32)

    def params_to_json(self) -> dict[str, Any]:
        vectors = self.label_vectors
        listed = (
            None if vectors is None else [[name, np.asarray(v, np.float64).tolist()] for name, v in vectors.items()]
        )
        return {**super().params_to_json(), "label_vectors": listed}

    @classmethod
    def params_from_json(cls, params: dict[str, Any]) -> dict[str, Any]:
        if params.get("label_vectors") is None:
            return params
        return {**params, "label_vectors": {from_json(name): vector for name, vector in params["label_vectors"]}}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        if len(self.GV_) != self.label_dim:
            raise BadState(f"GV: expected {self.label_dim} rows, got {len(self.GV_)}")


def oesh_turns(
    sums: OeshSums, G: Doubles, X: Doubles, inverse: Doubles, hasher: OESH, rng: np.random.Generator
) -> Iterator[OeshTurn]:
    """Yield what a chunk has after each turn. None of the four steps raises the objective.

    inverse: (D, D), of X^T X over all rows so far, this chunk's X included, plus delta I.
    """
    n, b = len(G), hasher.bits
    weight = float(hasher.alpha) * b
    B, U = rng.choice([-1.0, 1.0], (n, b)), rng.standard_normal((G.shape[1], b))
    for _ in range(hasher.iterations):
        V = balanced_orthogonal(weight * (G @ (sums.GB + G.T @ B)) + hasher.beta * (G @ U) + B, rng)
        GV = sums.GV + G.T @ V
        U = np.asarray(np.linalg.solve(regularised(sums.VV + V.T @ V, hasher.theta), GV.T).T, np.float64)
        W = inverse @ (sums.XB + X.T @ B)
        B = sgn(weight * (G @ GV) + V + hasher.gamma * (X @ W)).astype(np.float64)
        yield OeshTurn(V, U, W, B)
