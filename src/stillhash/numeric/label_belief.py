"""How far labels can be believed: by how well they agree with what features predict. docs/method.md derives it.

Of rows with right labels the agreement of labels and prediction follows one distribution, of rows with labels at random
another, which shuffled labels show. Where labels are the least plausible, nearly all are wrong, so the smallest ratio
of the two densities estimates the share of wrong labels, and share / ratio is the chance that those of a row are wrong.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.validation import Floats

BINS = 10  # of agreement, with as many shuffled labels in each
MIN_ROWS = 300  # that an estimate takes
MIN_WRONG_SHARE = 0.05  # with fewer wrong labels, all are believed


class LabelBelief(NamedTuple):
    """The estimated share of wrong labels, and the chance that the labels of a row are right by their agreement."""

    wrong_share: float = 0.0
    edges: Floats = np.zeros(0, np.float32)  # (BINS - 1,) of agreement; empty: all labels are believed
    right: Floats = np.ones(1, np.float32)  # (BINS,)

    @classmethod
    def estimate(cls, agreements: Floats, shuffled: Floats) -> Self:
        """Estimate it by the agreement of rows with their labels, and with labels of other rows.

        The predictions must not have seen the labels of the rows.
        """
        if len(agreements) < MIN_ROWS:
            return cls()
        edges = np.quantile(shuffled, np.linspace(0, 1, BINS + 1)[1:-1])
        density, random = (np.bincount(np.searchsorted(edges, part), minlength=BINS) for part in (agreements, shuffled))
        ratio = density / np.maximum(random, 1) * (len(shuffled) / len(agreements))
        wrong = min(1.0, float(ratio.min()))
        right = np.maximum.accumulate(np.clip(1 - wrong / np.maximum(ratio, 1e-9), 0, 1))
        if wrong < MIN_WRONG_SHARE:
            return cls(wrong)
        return cls(wrong, edges.astype(np.float32), right.astype(np.float32))

    def chance(self, agreements: Floats) -> Floats:
        """Return the chance that the labels of rows are right."""
        return self.right[np.searchsorted(self.edges, agreements)]


def agreement(predicted: NDArray[np.floating], labels: NDArray[np.floating]) -> Floats:
    """Return the cosines (n,) of what is predicted of rows and their labels, both (n, k) and centred."""
    lengths = np.linalg.norm(predicted, axis=1) * np.linalg.norm(labels, axis=1)
    return np.asarray(np.einsum("ij,ij->i", predicted, labels) / np.maximum(lengths, 1e-30), np.float32)
