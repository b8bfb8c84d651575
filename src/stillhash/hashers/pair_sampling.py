"""Sample similar and dissimilar partners of arriving rows, and the base of methods that learn from them.

Two rows are similar if they share a label. Labels are compared by 64-bit fingerprints of their stable keys, so a
row can be saved whatever its labels are made of.
"""

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState
from stillhash.hashers.base import Model
from stillhash.hashers.linear import LinearHasher
from stillhash.numeric.codes import pack, signs
from stillhash.numeric.hashing import pca_itq
from stillhash.numeric.labels import Labels, stable_key
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Doubles, Floats, Mask, check_codes, check_integer

RESERVOIR = 1000  # earlier rows that partners are drawn from
ROWS_PER_GENERATOR = 1024  # creating a generator takes longer than all the rest of a row
LabelSet = frozenset[int]  # of fingerprints


def fingerprints(labels: Labels) -> list[LabelSet]:
    """Return for each row the set of its labels, as numbers below 2^64."""
    keys = [int.from_bytes(hashlib.shake_256(stable_key(name)).digest(8), "little") for name in labels.names]
    flat = [keys[i] for i in labels.indices.tolist()]
    return [frozenset(flat[a:b]) for a, b in pairwise(labels.indptr.tolist())]


class Reservoir:
    """A uniform sample of the rows of a stream: their codes, as signs, and their labels.

    What is drawn for a row depends on the seed, the number of rows before it and what they were; not on chunks.
    """

    def __init__(self, bits: int, seed: int, rows: int = RESERVOIR) -> None:
        self.seed, self.seen = seed, 0  # seen: rows of the stream so far
        self.labels: list[LabelSet] = []  # of each slot that is taken
        self.signs = np.empty((rows, bits))  # (rows, b)
        self.slots_by_label: dict[int, Mask] = {}  # label -> which slots have it, (rows,)
        self._draws: tuple[int, list[list[float]]] = (-1, [])  # of which block of rows, and the numbers of each row

    def sample_partners(
        self, S: Doubles, labels: list[LabelSet]
    ) -> Iterator[tuple[Doubles, Doubles | None, Doubles | None]]:
        """Yield the signs of each row, of a similar and of a dissimilar earlier row, or None; then sample the row."""
        for x, label_set in zip(S, labels, strict=True):
            u, v, w = self._uniforms()
            similar = self.similar(label_set)
            yield x, self._pick(similar, u), self._pick(~similar, v)
            self._insert(x, label_set, w)

    def similar(self, labels: LabelSet) -> Mask:
        """Return which taken slots share a label."""
        slots = np.zeros(len(self.signs), np.bool_)
        for label in labels & self.slots_by_label.keys():
            slots |= self.slots_by_label[label]
        return slots[: len(self.labels)]

    def _uniforms(self) -> list[float]:
        block, row = divmod(self.seen, ROWS_PER_GENERATOR)
        if self._draws[0] != block:
            self._draws = block, np.random.default_rng([self.seed, block]).random((ROWS_PER_GENERATOR, 3)).tolist()
        return self._draws[1][row]

    def _pick(self, slots: Mask, u: float) -> Doubles | None:
        chosen = np.flatnonzero(slots)
        return self.signs[chosen[int(u * len(chosen))]].copy() if len(chosen) else None  # the slot may be overwritten

    def _insert(self, x: Doubles, labels: LabelSet, u: float) -> None:
        """Put the row into a free slot, or into any with the chance rows / (seen + 1): Vitter's algorithm R."""
        slot = self.seen if self.seen < len(self.signs) else int(u * (self.seen + 1))
        if slot < len(self.signs):
            self._put(slot, x, labels)
        self.seen += 1

    def _put(self, slot: int, x: Doubles, labels: LabelSet) -> None:
        if slot == len(self.labels):
            self.labels.append(labels)
        else:
            for label in self.labels[slot]:
                self.slots_by_label[label][slot] = False
                if not self.slots_by_label[label].any():
                    del self.slots_by_label[label]  # so that memory does not grow with the vocabulary
            self.labels[slot] = labels
        self.signs[slot] = x
        for label in labels:
            self.slots_by_label.setdefault(label, np.zeros(len(self.signs), np.bool_))[slot] = True

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of saved state, beside `seen`."""
        return {
            "partners": pack(self.signs[: len(self.labels)].astype(np.float32)),
            "partner_labels": np.array([label for row in self.labels for label in sorted(row)], np.uint64),
            "partner_counts": np.array([len(row) for row in self.labels], np.int64),
        }

    def load(self, arrays: dict[str, NDArray[Any]], seen: int) -> None:
        codes = check_codes(arrays["partners"], self.signs.shape[1], "partners")
        labels, counts = arrays["partner_labels"], arrays["partner_counts"]
        self.seen = check_integer(seen, "seen", 0)
        if not len(codes) == len(counts) == min(self.seen, len(self.signs)) or counts.sum() != len(labels):
            raise BadState(f"partners: got {len(codes)} codes and {len(counts)} label sets after {self.seen} rows")
        rows = np.split(labels, np.cumsum(counts)[:-1])
        for slot, (x, row) in enumerate(zip(signs(codes, self.signs.shape[1]), rows, strict=False)):
            self._put(slot, x.astype(np.float64), frozenset(row.tolist()))


class SquareHasher(LinearHasher):
    """Fixed PCA-ITQ codes under a learnt square form, S(q, x) = q~^T M x~ (Eq. 2 of OHSL's paper); never stale.

    M starts as the identity, which ranks by Hamming distance. Subclasses learn it, in `_learn_row`, from a row and
    its partners: one similar and one dissimilar row, drawn from a uniform sample of 1,000 earlier rows.
    """

    fixed_codes = True
    saved_arrays: ClassVar = {"M": "float64 b b"}

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        self._fix(pca_itq(X, self.bits, rng))
        self.M_: Doubles = np.eye(self.bits)  # (b, b)
        self.partners_ = Reservoir(self.bits, self.random_state)

    @one_thread
    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        M = self.M_.copy()  # a new array, so that readers need no lock
        for x, similar, dissimilar in self.partners_.sample_partners(self._signs(X, codes), fingerprints(labels)):
            self._learn_row(M, x, similar, dissimilar)
        self.M_ = M

    def _learn_row(self, M: Doubles, x: Doubles, similar: Doubles | None, dissimilar: Doubles | None) -> None:
        """Learn from one row and its partners, in place on M."""
        raise NotImplementedError

    def model(self) -> Model:
        return Model("code", self.M_.astype(np.float32))

    def _signs(self, X: Floats, codes: Codes | None = None) -> Doubles:
        return signs(self._codes(X) if codes is None else codes, self.bits).astype(np.float64)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {**super()._arrays(), **self.partners_.arrays()}

    def _extra(self) -> dict[str, Any]:
        return {**super()._extra(), "seen": self.partners_.seen}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        self.partners_ = Reservoir(self.bits, self.random_state)
        self.partners_.load(arrays, extra["seen"])
