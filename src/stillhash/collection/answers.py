"""Build answers: hits with their labels and metadata, and how they are ranked."""

from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

from stillhash.collection.search_view import ModelStore, SearchSnapshot
from stillhash.collection.types import Answer, Hit
from stillhash.hashers import Model
from stillhash.search.first_page import PLACED

ScoredRows = Iterable[tuple[NDArray[Any], ...]]  # scores, rows and places, for each query
SIMILARITY_RANKING = "similarity: the query and the stored codes, before anything is learnt"
HAMMING_RANKING = "Hamming distance"  # of all other models that have learnt nothing
LEARNT_RANKING = "learnt similarity"
WEIGHTS_RANKING = "weights of the bits, as they came"


def build_answers(
    store: ModelStore,
    snapshot: SearchSnapshot,
    scored: ScoredRows,
    version: int,
    model: Model | str,
    missing: float = 0.0,
    max_bytes: int | None = None,
    balance: float | None = None,
) -> list[Answer]:
    """Return an answer for each query; `model`, or the name of another ranking, is what ranked them."""
    if not isinstance(model, str):
        initial = SIMILARITY_RANKING if model.side == "looks" else HAMMING_RANKING
        model = LEARNT_RANKING if model.learnt else initial
    columns = [[part[some[1] >= 0].tolist() for part in some] for some in scored]
    every_row = (row for _, rows, _ in columns for row in rows)
    items = snapshot.contents(every_row, max_bytes)
    bits = store.settings["bits"] if model == HAMMING_RANKING else None
    hits = [
        [
            Hit(*items[row], score, version, PLACED[placed], distance=_distance(bits, score))
            for score, row, placed in zip(*some, strict=True)
        ]
        for some in columns
    ]
    return [Answer(some, version, model, missing, balance) for some in hits]


def _distance(bits: int | None, score: float) -> int | None:
    """Return the Hamming distance of a score that is the bits that agree minus those that differ; None without bits."""
    return None if bits is None else round((bits - score) / 2)
