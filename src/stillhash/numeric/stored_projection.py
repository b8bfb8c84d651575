"""Hash functions of rows from their rescoring codes, exactly: the same to the bit in any batch and on all machines.

A rescoring code is about length * R x, so W^T x is about (R W)^T z / length. R W is rounded so finely, and so coarsely,
that products with levels z are sums of multiples of one step which a float holds exactly, whatever the order.
"""

import numpy as np

from stillhash.numeric.rescoring import Rescorer
from stillhash.numeric.sufficient_stats import EXACT, exact_precision
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Floats, Mask


class StoredProjection:
    """The hash functions W (D, b), t (b,) of the levels of rescoring codes."""

    def __init__(self, rescorer: Rescorer, W: Floats, t: Floats) -> None:
        largest = 2**rescorer.bits - 1
        precision = exact_precision(largest)[0]
        rotated = rescorer.rotate(np.ascontiguousarray(W.T)).T.astype(np.float64)  # (D, b)
        most = largest * np.maximum(np.abs(rotated).sum(axis=0), np.finfo(np.float32).tiny)  # of any sum
        step = np.exp2(np.ceil(np.log2(most / (EXACT[f"f{precision.itemsize}"] / 2))))  # (b,); half is for rounding
        self._W = np.ascontiguousarray(np.rint(rotated / step) * step, precision)
        self._t, self._length = t, np.float32(rescorer.length)

    @one_thread
    def values(self, levels: Floats) -> Floats:
        """Return the hash functions (n, b) of levels (n, D), before they are quantised."""
        products = np.asarray(levels.astype(self._W.dtype, copy=False) @ self._W, np.float32)
        return np.asarray(products / self._length + self._t)

    @staticmethod
    def without_labels(values: Floats, own: Floats, held: Mask, label_bits: int) -> Floats | None:
        """Return the codes without labels, as signs, of rows with these hash functions and codes; None: the same.

        held: which codes hold labels, in their first `label_bits`; the others are of features in any code.
        """
        if not held.any():
            return None
        plain = own.copy()
        plain[held, :label_bits] = np.where(values[held, :label_bits] >= 0, np.float32(1), np.float32(-1))
        return plain
