"""Rank items for queries within one commit: by the cosine of their features until there are codes, then by a model."""

from typing import Any, NamedTuple

from numpy.typing import NDArray

from stillhash.collection.learning.votes import voted_rows
from stillhash.collection.repeats import repeated_rows
from stillhash.collection.search_view import ModelStore, SearchSnapshot
from stillhash.hashers import Model
from stillhash.numeric.ranking import Ranking
from stillhash.numeric.validation import Floats
from stillhash.search.blocks import NO_IDS, IdArray
from stillhash.search.first_page import Candidates, search_page


class RankedPage(NamedTuple):
    """The first hits of each query: scores, rows and places; a row of -1 is no hit."""

    scored: list[tuple[NDArray[Any], ...]]
    version: int
    by: Model | str  # what ranked them
    missing: float = 0.0
    ids: IdArray = NO_IDS  # (m, k), and the ranking, where they are ranked by codes
    ranking: Ranking | None = None
    balance: float | None = None  # of looks and labels, as in `Answer`
    candidates: list[Candidates] | None = None  # of each query, where rescoring codes order the first page


def rank_page(
    store: ModelStore, snapshot: SearchSnapshot, Q: Floats, k: int, version: int, model: Model, balance: float | None
) -> RankedPage:
    """Return the first k hits of validated queries, among the rows that the snapshot allows."""
    votes = voted_rows(store, snapshot, Q, version)
    if snapshot.functions is None:
        scored, by = snapshot.rank_by_cosine(Q, k, votes)
        return RankedPage(scored, 0, by)
    page = snapshot.page_model(model)
    ranking = snapshot.functions.rank_checked(model, Q, balance, page)
    repeats = repeated_rows(store, snapshot, Q)
    most = min(k, max(1, len(snapshot.index)))
    own: dict[str, Any] = {"allowed": snapshot.allowed, "repeats": repeats, "stored": snapshot.page_items}
    hits = search_page(snapshot.index, ranking, most, **own, **votes._asdict())
    scored = list(zip(*hits[:3], strict=True))
    share = model.resolve_balance(balance)
    return RankedPage(scored, version, model, hits.missing, hits.ids, ranking, share, hits.candidates)
