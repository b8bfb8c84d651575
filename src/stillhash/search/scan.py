"""Exact search by reading every code: fast, because a tile is pruned by a provable 8-bit bound."""

from stillhash.numeric import kernels
from stillhash.numeric.exact_scores import Grid
from stillhash.numeric.validation import ScoredIds
from stillhash.search.blocks import Bitmap, restrict_all
from stillhash.search.code_index import CodeIndex
from stillhash.search.merge import Floors


class Scan(CodeIndex):
    """An exact index of codes of `bits` bits.

    Without `ids`, rows are numbered 0, 1, 2, ... and cost bits / 8 bytes each. Ids that are not consecutive cost 8
    bytes more. `threads` is the most that one search uses; small searches use fewer.
    """

    def _top(self, grid: Grid, k: int, allowed: Bitmap | None, floors: Floors) -> ScoredIds:
        return kernels.scan_top(restrict_all(self._blocks, allowed), grid, k, floors.least, self.threads, floors.most)
