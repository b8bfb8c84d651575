"""Request models of searches for words."""

from typing import Annotated, Any

import numpy as np
from pydantic import Field, StrictInt

from stillhash.collection.lexical_reader import DEFAULT_DEPTH
from stillhash.collection.words import MAX_TERMS, MAX_WORDS_LENGTH
from stillhash.server.request_body import RequestBody
from stillhash.server.schemas import MAX_INT64, FilterCondition, QueryBody

JsonWords = Annotated[
    str,
    Field(
        description=f'Words, and "phrases" in double quotes: at most {MAX_TERMS}, and {MAX_WORDS_LENGTH} characters.',
        examples=['blue "summer night"'],
    ),
]
HitCount = Annotated[StrictInt, Field(ge=1, le=MAX_INT64)]


class LexicalSearchBody(RequestBody):
    words: JsonWords
    k: HitCount = 10
    where: FilterCondition = None

    def fetched_hits(self) -> int:
        """Return how many hits are ranked."""
        return self.k


class HybridSearchBody(QueryBody):
    words: JsonWords
    k: HitCount = 10
    balance: Annotated[
        float | None, Field(ge=0, le=1, description="From 0, similarity, to 1, same labels; null is automatic.")
    ] = None
    depth: Annotated[HitCount, Field(description="Hits of each ranking that are fused; at least k are.")] = (
        DEFAULT_DEPTH
    )
    word_weight: Annotated[float, Field(gt=0, description="How much words count beside the learnt ranking.")] = 1.0

    def fetched_hits(self) -> int:
        """Return how many hits are ranked."""
        return max(self.k, self.depth)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Collection.hybrid_search`; a raw query comes as a row of an array."""
        single_row = isinstance(self.query, np.ndarray) and len(self.query) == 1
        return {**vars(self), "query": self.query[0] if single_row else self.query}
