"""Search for words: by BM25 alone, or fused with the learnt ranking."""

from typing import Any

from numpy.typing import NDArray

from stillhash.collection.filters.language import compile_filter
from stillhash.collection.probe_reader import ProbeReader
from stillhash.collection.ranking import FusedRow, fuse_ranks, rank_page
from stillhash.collection.read_view import Snapshot
from stillhash.collection.storage.item_contents import ItemContent
from stillhash.collection.storage.lexical import best_rows, lexical_field
from stillhash.collection.types import Answer, Filter, Hit, Vector, VersionName
from stillhash.collection.words import match_expression, parse_terms
from stillhash.errors import Conflict, InvalidInput, report_shortages
from stillhash.numeric.validation import check_integer, check_number

WORDS_RANKING = "words, by BM25"
HYBRID_RANKING = "learnt similarity and words, by reciprocal ranks"
DEFAULT_DEPTH = 100  # hits of each ranking that are fused


@report_shortages
class LexicalReader(ProbeReader):
    """The verbs that search for words, where the collection has a `lexical_field`."""

    @property
    def lexical_field(self) -> str | None:
        """Return the field of the metadata whose words are indexed; None if none are."""
        with self._store.reading() as connection:
            return lexical_field(connection)

    def lexical_search(
        self, words: str, k: int = 10, *, where: Filter | None = None, max_bytes: int | None = None
    ) -> Answer:
        """Return the k best items for words, by BM25; an item with any of the words is a hit.

        words: words, and "exact phrases" in double quotes; nothing else is syntax. Case and accents do not count. A
        word or phrase that is repeated counts once. Without any word the answer has no hits. where: only items that
        meet this condition; min(k, matching) hits come back, with the scores that they have without it. Equal scores
        are in order of arrival.
        """
        check_integer(k, "k", 1)
        terms = parse_terms(words)
        condition = None if where is None else compile_filter(where)
        with self._view.pinned(condition) as snapshot:
            ranked = self._lexical_rows(snapshot, terms, k)
            contents = self._store.items.contents(snapshot.connection, [row for row, _ in ranked], max_bytes)
        return Answer([Hit(*contents[row], score) for row, score in ranked], 0, WORDS_RANKING)

    def hybrid_search(
        self,
        query: Vector | NDArray[Any],
        words: str,
        k: int = 10,
        *,
        where: Filter | None = None,
        version: VersionName | None = None,
        balance: float | None = None,
        depth: int = DEFAULT_DEPTH,
        word_weight: float = 1.0,
        max_bytes: int | None = None,
    ) -> Answer:
        """Return the k best items for a query (D,) and words, by their ranks in `search` and in `lexical_search`.

        The score of a hit is 1 / (60 + its rank in `search`) + word_weight / (60 + its rank in `lexical_search`). A
        rank past `depth`, or past k if that is more, counts nothing. Hits have both ranks, as `learnt_rank` and
        `lexical_rank`. Equal scores go by the first, then by arrival. The other arguments are those of `search`.
        """
        check_integer(k, "k", 1)
        first = max(k, check_integer(depth, "depth", 1))
        weight = check_number(word_weight, "word_weight", above=0)
        terms = parse_terms(words)
        Q, single = self._input.query(query)
        if not single:
            raise InvalidInput(f"query: expected one query, got {len(Q)}")
        condition = None if where is None else compile_filter(where)
        with self._view.pinned(condition) as snapshot:
            lexical = [row for row, _ in self._lexical_rows(snapshot, terms, first)]
            page = rank_page(self._store, snapshot, Q, first, *self._model(snapshot, version), balance)
            learnt = [row for row in page.scored[0][1].tolist() if row >= 0]
            fused = fuse_ranks(learnt, lexical, k, weight)
            contents = self._store.items.contents(snapshot.connection, [one.row for one in fused], max_bytes)
        hits = [_hit(contents[one.row], one, page.version) for one in fused]
        return Answer(hits, page.version, HYBRID_RANKING, page.missing, page.balance)

    def _lexical_rows(self, snapshot: Snapshot, terms: list[str], k: int) -> list[tuple[int, float]]:
        """Return the k best rows for terms with their scores; Conflict if words are not indexed."""
        if lexical_field(snapshot.connection) is None:
            use = "Use set_lexical_field, or `stillhash lexical`, to index the words of a field."
            raise Conflict(f"words: expected a collection with a lexical_field, got one without. {use}")
        if not terms:
            return []
        return best_rows(snapshot.connection, match_expression(terms), k, snapshot.allowed)


def _hit(content: ItemContent, fused: FusedRow, version: int) -> Hit:
    return Hit(*content, fused.score, version, learnt_rank=fused.learnt_rank, lexical_rank=fused.lexical_rank)
