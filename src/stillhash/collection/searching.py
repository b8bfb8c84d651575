"""Search a collection as of one commit: what a collection does with its store, and a front without one."""

from typing import Any, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.explain import ExplainedPage, check_explained_bytes, explain_answers, explain_labels_and_votes
from stillhash.collection.filters.language import compile_filter
from stillhash.collection.learning.encoder_alignment import (
    EncoderInfo,
    align_features,
    collection_encoder,
    list_alignments,
)
from stillhash.collection.learning.models import load_model
from stillhash.collection.learning.prequential import load_history
from stillhash.collection.ranking import WEIGHTS_RANKING, build_answers, rank_page
from stillhash.collection.search_view import ModelStore, SearchSnapshot, SearchView
from stillhash.collection.types import (
    Answer,
    Filter,
    Id,
    IdLike,
    Item,
    ItemIds,
    LocalRangeOptions,
    LocalSearchOptions,
    Vector,
    Vectors,
    VersionName,
    Weights,
)
from stillhash.collection.validation import CodeInput, FeatureInput, check_distance, check_ids
from stillhash.collection.values import is_single_id
from stillhash.errors import InvalidInput, NotFitted, TooLarge, report_shortages
from stillhash.hashers import Model
from stillhash.numeric.ranking import Ranking
from stillhash.numeric.validation import Floats, check_integer, check_weights
from stillhash.search.first_page import search_page


