"""Fuse two rankings by the ranks of their hits: reciprocal rank fusion."""

from collections.abc import Sequence
from typing import NamedTuple

RANK_OFFSET = 60  # the larger, the less the first ranks count more than later ones


class FusedRow(NamedTuple):
    """A row with its score, and its ranks from 1 in both rankings; None where it is in one of them only."""

    row: int
    score: float
    learnt_rank: int | None
    lexical_rank: int | None


def fuse_ranks(learnt: Sequence[int], lexical: Sequence[int], k: int, word_weight: float) -> list[FusedRow]:
    """Return the k best rows by 1 / (60 + learnt rank) + word_weight / (60 + lexical rank), best first.

    Equal scores go by the learnt rank, those without one last, then by row.
    """
    learnt_ranks = {row: rank for rank, row in enumerate(learnt, 1)}
    lexical_ranks = {row: rank for rank, row in enumerate(lexical, 1)}
    fused = []
    for row in learnt_ranks | lexical_ranks:
        first, second = learnt_ranks.get(row), lexical_ranks.get(row)
        score = 0.0 if first is None else 1 / (RANK_OFFSET + first)
        score += 0.0 if second is None else word_weight / (RANK_OFFSET + second)
        fused.append(FusedRow(row, score, first, second))
    last = len(learnt) + 1
    return sorted(fused, key=lambda one: (-one.score, one.learnt_rank or last, one.row))[:k]
