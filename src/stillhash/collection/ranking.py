"""Rank the items of one commit, and fill answers with them.

Until there are hash functions, items are ranked by the cosine of their features; then by a model, as
`search/first_page.py` orders them, with exact repeats of the query and the votes on it. Hybrid search fuses this
ranking with that of words.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from stillhash.collection.learning.votes import voted_rows
from stillhash.collection.read_view import Snapshot, query_digests
from stillhash.collection.search_view import ModelStore, SearchSnapshot
from stillhash.collection.storage.lexical import best_rows, lexical_field, match_expression
from stillhash.collection.types import Answer, Hit
from stillhash.errors import Conflict
from stillhash.hashers import Model
from stillhash.numeric.ranking import Ranking
from stillhash.numeric.validation import Floats
from stillhash.search.blocks import NO_IDS, IdArray
from stillhash.search.first_page import PLACED, Candidates, search_page


class RankedPage(NamedTuple):
    """The first hits of each query: scores, rows and places; a row of -1 is no hit."""

    scored: list[tuple[NDArray[Any], ...]]
    version: int
    by: Model | str  # what ranked them
    missing: float = 0.0
    ids: IdArray = NO_IDS  # (m, k), and the ranking, where they are ranked by codes
    ranking: Ranking | None = None
    balance: float | None = None  # of similarity and labels, as in `Answer`
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
    repeats = snapshot.repeats(query_digests(store.settings, Q))
    most = min(k, max(1, len(snapshot.index)))
    own: dict[str, Any] = {"allowed": snapshot.allowed, "repeats": repeats, "stored": snapshot.page_items}
    hits = search_page(snapshot.index, ranking, most, **own, **votes._asdict())
    scored = list(zip(*hits[:3], strict=True))
    share = model.resolve_balance(balance)
    return RankedPage(scored, version, model, hits.missing, hits.ids, ranking, share, hits.candidates)


ScoredRows = Iterable[tuple[NDArray[Any], ...]]  # scores, rows and places, for each query
SIMILARITY_RANKING = "similarity: the query and the stored codes, before anything is learnt"
HAMMING_RANKING = "Hamming distance"  # of all other models that have learnt nothing
LEARNT_RANKING = "learnt similarity"
WORDS_RANKING = "words, by BM25"
HYBRID_RANKING = "learnt similarity and words, by reciprocal ranks"
DEFAULT_DEPTH = 100  # hits of each ranking are fused by hybrid search
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
        initial = SIMILARITY_RANKING if model.side == "similarity" else HAMMING_RANKING
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


def rank_words(snapshot: Snapshot, terms: list[str], k: int) -> list[tuple[int, float]]:
    """Return the k best rows for words by BM25, with their scores; Conflict if words are not indexed."""
    if lexical_field(snapshot.connection) is None:
        use = "Use set_lexical_field, or `stillhash lexical`, to index the words of a field."
        raise Conflict(f"words: expected a collection with a lexical_field, got one without. {use}")
    if not terms:
        return []
    return best_rows(snapshot.connection, match_expression(terms), k, snapshot.allowed)