@report_shortages
class Searchable:
    """The verbs of a collection and of a front: they search, and read items and versions of the model."""

    bits: int
    _store: ModelStore
    _view: SearchView
    _input: FeatureInput | CodeInput

    @overload
    def get(self, ids: IdLike, *, max_bytes: int | None = None) -> Item | None: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, ids: ItemIds, *, max_bytes: int | None = None) -> list[Item | None]: ...
    def get(self, ids: IdLike | ItemIds, *, max_bytes: int | None = None) -> Item | list[Item | None] | None:
        """Return the item with this id, or for a list of ids a list of items; None where there is no such item.

        max_bytes: refuse items that take more bytes as JSON, about.
        """
        if is_single_id(ids):
            return self._read_items(check_ids([ids]), max_bytes)[0]
        return self._read_items(check_ids(ids, distinct=False), max_bytes)

    def _read_items(self, names: list[Id], max_bytes: int | None) -> list[Item | None]:
        """Return the items with these validated ids, which may repeat."""
        raise NotImplementedError

    @overload
    def search(self, query: Vector, k: int = ..., **options: Unpack[LocalSearchOptions]) -> Answer: ...
    @overload
    def search(self, query: Vectors, k: int = ..., **options: Unpack[LocalSearchOptions]) -> list[Answer]: ...
    @overload  # the type of an array does not say how many dimensions it has
    def search(self, query: NDArray[Any] | None = ..., k: int = ..., **options: Unpack[LocalSearchOptions]) -> Any: ...
    def search(
        self,
        query: Vector | Vectors | NDArray[Any] | None = None,
        k: int = 10,
        *,
        weights: Weights | None = None,
        where: Filter | None = None,
        version: VersionName | None = None,
        balance: float | None = None,
        explain: bool | int = False,
        max_bytes: int | None = None,
    ) -> Answer | list[Answer]:
        """Return the k best items for a query (D,) as an Answer, or for queries (m, D) as a list of Answers.

        where: only items that meet this condition (filters.py); min(k, matching) hits come back. version: rank by an
        earlier version of the model; 0 is before anything was learnt, "hamming" is by Hamming distance. balance: from
        0, similar items, to 1, items with the same labels; None follows from the evidence. explain: each hit
        says what each bit adds to its score, and its rank by the version of this number, or by the earliest if True.
        weights: (bits,) or (m, bits) in place of queries: the score is weights . signs(code), and nothing learnt
        counts. max_bytes: refuse an answer that takes more bytes as JSON, about.
        """
        check_integer(k, "k", 1)
        if weights is not None:
            others = [query, version, balance, explain or None]
            return self._search_by_weights(weights, k, where, max_bytes, any(one is not None for one in others))
        Q, single = self._input.query(query)
        condition = None if where is None else compile_filter(where)
        with self._view.pinned(condition) as snapshot:
            number, model = self._model(snapshot, version)
            explains = explain is not False and snapshot.functions is not None
            if explains:
                most = min(k, max(1, len(snapshot.index)))
                matching = most if snapshot.allowed is None else snapshot.count_allowed()
                check_explained_bytes(len(Q) * min(most, matching), self.bits, max_bytes)
            page = rank_page(self._store, snapshot, Q, k, number, model, balance)
            ranked_by = page.version, page.by, page.missing
            answers = build_answers(self._store, snapshot, page.scored, *ranked_by, max_bytes, page.balance)
            if explains and page.ranking is not None and snapshot.functions is not None:
                other = self._store.versions.earliest(snapshot.connection) if explain is True else explain
                _, other_model = self._model(snapshot, other)
                other_page = snapshot.page_model(other_model)
                rankings = page.ranking, snapshot.functions.rank_checked(other_model, Q, balance, other_page)
                stored, allowed = snapshot.page_items, snapshot.allowed
                explained = ExplainedPage(page.ids, *rankings, other, page.candidates, stored, allowed)
                answers = explain_answers(snapshot.index, answers, explained)
                answers = explain_labels_and_votes(self._store, snapshot, answers, page, Q)
        return answers[0] if single else answers

    @overload
    def range_search(
        self, query: Vector, threshold: float | None = ..., **options: Unpack[LocalRangeOptions]
    ) -> Answer: ...
    @overload
    def range_search(
        self, query: Vectors, threshold: float | None = ..., **options: Unpack[LocalRangeOptions]
    ) -> list[Answer]: ...
    @overload
    def range_search(
        self, query: NDArray[Any], threshold: float | None = ..., **options: Unpack[LocalRangeOptions]
    ) -> Any: ...
    def range_search(
        self,
        query: Vector | Vectors | NDArray[Any],
        threshold: float | None = None,
        *,
        distance: int | None = None,
        where: Filter | None = None,
        version: VersionName | None = None,
        most: int | None = None,
        max_bytes: int | None = None,
    ) -> Answer | list[Answer]:
        """Return all items of at least this score, by score; otherwise as `search`. More than `most` are refused.

        distance: in place of the threshold, all items within this Hamming distance of the query's code, nearest first.
        """
        if distance is not None:
            threshold, version = check_distance(distance, self.bits, threshold, version), "hamming"
        elif threshold is None:
            raise InvalidInput("threshold: expected a score, or a distance, got neither")
        if most is not None:
            check_integer(most, "most", 1)
        Q, single = self._input.query(query)
        condition = None if where is None else compile_filter(where)
        with self._view.pinned(condition) as snapshot:
            if snapshot.functions is None:
                raise NotFitted("range_search: the hash functions are not fitted yet: add more rows, or call fit")
            number, model = self._model(snapshot, version)
            hits = snapshot.index.range_search(snapshot.weigh(Q, model), threshold, allowed=snapshot.allowed)
            total = sum(len(some.ids) for some in hits)
            if most is not None and total > most:
                raise TooLarge(f"threshold: expected at most {most} hits, got {total}. Use a higher threshold.")
            missing, balance = max((some.missing for some in hits), default=0.0), model.resolve_balance()
            scored = ((some.scores, some.ids, np.zeros(len(some.ids), np.uint8)) for some in hits)
            answers = build_answers(self._store, snapshot, scored, number, model, missing, max_bytes, balance)
        return answers[0] if single else answers

    def _search_by_weights(
        self, weights: Weights, k: int, where: Filter | None, max_bytes: int | None, others: bool
    ) -> Answer | list[Answer]:
        """Search by weights of the bits, as they are."""
        if others:
            raise InvalidInput("weights: expected no query, version, balance or explain with them")
        W = check_weights(weights, self.bits)
        condition = None if where is None else compile_filter(where)
        with self._view.pinned(condition) as snapshot:
            if snapshot.functions is None:
                raise NotFitted("weights: the hash functions are not fitted yet: add more rows, or call fit")
            hits = search_page(
                snapshot.index, Ranking(W), min(k, max(1, len(snapshot.index))), allowed=snapshot.allowed
            )
            scored = list(zip(*hits[:3], strict=True))
            answers = build_answers(self._store, snapshot, scored, 0, WEIGHTS_RANKING, hits.missing, max_bytes)
        return answers[0] if np.ndim(weights) == 1 else answers

    @property
    def encoder(self) -> EncoderInfo | None:
        """Return the name, fingerprint and dim of the encoder; None if features came as ready vectors."""
        return collection_encoder(self._store)

    def translate(self, features: Any, encoder: EncoderInfo) -> Floats:
        """Return features of an encoder in this collection's space: unchanged, or by an alignment."""
        with self._store.reading() as connection:
            return align_features(self._store, connection, encoder, features)

    def alignments(self) -> list[dict[str, Any]]:
        """Return the encoders, beside its own, whose features it takes."""
        with self._store.reading() as connection:
            return list_alignments(connection)

    def weigh(self, query: Any, *, version: VersionName | None = None, balance: float | None = None) -> Floats:
        """Return the weights (m, bits) of queries: the score of an item is weights . signs(code), as `search` has it.

        `search` orders the first page again, by more than the score. version and balance are those of `search`.
        """
        Q, _ = self._input.query(query)
        with self._view.pinned() as snapshot:
            if snapshot.functions is None:
                raise NotFitted("weigh: the hash functions are not fitted yet: add more rows, or call fit")
            _, model = self._model(snapshot, version)
            return snapshot.functions.rank_checked(model, Q, balance).weights

    def versions(self) -> list[dict[str, Any]]:
        """Return the versions of the model that are kept, the latest last.

        `quality` is that of its last step of rows, before they were learnt; `drift`: a step was a significant fall.
        """
        with self._store.reading() as connection:
            return self._store.versions.describe(connection)

    def quality(self) -> dict[str, Any]:
        """Return the prequential evaluation: each step of `learn_rows` labelled rows is searched before it is learnt.

        `curve` has for each step the mean average precision, `map`; `precision` and `ndcg` of the first ten hits;
        `before`, the same three of the ranking before anything was learnt; `version`, which learnt its rows; `rows`,
        the labelled rows learnt until then; and whether it was drift. Long curves are thinned. `alarms` are the
        versions with drift.
        """
        with self._store.reading() as connection:
            history = load_history(connection)
        return {"curve": history["curve"], "alarms": history["alarms"]}

    def _model(self, snapshot: SearchSnapshot, version: VersionName | None) -> tuple[int, Model]:
        """Return a version and its model; the current one for None."""
        if version is None:
            return snapshot.version, snapshot.model
        model = load_model(self._store, snapshot.connection, version)
        return 0 if version == "hamming" else int(version), model
