"""Exact search by reading every code: fast, because a tile is pruned by a provable 8-bit bound."""

from collections.abc import Sequence

import numpy as np

from stillhash.numeric import kernels
from stillhash.numeric.exact_scores import Grid
from stillhash.numeric.validation import ScoredIds
from stillhash.search.blocks import Bitmap, Block, restrict_all
from stillhash.search.code_index import CodeIndex


class Scan(CodeIndex):
    """An exact index of codes of `bits` bits.

    Without `ids`, rows are numbered 0, 1, 2, ... and cost bits / 8 bytes each. Ids that are not consecutive cost 8
    bytes more. `threads` is the most that one search uses; small searches use fewer.
    """

    def _top(self, grid: Grid, k: int, allowed: Bitmap | None) -> ScoredIds:
        return scan_blocks(self._blocks, grid, k, allowed, self.threads)


def scan_blocks(blocks: Sequence[Block], grid: Grid, k: int, allowed: Bitmap | None, threads: int) -> ScoredIds:
    """Return the k best hits of each query among the allowed rows of the blocks."""
    floors = np.full(len(grid), -np.inf, np.float32)
    return kernels.scan_top(restrict_all(blocks, allowed), grid, k, floors, threads)
