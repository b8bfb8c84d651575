"""Codes of rows that are labelled when they are stored: the first bits hold the labels. docs/method.md derives it."""

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from stillhash.numeric.labels import Labels
from stillhash.numeric.sufficient_stats import unit_labels
from stillhash.numeric.validation import Floats


def label_bits(bits: int) -> int:
    """Return how many bits of a code are for labels: almost all of a short code, half of a long one.

    The others are for looks. docs/method.md has the measurements that it is chosen from.
    """
    return bits - round(bits * min(bits / 288, 0.5))


class LabelDirections(NamedTuple):
    """What the first k hash functions are for a row with labels y: y @ G + g."""

    names: dict[Hashable, int]  # the rows of G
    G: Floats  # (labels, k)
    g: Floats  # (k,)

    def project(self, labels: Labels) -> Floats:
        """Return the hash functions (n, k) of rows by those of their labels that have a direction; zero without any.

        The order of rows and labels makes no difference.
        """
        Y, names = unit_labels(labels)
        columns = [c for c, name in enumerate(names) if name in self.names]
        known = Y[:, columns].astype(np.float64)
        by_labels = known @ self.G[[self.names[names[c]] for c in columns]]
        return np.asarray(by_labels + np.square(known).sum(axis=1, keepdims=True) * self.g, np.float32)
