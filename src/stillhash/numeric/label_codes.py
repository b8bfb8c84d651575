"""Codes of rows that are labelled when they are stored: the first bits hold the labels. docs/method.md derives it."""

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from stillhash.numeric.labels import Labels
from stillhash.numeric.sufficient_stats import unit_labels
from stillhash.numeric.validation import Floats

MIN_LOOKS_CODE = 128  # bits of a code that has enough for looks to find near duplicates by


def label_bits(bits: int) -> int:
    """Return how many bits of a code are for labels; the others are for looks.

    Near duplicates can be found by 56 bits for looks, which a code of 128 bits can spare: it has so many, and half of
    the bits beyond. Of shorter codes a sixteenth is for looks. docs/method.md has the measurements.
    """
    return bits - bits // 16 if bits < MIN_LOOKS_CODE else bits // 2 + 8


class LabelDirections(NamedTuple):
    """What the first k hash functions are for a row with labels y: y @ G + g."""

    names: dict[Hashable, int]  # the rows of G
    G: Floats  # (labels, k)
    g: Floats  # (k,)

    @classmethod
    def uncentred(cls, names: list[Hashable], G: Floats) -> "LabelDirections":
        """Return the directions G of these labels, with nothing added."""
        return cls({name: row for row, name in enumerate(names)}, G, np.zeros(G.shape[1], np.float32))

    def project(self, labels: Labels) -> Floats:
        """Return the hash functions (n, k) of rows by those of their labels that have a direction; zero without any.

        The order of rows and labels makes no difference.
        """
        Y, names = unit_labels(labels)
        columns = [c for c, name in enumerate(names) if name in self.names]
        known = Y[:, columns].astype(np.float64)
        by_labels = known @ self.G[[self.names[names[c]] for c in columns]]
        return np.asarray(by_labels + np.square(known).sum(axis=1, keepdims=True) * self.g, np.float32)
