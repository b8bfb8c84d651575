"""A collection: items stored durably, searched exactly, and ranked by a similarity that keeps learning.

One process writes; any number of others open the same folder with `read_only` and see what is committed. Within a
process threads may search while one writes. Every verb validates its arguments, once, and calls one function.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.filters.facets import (
    MAX_COUNTED_LABELS,
    MAX_SUGGESTED,
    Facets,
    Suggestion,
    ValueCounts,
    check_fields,
    check_typed,
)
from stillhash.collection.filters.language import Condition, compile_filter
from stillhash.collection.learning.encoder_alignment import EncoderInfo, build_alignment
from stillhash.collection.learning.label_quality import (
    MAX_SUGGESTIONS,
    list_doubtful,
    suggest_labels,
    wrong_label_share,
)
from stillhash.collection.learning.models import load_model, verify_models
from stillhash.collection.learning.prequential import LearningEvent, learning_events, load_history
from stillhash.collection.learning.probe import (
    LABELLED_ITEMS,
    PROBE_ITEMS,
    PROBE_QUERIES,
    ProbeReport,
    Probes,
    VersionComparison,
    compare_models,
    report_quality,
)
from stillhash.collection.learning.trainer import Trainer
from stillhash.collection.learning.votes import (
    MAX_LISTED_VOTES,
    check_feedback,
    check_one_query,
    check_source,
    check_votes,
    list_votes,
    query_bytes,
)
from stillhash.collection.maintenance.compaction import ReportRows, compact
from stillhash.collection.maintenance.duplicates import check_likeness, find_duplicates, read_compared
from stillhash.collection.maintenance.forgetting import forget
from stillhash.collection.maintenance.repair import RepairReport, repair, verify_store
from stillhash.collection.maintenance.rescoring import build_all, build_some
from stillhash.collection.ranking import DEFAULT_DEPTH, HYBRID_RANKING, WORDS_RANKING, fuse_ranks, rank_page, rank_words
from stillhash.collection.read_view import ReadView, Snapshot
from stillhash.collection.searching import Searchable
from stillhash.collection.storage.audit import MAX_ENTRIES, MAX_NUMBER, check_actor
from stillhash.collection.storage.bitmaps import count_bits
from stillhash.collection.storage.items import page_rows, pictured_ids, read_page
from stillhash.collection.storage.learner import MAX_VERSION
from stillhash.collection.storage.lexical import (
    ReportShare,
    check_new_field,
    lexical_field,
    parse_terms,
    set_lexical_field,
)
from stillhash.collection.storage.schema import get_meta, is_fitted
from stillhash.collection.storage.store import Store
from stillhash.collection.transfer.export import Progress, export
from stillhash.collection.transfer.snapshot import ShareMeter, snapshot
from stillhash.collection.transfer.table_import import (
    ImportProgress,
    ReportImport,
    StoredRows,
    add_chunks,
    check_file,
    import_file,
)
from stillhash.collection.types import (
    Answer,
    AuditEntry,
    DoubtfulItem,
    Filter,
    ForgetReport,
    Hit,
    Id,
    Item,
    ItemIds,
    LabelsOfItems,
    LabelSuggestion,
    Vector,
    VersionName,
    Vote,
    VoteEntry,
)
from stillhash.collection.validation import (
    ItemFilter,
    check_ids,
    check_metadata,
    check_metadata_changes,
    check_path,
    check_selection,
    check_shared,
    check_shared_labels,
    input_rows,
)
from stillhash.collection.writing import Writer
from stillhash.errors import Conflict, InvalidInput, report_shortages
from stillhash.hashers import Model
from stillhash.io import USUAL_NAMES, ColumnNames, scan_table
from stillhash.io.tables import DEFAULT_BATCH
from stillhash.numeric.near_groups import ShareProgress
from stillhash.numeric.validation import Codes, check_integer, check_number
from stillhash.search import Index

MAX_SEED = 2**63 - 1


@report_shortages
class Collection(Searchable):
    """A durable, growing index, made by `stillhash.open`. All verbs may be called from any thread."""

    _store: Store
    _view: ReadView

    def __init__(self, store: Store, searcher: Callable[[int], Any] = Index) -> None:
        self._searcher = searcher
        self.dim: int = store.settings["dim"]
        self.bits: int = store.settings["bits"]
        self.codes_only: bool = store.settings["codes_only"]
        self._input = input_rows(store.settings)
        self._probes = Probes()
        self._use(store)

    def _use(self, store: Store) -> None:
        self._store, self._view = store, ReadView(store, self._searcher)
        self._values = ValueCounts(store, self._view.filter_columns)
        self._trainer = Trainer(store)
        self._writer = Writer(store, self._view, self._trainer)

    @property
    def path(self) -> Path:
        """The folder of the collection."""
        return self._store.path

    @property
    def read_only(self) -> bool:
        """Whether it was opened for reading only."""
        return self._store.read_only

    @property
    def lexical_field(self) -> str | None:
        """Return the field of the metadata whose words are indexed; None if none are."""
        with self._store.reading() as connection:
            return lexical_field(connection)

    def __repr__(self) -> str:
        return f"Collection({self._store.path.name!r}, dim={self.dim}, bits={self.bits}, rows={self.count()})"

    def __len__(self) -> int:
        return self.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store and release the write lock."""
        with self._writer.lock:
            self._store.close()
            self._view.close()

    # Change items.

    def add(
        self,
        ids: ItemIds,
        features: Any,
        labels: Any = None,
        metadata: Any = None,
        *,
        pictures: Any = None,
        learn: bool = True,
    ) -> int:
        """Add items and return how many. When it returns they are on disk.

        ids: strings or integers that do not exist yet. labels: as for `partial_fit`; strings and numbers. metadata: a
        dictionary, or None, for each. features: packed codes, or hexadecimal texts, where the collection has
        `codes_only`. pictures: the bytes of a small image (PNG, JPEG, WebP, GIF), or None, for each.
        Labelled items are learnt from, in steps that double up to `learn_rows`, unless `learn` is false.
        """
        return self._writer.add(*self._input.items(ids, features, labels, metadata, pictures), learn, replace=False)

    def upsert(
        self,
        ids: ItemIds,
        features: Any = None,
        labels: Any = None,
        metadata: Any = None,
        *,
        pictures: Any = None,
        learn: bool = True,
    ) -> int:
        """Add items, replacing those whose ids exist; otherwise as `add`.

        Without features, replace the labels, the metadata, or both, of items that all exist, and nothing else of them.
        """
        if features is not None:
            rows = self._input.items(ids, features, labels, metadata, pictures)
            return self._writer.add(*rows, learn, replace=True)
        if pictures is not None or (labels is None and metadata is None):
            raise InvalidInput("features: expected features, or only labels or metadata to replace, got None")
        names = check_ids(ids)
        texts = None if metadata is None else check_metadata(metadata, len(names))
        return self._writer.replace_parts(names, labels, texts, learn)

    def delete(self, ids: ItemIds | None = None, *, where: ItemFilter | None = None) -> int:
        """Delete these items, or those that meet a condition, and return how many there were.

        where: a condition (filters.py), or "all" for every item; an empty condition is refused.
        """
        return self._writer.delete(check_selection(ids, where))

    def update_metadata(
        self,
        ids: ItemIds | None = None,
        metadata: Any = None,
        *,
        where: ItemFilter | None = None,
        replace: bool = False,
    ) -> int:
        """Merge fields into the metadata of these items, or of those that meet a condition; return how many.

        metadata: a dictionary for all of them, or with ids a list with one for each. A field with None is removed. An
        object in a field replaces the one before, and is not merged with it. replace: replace all fields, not only
        these; None then removes the metadata. where: as in `delete`. Ids that do not exist are refused.
        """
        selection = check_selection(ids, where)
        rows = len(selection) if isinstance(selection, list) else None
        return self._writer.update_metadata(selection, check_metadata_changes(metadata, rows, replace))

    def relabel(
        self,
        ids: ItemIds | None = None,
        labels: Any = None,
        *,
        where: ItemFilter | None = None,
        learn: bool = True,
    ) -> int:
        """Replace the labels of items, learn from them unless `learn` is false, and return how many.

        where: in place of ids, as in `delete`; then `labels` is one list, for all that match. Items are learnt by their
        rescoring codes, and what was learnt from their earlier labels is taken out, by the default method; others learn
        from what `reconstruct` returns, and what they learnt before stays. Without `learn` what was learnt from the
        earlier labels stays, and what was pending of them is dropped, until the items are learnt again.
        """
        selection = check_selection(ids, where)
        return self._writer.relabel(selection, labels if where is None else check_shared_labels(labels), learn)

    def add_labels(self, ids: ItemIds, labels: Any, *, learn: bool = True) -> LabelsOfItems:
        """Add labels to all of these items; return what labels those had that changed.

        labels: one list for all, or a single label. Items that have them already stay as they are, and are not learnt
        again. Ids that do not exist are refused, and nothing changes. learn: as in `relabel`, which takes it back:
        `relabel(list(before), list(before.values()))`.
        """
        added = check_shared(labels)
        return self._writer.change_labels("add_labels", check_ids(ids), lambda own: [*own, *added], learn)

    def remove_labels(self, ids: ItemIds, labels: Any, *, learn: bool = True) -> LabelsOfItems:
        """Remove labels from all of these items; return what labels those had that changed. Otherwise as `add_labels`.

        What was learnt from labels that are removed is taken out by the default method, as by `relabel`; with others
        it stays, unless it was still pending.
        """
        removed = check_shared(labels)
        kept = lambda own: [label for label in own if label not in removed]  # noqa: E731
        return self._writer.change_labels("remove_labels", check_ids(ids), kept, learn)

    def add_table(
        self,
        table: Any,
        *,
        id: str | Sequence[Any] | NDArray[Any] | None = None,
        vector: str | None = None,
        label: str | Sequence[Any] | NDArray[Any] | None = None,
        metadata: Sequence[Any] | Literal["all"] | None = None,
        separator: str | None = None,
        batch: int = DEFAULT_BATCH,
        progress: ReportImport | None = None,
        resume: bool = False,
        learn: bool = True,
    ) -> int:
        """Add the rows of a table, `batch` at a time, and return how many; each batch is on disk before the next.

        table: of pyarrow, pandas, polars or datasets, also one that is read bit by bit; or an array (n, D), also one
        that is larger than memory. The columns are named, or recognised, as by `stillhash.io.table_chunks`; with an
        array, id, label and metadata have one entry for each row. progress: called with an `ImportProgress` after each
        batch. resume: skip rows whose ids exist.
        """
        chosen: dict[str, Any] = {"id": id, "vector": vector, "label": label, "metadata": metadata}
        chunks = scan_table(table, **chosen, separator=separator, batch=batch, dim=self._input.row_length)
        stored = StoredRows(self._store) if resume else None
        return add_chunks(partial(self.add, learn=learn), chunks, stored, progress)

    def import_file(
        self,
        path: str | Path,
        *,
        columns: ColumnNames = USUAL_NAMES,
        number_rows: bool = False,
        batch: int = DEFAULT_BATCH,
        progress: ReportImport | None = None,
        skip_existing: bool = False,
        learn: bool = True,
    ) -> int:
        """Add the rows of a file, `batch` at a time, and return how many; after an interruption, call it again.

        path: .parquet, .npy, .npz, .csv or .jsonl. columns: `stillhash.io.ColumnNames`, for columns that do not have
        usual names. number_rows: use numbers as ids if there is no such column; arrays without ids have them anyway.
        Rows that an earlier call added are skipped. A row whose id existed before that call is a conflict, unless
        `skip_existing`.
        """
        options: dict[str, Any] = {"number_rows": number_rows, "skip_existing": skip_existing, "progress": progress}
        add = partial(self.add, learn=learn)
        return import_file(self._store, add, Path(path), columns, batch=check_integer(batch, "batch", 1), **options)

    def check_file(
        self,
        path: str | Path,
        *,
        columns: ColumnNames = USUAL_NAMES,
        number_rows: bool = False,
        batch: int = DEFAULT_BATCH,
        progress: ReportImport | None = None,
        skip_existing: bool = False,
    ) -> ImportProgress:
        """Read and validate a file as `import_file` would, and add nothing; return how many rows it has, and would add.

        What `import_file` refuses in the middle of a file, such as a NaN or an id that exists, is raised here before.
        """
        options: dict[str, Any] = {"number_rows": number_rows, "skip_existing": skip_existing, "progress": progress}
        return check_file(self._store, Path(path), columns, batch=check_integer(batch, "batch", 1), **options)

    def forget(
        self,
        ids: ItemIds | None = None,
        *,
        where: ItemFilter | None = None,
        source: str | None = None,
        snapshots: str | Path | None = None,
    ) -> ForgetReport:
        """Remove items, or all votes of a source, so that no file of the collection holds anything of them.

        ids, where : the items, by their ids or by a condition, "all" for every item; with their metadata, pictures and
            votes, and what was learnt of them: the model is as if it had never seen them. The report says where that
            is not so, without rescoring codes or with other methods than the default one.
        source : the source of votes.
        snapshots : a folder of snapshots; the report says which of them hold something of this. Remove those yourself.

        Files that hold something of it are rewritten, as `compact` does. Versions of the model that had learnt from it
        are dropped.
        """
        if sum(argument is not None for argument in (ids, where, source)) != 1:
            raise InvalidInput("forget: expected one of ids, where and source, got none or several")
        source = None if source is None else check_source(source)
        selection = [] if source is not None else check_selection(ids, where)
        folder = None if snapshots is None else check_path(snapshots)
        with self._writer.compaction_lock, self._writer.lock:
            self._store.db.check_writer()
            names = selection if isinstance(selection, list) else self._ids_of(selection)
            rewrite = partial(compact, self._store, self._view, self._writer.lock)
            return forget(self._store, self._trainer, rewrite, names, source, folder)

    # Learn.

    def fit(self, features: Any = None, labels: Any = None) -> None:
        """Fix the hash functions now, permanently: by a sample, or by the rows that wait for them."""
        if features is None and labels is not None:
            raise InvalidInput("labels: expected features with them; rows that wait have their own labels")
        sample = None if features is None else self._input.rows(features, labels, least=2)
        with self._writer.change("fit") as change:
            if is_fitted(change.connection):
                raise Conflict("fit: the hash functions are fitted already, and never change")
            waiting = int(get_meta(change.connection, "items"))
            change.rows = waiting if sample is None else len(sample.features)
            self._trainer.fit(change.connection, sample)
            self._trainer.flush(change.connection)

    def learn(self, features: Any, labels: Any) -> int:
        """Learn from labelled rows that are not stored as items, publish a version, and return its number."""
        rows = self._input.rows(features, labels)
        with self._writer.change("learn", len(rows.features)) as change:
            self._trainer.fit_early(change.connection)
            return self._trainer.learn(change.connection, rows)

    def flush(self) -> int:
        """Learn the pending rows, and what waits to be taken out, however few; return the current version."""
        with self._writer.change("flush") as change:
            waiting = self._trainer.count_waiting(change.connection)
            if waiting:
                self._trainer.fit_early(change.connection)
            if is_fitted(change.connection):
                change.rows = waiting or None
                self._trainer.flush(change.connection)
            return int(get_meta(change.connection, "version"))

    def feedback(
        self, query: Vector | NDArray[Any], id: Id | ItemIds, vote: Any, *, source: str = "", position: Any = None
    ) -> int:
        """Vote on an item, or on a list of items, as hits of a query (D,); publish a version, return its number.

        vote: "up" (or true), "down" (or false), or a number in [-1, 1]; 0 takes the source's vote back. position: the
        rank from 1 at which the hit was shown; a click further down counts for more. Lists give each item its own. The
        last vote of a source on a query and an item counts; votes of sources add up; a source counts for at most
        `source_cap` votes. For this very query, items voted up come first and items voted down last. Before there are
        hash functions a vote does that too, the version is 0, and votes teach once there are some.
        """
        return self._writer.vote(check_feedback(query, self._input, id, vote, source, position))

    def feedback_many(self, votes: Iterable[Vote | dict[str, Any]]) -> int:
        """Store votes on any number of queries, publish one version, and return its number.

        votes: as `Vote`, or dictionaries with its fields. If one is invalid, nothing changes.
        """
        return self._writer.vote(check_votes(votes, self._input))

    def votes(
        self,
        source: str | None = None,
        limit: int = 100,
        after: int | None = None,
        *,
        query: Vector | NDArray[Any] | None = None,
    ) -> list[VoteEntry]:
        """Return the votes that count, the latest first, at most `limit`; those taken back are not among them.

        source: only the votes of this source. after: only votes that come after the one of this number, so earlier
        ones; the last number leads to the next page. query: only votes on hits of this very query.
        """
        name = None if source is None else check_source(source)
        check_integer(limit, "limit", 1, MAX_LISTED_VOTES)
        before = MAX_VERSION if after is None else check_integer(after, "after", 0, MAX_VERSION)
        key = None if query is None else query_bytes(check_one_query(query, self._input))
        with self._view.pinned() as snapshot:
            return list_votes(snapshot, name, key, before, limit)

    def suggest_labels(self, count: int = 20, *, skip: ItemIds = (), seed: int | None = None) -> list[LabelSuggestion]:
        """Return unlabelled items whose labels would teach most, the most useful first, with labels predicted of them.

        count: items, at most. skip: ids of items that are not suggested, and whose like are not suggested soon. seed:
        of what is drawn at random, where there are thousands of items. Pass what a person decides to `relabel`.
        """
        check_integer(count, "count", 1, MAX_SUGGESTIONS)
        names = check_ids(skip, distinct=False)
        rng = np.random.default_rng(None if seed is None else check_integer(seed, "seed", 0, MAX_SEED))
        return suggest_labels(self._view, count, names, rng)

    def doubtful_labels(self, count: int = 100) -> list[DoubtfulItem]:
        """Return the items whose labels are least plausible, the most doubtful first, at most `count`.

        Labels are judged when they are learnt; none are before enough is learnt, or by methods that predict no labels.
        """
        with self._store.reading() as connection:
            return list_doubtful(self._store, connection, count)

    # Search: `search` and `range_search` are those of `Searchable`.

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
            ranked = rank_words(snapshot, terms, k)
            contents = snapshot.contents([row for row, _ in ranked], max_bytes)
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
            lexical = [row for row, _ in rank_words(snapshot, terms, first)]
            page = rank_page(self._store, snapshot, Q, first, *self._model(snapshot, version), balance)
            learnt = [row for row in page.scored[0][1].tolist() if row >= 0]
            fused = fuse_ranks(learnt, lexical, k, weight)
            contents = snapshot.contents([one.row for one in fused], max_bytes)
        hits = [Hit(*contents[row], score, page.version, learnt_rank=a, lexical_rank=b) for row, score, a, b in fused]
        return Answer(hits, page.version, HYBRID_RANKING, page.missing, page.balance)

    def set_lexical_field(self, field: str | None, *, progress: ReportShare | None = None) -> int:
        """Index the words of a field of the metadata, for `lexical_search`, in place of any other; None: of no field.

        Returns how many items have a text in it. All of it happens, or nothing. progress: called with the number of
        items so far, and of all. Searches go on in the meantime.
        """
        name = check_new_field(field)
        with self._writer.change(f"set_lexical_field {name}") as change:
            change.rows = set_lexical_field(change.connection, name, progress)
            return change.rows

    def duplicates(
        self,
        distance: int | None = None,
        *,
        cosine: float | None = None,
        where: Filter | None = None,
        limit: int = 1000,
        progress: ShareProgress | None = None,
    ) -> list[list[Id]]:
        """Return groups of items that are nearly the same, each group as its ids.

        cosine: of the features of two items, from 0.5 to 1, as their rescoring codes have it; labels count nothing. It
        is 0.97 by default where items have rescoring codes. Pairs up to two standard errors below are returned too.
        distance: in place of it, the Hamming distance of their codes at most. It is 3 by default elsewhere.

        A group is connected: each item is near some other, so two of them may be further apart. Items and groups are in
        order of arrival. where: only items that meet this condition (filters.py). limit: groups, at most. progress:
        called with the share that is done. By distance it is exact; by cosine one pair in a thousand may be missed
        where there are more than 8,192 items. TooLarge where it would take hours. Searches and writes go on meanwhile.
        """
        check_integer(limit, "limit", 1)
        condition = None if where is None else compile_filter(where)
        with self._view.pinned(condition) as snapshot:
            likeness = check_likeness(self._store.settings, cosine, distance)
            compared = read_compared(self._store, snapshot, likeness)
        return find_duplicates(self._store, compared, limit, progress)

    def facets(self, where: Filter | None = None, *, fields: Iterable[str] | None = None, limit: int = 20) -> Facets:
        """Return how many items have each label, and each value of fields of the metadata, with an item for each.

        where: only items that meet this condition (filters.py). fields: these; None for all that filters answer from
        memory, of which there are up to 64. limit: values of each, the most frequent first; equally frequent ones in
        order. Counts are exact. Of a field that only has numbers, more than `limit` of them, only the least and the
        largest number come back; of a field with more than 4,096 values, or of more than 32,768 labels, none. Lists and
        objects have no values.
        """
        condition = None if where is None else compile_filter(where)
        return self._values.facets(
            condition, check_fields(fields), check_integer(limit, "limit", 1, MAX_COUNTED_LABELS)
        )

    def suggest(self, text: str, limit: int = 10) -> list[Suggestion]:
        """Return labels, values of fields and ids for what somebody types, at most `limit`.

        First what is the same, then what begins so, then what has a word that begins so; frequent ones first. Case does
        not count; ids begin as typed, in lower or in upper case. Values are those of `facets`, up to 80 characters,
        without those of the `lexical_field`. Where nothing begins so, labels and ids that are nearly the same come
        back, as `near`.
        """
        return self._values.suggest(check_typed(text), check_integer(limit, "limit", 1, MAX_SUGGESTED))

    def warn_unknown_fields(self, on: bool) -> None:
        """Turn on or off the warning of filters that compare a field that no item has; it is on at first."""
        self._view.filter_columns.warn_unknown = on

    # Read items: `get` is that of `Searchable`.

    def count(self, where: Filter | None = None) -> int:
        """Return how many items there are, or how many meet a condition (filters.py)."""
        if where is None:
            with self._store.reading() as connection:
                return int(get_meta(connection, "items"))
        condition = compile_filter(where)
        with self._view.pinned(condition) as snapshot:
            assert snapshot.allowed is not None
            return count_bits(snapshot.allowed)

    def ids(self, where: Filter | None = None, *, after: Id | None = None, limit: int = 1000) -> list[Id]:
        """Return the ids of items, integers first and then texts, each in order; at most `limit`.

        where: only items that meet this condition (filters.py). after: only ids past this one, which need not exist;
        the last one of a list leads to the next list.
        """
        check_integer(limit, "limit", 1)
        last = None if after is None else check_ids([after])[0]
        condition = None if where is None else compile_filter(where)
        with self._view.pinned(condition) as snapshot:
            return self._store.items.list_ids(snapshot.connection, snapshot.allowed, last, limit)

    def list_items(
        self,
        where: Filter | None = None,
        *,
        after: Id | None = None,
        limit: int = 1000,
        max_bytes: int | None = None,
    ) -> list[Item]:
        """Return items in the order of `ids`, of one commit; at most `limit`. `where` and `after` are as in `ids`.

        max_bytes: return fewer, but one at least, where they would take more bytes as JSON, about.
        """
        return self.list_coded_items(where, after=after, limit=limit, max_bytes=max_bytes, codes=False)[0]

    def list_coded_items(
        self,
        where: Filter | None = None,
        *,
        after: Id | None = None,
        limit: int = 1000,
        max_bytes: int | None = None,
        codes: bool = True,
    ) -> tuple[list[Item], Codes | None]:
        """Return items as `list_items` does, and their codes; None while items wait for hash functions."""
        check_integer(limit, "limit", 1)
        if max_bytes is not None:
            check_integer(max_bytes, "max_bytes", 1)
        last = None if after is None else check_ids([after])[0]
        condition = None if where is None else compile_filter(where)
        with self._view.pinned(condition) as snapshot:
            table, connection = self._store.items, snapshot.connection
            rows = page_rows(table, connection, snapshot.allowed, last, limit, max_bytes)
            coded = codes and snapshot.functions is not None
            packed = snapshot.index.codes(np.array(rows, np.int64)) if coded else None
            return read_page(table, connection, rows), packed

    def items(
        self, where: Filter | None = None, *, after: Id | None = None, limit: int | None = None, batch: int = 1000
    ) -> Iterator[Item]:
        """Iterate over items in the order of `ids`, all or at most `limit`. `where` and `after` are as in `ids`.

        They are read `batch` at a time, fewer where they are large, and each batch is of one commit. So an item is
        returned once, unless it is deleted or added meanwhile; and other verbs can be called in between.
        """
        check_integer(batch, "batch", 1)
        if limit is not None:
            check_integer(limit, "limit", 1)
        if after is not None:
            check_ids([after])
        if where is not None:
            compile_filter(where)
        return self._iterate(where, after, limit, batch)

    def _iterate(self, where: Filter | None, after: Id | None, limit: int | None, batch: int) -> Iterator[Item]:
        left = limit
        while left is None or left > 0:
            size = batch if left is None else min(batch, left)
            items = self.list_items(where, after=after, limit=size, max_bytes=1 << 25)
            yield from items
            if not items:
                return
            after, left = items[-1].id, None if left is None else left - len(items)

    def _ids_of(self, condition: Condition) -> list[Id]:
        """Return the ids of all items that meet a condition."""
        with self._view.pinned(condition) as snapshot:
            return self._store.items.list_ids(snapshot.connection, snapshot.allowed, None, MAX_VERSION)

    def sample(self, count: int = 1, *, max_bytes: int | None = None) -> list[Item]:
        """Return some items at random, at most `count`; `max_bytes` is as in `get`."""
        check_integer(count, "count", 1, 10_000)
        with self._store.reading() as connection:
            return self._store.items.sample(connection, count, max_bytes)

    def _read_items(self, names: list[Id], max_bytes: int | None) -> list[Item | None]:
        with self._store.reading() as connection:
            rows = self._store.items.rows_of(connection, names)
            known = (rows[name] for name in names if name in rows)
            items = self._store.items.get(connection, known, max_bytes)
            return [items[rows[name]] if name in rows else None for name in names]

    def picture(self, id: Id) -> bytes | None:
        """Return the small image that an item came with, if it did."""
        (name,) = check_ids([id])
        with self._store.reading() as connection:
            return self._store.items.picture(connection, name)

    def has_picture(self, ids: ItemIds) -> list[bool]:
        """Return for each of these ids whether there is such an item, and it came with a picture."""
        names = check_ids(ids, distinct=False)
        with self._store.reading() as connection:
            pictured = pictured_ids(connection, names)
        return [name in pictured for name in names]

    def reconstruct(self, ids: ItemIds) -> NDArray[Any]:
        """Return features (n, D) that stand for these items, to search for more like them.

        With `keep_features`, and while items wait for hash functions, they are the items' own. Otherwise they are
        rebuilt from the rescoring codes, nearly the same but for their length, or where there are none from the codes,
        which they then have, or nearly so. Where the collection has `codes_only`, the codes themselves.
        """
        names = check_ids(ids, distinct=False)
        codes = self.codes(names) if self.codes_only else None
        if codes is not None:
            return codes
        with self._view.pinned() as snapshot:
            return snapshot.features(self._store.items.existing_rows(snapshot.connection, names))[0]

    def codes(self, ids: ItemIds) -> Codes | None:
        """Return the packed codes (n, ceil(bits / 8)) of these items; None while items wait for hash functions."""
        names = check_ids(ids, distinct=False)
        with self._view.pinned() as snapshot:
            rows = self._store.items.existing_rows(snapshot.connection, names)
            return None if snapshot.functions is None else snapshot.index.codes(rows)

    def export(
        self,
        path: str | Path,
        *,
        where: Filter | None = None,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Write all items, as of one commit, as a table to a .jsonl or .parquet file; return what it holds.

        The columns are id, labels, metadata, features where they are stored, and the code. `import_file` reads such
        tables where they have features; what is learnt is not in it, but in a `snapshot`. where: only items that meet
        this condition. overwrite: replace an existing file. progress: called with the number of items written so far,
        and of all. Searches and writes go on in the meantime.
        """
        return export(self._store, self._view.filter_columns, path, where, overwrite, progress)

    def snapshot(self, path: str | Path, *, progress: ShareProgress | None = None) -> int:
        """Copy the collection, as of one commit, to a new folder or to a new file that ends in .tar; return its bytes.

        Searches and writes go on in the meantime. The folder is a collection of its own; the file has it, and `tar -xf`
        unpacks it. progress: called with the share that is done; an error that it raises ends this, and nothing is left
        of the copy.
        """
        return snapshot(self._store, check_path(path), progress)

    # Versions of the model.

    def tag(self, version: int, name: str) -> None:
        """Name a version, so that it is kept."""
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise InvalidInput(f"name: expected a printable string, got {name!r}")
        version = check_integer(version, "version", 1, MAX_VERSION)
        with self._writer.change(f"tag {version}", 0) as change:
            self._store.versions.tag(change.connection, version, name)

    def rollback(self, version: int) -> int:
        """Restore an earlier version under a new number, which is returned; results are identical.

        Learning goes on from what that version had learnt where that is kept, as it is for the latest two versions and
        for those with a tag, and from the present otherwise. Votes that came after the version are dropped permanently.
        """
        with self._writer.change(f"rollback to {version}", 0) as change:
            return self._trainer.rollback(change.connection, version)

    def align(self, encoder: EncoderInfo, theirs: Any, ours: Any) -> dict[str, Any]:
        """Accept features of another encoder: fit an alignment, by the same things encoded by it and by our own.

        A few hundred pairs are enough. Codes stay, and learning goes on. Returns the share of the variance of our
        features that it explains, on pairs it was not fitted on.
        """
        with self._writer.change("align", 0) as change:
            alignment = build_alignment(self._store, change.connection, encoder, (theirs, ours))
            change.rows = alignment["pairs"]
            return alignment

    def probe(
        self,
        version: VersionName | None = None,
        *,
        queries: int = PROBE_QUERIES,
        items: int = PROBE_ITEMS,
        seed: int = 0,
    ) -> ProbeReport:
        """Measure a version of the model on a fixed probe: labelled items as queries, which rank other labelled items.

        version: as in `search`. queries, items: how many, at most; seed: which. The same items are chosen whatever the
        version, and while items are added until there are twice as many. Votes count by what the model has learnt from
        them. The report has the gain over version 0, and the quality of each label, the worst first.

        The figures are optimistic: the model has learnt from these items. Those of `quality` are not. Where features
        are not kept, queries are what `reconstruct` returns; where codes hold labels, these do too, and then the report
        says so: `labels_in_codes`.
        """
        with self._view.pinned(LABELLED_ITEMS) as snapshot:
            probe, leaks = self._probes.read(snapshot, queries, items, seed)
            name, model = self._named_model(snapshot, version)
            initial = load_model(self._store, snapshot.connection, 0)
        return report_quality(probe, name, model, initial, leaks)

    def compare_versions(
        self,
        one: VersionName,
        other: VersionName | None = None,
        *,
        queries: int = PROBE_QUERIES,
        items: int = PROBE_ITEMS,
        seed: int = 0,
        ids: ItemIds | None = None,
    ) -> VersionComparison:
        """Compare two versions of the model on the queries of `probe`, the current one by default with another.

        Each query has its first ten hits by both, of the items of the probe. The query with the largest gain of nDCG is
        first, that with the largest loss last. ids: the queries are those of these items that have labels; labels that
        are not learnt yet show honestly what was learnt from others.
        """
        names = None if ids is None else check_ids(ids, distinct=False)
        with self._view.pinned(LABELLED_ITEMS) as snapshot:
            probe, _ = self._probes.read(snapshot, queries, items, seed, names)
            (name_1, model_1), (name_2, model_2) = (self._named_model(snapshot, version) for version in (one, other))
        return compare_models(probe, (name_1, name_2), (model_1, model_2))

    def _named_model(self, snapshot: Snapshot, version: VersionName | None) -> tuple[VersionName, Model]:
        number, model = self._model(snapshot, version)
        return "hamming" if version == "hamming" else number, model

    def learning_events(self, limit: int = 10_000) -> list[LearningEvent]:
        """Return what each version came from, the latest last: how many items, labels and votes.

        limit: entries of the audit log that are read, the latest. The last event has no version where changes wait to
        be learnt.
        """
        return learning_events(self.audit(limit=limit))

    # Keep what is stored.

    def stats(self) -> dict[str, Any]:
        """Return settings, counts, disk and memory use.

        `quality` is of the last rows before they were learnt, `drift_alarms` are versions; an estimate may be None.
        """
        with self._view.pinned() as snapshot:
            history = load_history(snapshot.connection)
            return {
                **self._store.settings,
                "lexical_field": lexical_field(snapshot.connection),
                "fitted": snapshot.functions is not None,
                "version": snapshot.version,
                **self._store.counts(snapshot.connection),
                "index_bytes": snapshot.index.nbytes,
                "plan": snapshot.index.plan,
                "filter_columns": self._view.filter_columns.stats(),
                "quality": history["quality"],
                "drift_alarms": history["alarms"],
                "wrong_label_share": wrong_label_share(self._store, snapshot.connection),
            }

    def audit(self, after: int | None = None, limit: int = 100, *, who: str | None = None) -> list[AuditEntry]:
        """Return the entries of the audit log, the latest last: who changed what, and when; at most `limit`.

        after: the first entries past this number, 0 for the oldest; the last number leads to the next page. Without it,
        the latest entries. who: only the changes of this name. Up to 100,000 are kept.
        """
        check_integer(limit, "limit", 1, MAX_ENTRIES)
        first = None if after is None else check_integer(after, "after", 0, MAX_NUMBER)
        name = None if who is None else check_actor(who, "who")
        with self._store.reading() as connection:
            return self._store.audit.entries(connection, first, limit, name)

    def verify(self, *, progress: ShareProgress | None = None) -> list[str]:
        """Check everything that is stored; return one sentence for each problem.

        progress: called with the share that is done; an error that it raises ends this.
        """
        meter = ShareMeter(progress)
        with meter.cancellable():
            problems = verify_store(self._store, meter) or verify_models(self._store)
            meter.finish()
        return problems

    def seal(self) -> bool:
        """Move unsealed codes into segments now, of at most 131,072 rows each; return False if there are none."""
        with self._writer.lock:
            return self._store.seal()

    def compact(self, *, progress: ReportRows | None = None) -> int:
        """Rewrite the segments that have deleted or changed rows, or are small; return how many deleted rows they had.

        This frees disk and memory. Searches and writes go on meanwhile; writes wait at the end, if store.db is written
        again. An interrupted compaction is continued by the next. progress: called with the rows so far, and of all.
        """
        with self._writer.compaction_lock:
            self._store.db.check_writer()
            return compact(self._store, self._view, self._writer.lock, progress).dropped

    def build_rescoring(
        self,
        ids: ItemIds | None = None,
        features: Any = None,
        *,
        rescore_bits: int | None = None,
        progress: ShareProgress | None = None,
    ) -> int:
        """Build rescoring codes in a collection that has none; return how many items still have none.

        ids, features: items, and again the features that they were added with: any number in a call, in any order. Each
            call is on disk when it returns. Items that have a code already, or that do not exist, are skipped. If the
            short code of an item is of other features, nothing of the call is stored.
        rescore_bits: as for `stillhash.open`; others than before start again, and 0 drops what was built.
        progress: called with the share that is done; an error that it raises ends this, and what was built stays.

        A call without ids and features builds the codes of items whose features are kept. Once all items have one, it
        lets the collection have them, in one commit; until then, searches and writes are as before. By the default
        method, what is learnt is then of the labels that items have now, and no longer of rows that `learn` got.
        """
        if (ids is None) != (features is None):
            raise InvalidInput("features: expected ids with their features, or neither, got one of both")
        self._store.db.check_writer()
        if ids is None:
            meter, locks = ShareMeter(progress), (self._writer.compaction_lock, self._writer.lock)
            with meter.cancellable():
                build_all(self._store, self._trainer, *locks, rescore_bits, meter)
                meter.finish()
            return 0
        names, rows = check_ids(ids), self._input.rows(features, None)
        if len(names) != len(rows.features):
            raise InvalidInput(f"features: expected a row for each of {len(names)} ids, got {len(rows.features)}")
        return build_some(self._store, self._trainer, self._writer.lock, names, rows.features, rescore_bits)

    def repair(self) -> RepairReport:
        """Repair the files, as `stillhash.repair` does, which also works where the collection cannot be opened.

        No other process may have the collection open.
        """
        with self._writer.compaction_lock, self._writer.lock:
            self._store.db.check_writer()
            self._store.close()
            self._view.close()
            try:
                return repair(self._store.path)
            finally:
                self._use(Store(self._store.path, writer=True))
