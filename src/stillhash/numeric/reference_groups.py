"""The plain twin of `near_groups`: compares every pair."""

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.codes import count_ones
from stillhash.numeric.validation import Codes


def near_groups(codes: Codes, distance: int) -> NDArray[np.int64]:
    """Return for each code the number of the first code of its group, which a chain of near codes connects."""
    groups = np.full(len(codes), -1, np.int64)
    for first in range(len(codes)):
        reached = [] if groups[first] >= 0 else [first]
        while reached:
            code = reached.pop()
            groups[code] = first
            near = count_ones(codes ^ codes[code]).sum(axis=1, dtype=np.int64) <= distance
            new = np.flatnonzero(near & (groups < 0))
            groups[new] = first
            reached += new.tolist()
    return groups
