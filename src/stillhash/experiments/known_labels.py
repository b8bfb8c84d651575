"""Make the labels that a method gets of the true ones: some missing, some wrong, some late.

All is drawn from the job's seed, so all methods get the same. Of two shares the rows of the smaller are among those of
the larger.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.experiments.data import RowMask
from stillhash.experiments.job import Job

SHARE_DRAWS, NOISE_DRAWS = 1, 2  # so that one axis does not change what is drawn for the other

LabelMatrix = NDArray[np.uint8]


class KnownLabels(NamedTuple):
    """The labels of the rows of a stream, as a method gets them; a row without labels is all zeros."""

    Y: LabelMatrix  # (n, C), those that arrive late included
    late: RowMask  # (n,) rows whose labels arrive after they were inserted
    initial: LabelMatrix | None  # of the initial stage; None without labels

    @property
    def at_insertion(self) -> LabelMatrix:
        """Return the labels that are known when each row is inserted."""
        return np.where(self.late[:, None], np.uint8(0), self.Y) if self.late.any() else self.Y

    @property
    def rows(self) -> int:
        """Return how many rows get labels, sooner or later."""
        return int(np.count_nonzero(self.Y.any(axis=1)))


def known_labels(job: Job, truth: LabelMatrix) -> KnownLabels:
    """Return the labels of a stream of which `truth` (n, C) are the true ones."""
    Y = truth
    if job.label_noise:
        Y = replace_labels(Y, job.label_noise, np.random.default_rng([job.seed, NOISE_DRAWS]))
    if job.labelled_rows is not None:
        rows = np.random.default_rng([job.seed, SHARE_DRAWS]).permutation(np.flatnonzero(Y.any(axis=1)))
        known = np.zeros(len(Y), bool)
        known[rows[: job.labelled_rows]] = True
        Y = np.where(known[:, None], Y, np.uint8(0))
        return KnownLabels(Y, np.zeros(len(Y), bool), Y[: job.first] if known[: job.first].any() else None)
    initial = job.labelled_init and job.labelled_share > 0
    from_start = (np.arange(len(Y)) < job.first) & initial
    if job.labelled_share < 1:
        later = np.random.default_rng([job.seed, SHARE_DRAWS]).permutation(np.flatnonzero(~from_start))
        known = from_start.copy()
        known[later[: round(job.labelled_share * len(later))]] = True
        Y = np.where(known[:, None], Y, np.uint8(0))
    late = Y.any(axis=1) & ~from_start if job.label_delay else np.zeros(len(Y), bool)
    return KnownLabels(Y, late, Y[: job.first] if initial else None)


def replace_labels(Y: LabelMatrix, share: float, rng: np.random.Generator) -> LabelMatrix:
    """Return labels of which a share of the rows, drawn at random, has those of another row."""
    n = len(Y)
    others = (np.arange(n) + rng.integers(1, max(2, n), n)) % n
    replaced = rng.permutation(n)[: round(share * n)]
    noisy = Y.copy()
    noisy[replaced] = Y[others[replaced]]
    return noisy
