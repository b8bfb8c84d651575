"""Reciprocal rank fusion equals its definition, with every tie."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from stillhash.collection.ranking import RANK_OFFSET, fuse_ranks

RANKING = st.lists(st.integers(0, 8), unique=True)


@given(learnt=RANKING, lexical=RANKING, k=st.integers(1, 12), weight=st.sampled_from([0.5, 1.0, 2.0]))
def test_fusion_equals_its_definition(learnt: list[int], lexical: list[int], k: int, weight: float) -> None:
    def score(row: int) -> Fraction:
        first = Fraction(1, RANK_OFFSET + learnt.index(row) + 1) if row in learnt else Fraction(0)
        return first + (Fraction(weight) / (RANK_OFFSET + lexical.index(row) + 1) if row in lexical else 0)

    rows = {*learnt, *lexical}
    order = sorted(rows, key=lambda row: (-score(row), learnt.index(row) if row in learnt else 99, row))
    fused = fuse_ranks(learnt, lexical, k, weight)
    assert [one.row for one in fused] == order[:k]
    for one in fused:
        assert abs(one.score - score(one.row)) < 1e-15
        assert one.learnt_rank == (learnt.index(one.row) + 1 if one.row in learnt else None)
        assert one.lexical_rank == (lexical.index(one.row) + 1 if one.row in lexical else None)
