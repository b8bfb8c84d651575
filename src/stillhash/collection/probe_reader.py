"""Measure and compare versions of the model on a fixed probe."""

import threading
from typing import Any

import numpy as np

from stillhash.collection.filters.language import compile_filter
from stillhash.collection.learning.learning_events import LearningEvent, learning_events
from stillhash.collection.learning.prequential import MIN_LABELLED_ROWS
from stillhash.collection.learning.probe import (
    MAX_PROBE_ITEMS,
    MAX_PROBE_QUERIES,
    PROBE_ITEMS,
    PROBE_QUERIES,
    Probe,
    ProbeReport,
    ProbeRows,
    VersionComparison,
    choose_probe,
    choose_rows,
    codes_hold_labels,
    compare_models,
    report_quality,
)
from stillhash.collection.learning.stored_models import load_model
from stillhash.collection.read_view import Snapshot
from stillhash.collection.reader import Reader
from stillhash.collection.storage.labelled_rows import read_labels
from stillhash.collection.storage.schema import get_meta
from stillhash.collection.storage.store import Store
from stillhash.collection.types import Id, ItemIds, VersionName
from stillhash.collection.validation import check_ids
from stillhash.errors import Conflict, NotFitted, report_shortages
from stillhash.hashers import Model
from stillhash.numeric.labels import parse_labels
from stillhash.numeric.validation import check_integer

LABELLED_ITEMS = compile_filter({"labels": {"$exists": True}})
MAX_PROBE_SEED = 2**32 - 1
MIN_PROBE_ITEMS = 10
MAX_CACHED_PROBES = 2  # several versions are measured on each


@report_shortages
class ProbeReader(Reader):
    """The verbs that measure versions on the same stored items."""

    def _use(self, store: Store) -> None:
        super()._use(store)
        self._probes: dict[tuple[Any, ...], tuple[Probe, bool]] = {}  # the latest ones, by commit and arguments
        self._probes_lock = threading.Lock()

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
            probe, leaks = self._probe(snapshot, queries, items, seed)
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
            probe, _ = self._probe(snapshot, queries, items, seed, names)
            (name_1, model_1), (name_2, model_2) = (self._named_model(snapshot, version) for version in (one, other))
        return compare_models(probe, (name_1, name_2), (model_1, model_2))

    def learning_events(self, limit: int = 10_000) -> list[LearningEvent]:
        """Return what each version came from, the latest last: how many items, labels and votes.

        limit: entries of the audit log that are read, the latest. The last event has no version where changes wait to
        be learnt.
        """
        return learning_events(self.audit(limit=limit))

    def _named_model(self, snapshot: Snapshot, version: VersionName | None) -> tuple[VersionName, Model]:
        number, model = self._model(snapshot, version)
        return "hamming" if version == "hamming" else number, model

    def _probe(
        self, snapshot: Snapshot, queries: int, items: int, seed: int, names: list[Id] | None = None
    ) -> tuple[Probe, bool]:
        """Return the probe of a commit, and whether its queries hold their labels."""
        check_integer(queries, "queries", 1, MAX_PROBE_QUERIES)
        check_integer(items, "items", MIN_PROBE_ITEMS, MAX_PROBE_ITEMS)
        check_integer(seed, "seed", 0, MAX_PROBE_SEED)
        if names is not None:
            return self._read_probe(snapshot, self._choose(snapshot, queries, items, seed, names))
        key = int(get_meta(snapshot.connection, "seq")), queries, items, seed
        with self._probes_lock:
            if key in self._probes:
                return self._probes[key]
        probe = self._read_probe(snapshot, self._choose(snapshot, queries, items, seed))
        with self._probes_lock:
            self._probes[key] = probe
            while len(self._probes) > MAX_CACHED_PROBES:
                del self._probes[next(iter(self._probes))]
        return probe

    def _choose(
        self, snapshot: Snapshot, queries: int, items: int, seed: int, names: list[Id] | None = None
    ) -> ProbeRows:
        if snapshot.functions is None:
            raise NotFitted("probe: the hash functions are not fitted yet: add more rows, or call fit")
        assert snapshot.allowed is not None
        labelled = np.flatnonzero(np.unpackbits(snapshot.allowed, bitorder="little"))
        if len(labelled) < MIN_LABELLED_ROWS:
            raise Conflict(f"probe: expected {MIN_LABELLED_ROWS} labelled items or more, got {len(labelled)}")
        if names is None:
            return choose_probe(labelled, queries, items, self._store.settings["init_rows"], seed)
        rows = self._store.items.rows_of(snapshot.connection, names)
        chosen = np.intersect1d(labelled, np.array(list(rows.values()), np.int64))[:queries]
        if not len(chosen) or len(labelled) - len(chosen) < MIN_PROBE_ITEMS:
            raise Conflict(f"ids: expected items with labels, and {MIN_PROBE_ITEMS} other ones, got {len(chosen)}")
        return ProbeRows(chosen, np.sort(choose_rows(np.setdiff1d(labelled, chosen), items, seed)))

    def _read_probe(self, snapshot: Snapshot, chosen: ProbeRows) -> tuple[Probe, bool]:
        assert snapshot.functions is not None
        rows = np.concatenate(chosen)
        stored = read_labels(snapshot.connection, rows.tolist())
        ids, lists = zip(*(stored[row] for row in rows.tolist()), strict=True)
        labels, codes = parse_labels(list(lists), len(rows)), snapshot.index.codes(rows)
        features, own = self._row_features(snapshot, chosen.queries)
        count, rescorer = len(features), self._store.rescorer
        leaks = rescorer is None and not own.all() and codes_hold_labels(codes, labels, snapshot.functions)
        parts = list(ids), labels, list(lists[:count]), features, codes[count:], snapshot.functions
        if rescorer is None or snapshot.page_items is None:
            return Probe(*parts), leaks
        return Probe(*parts, rescorer, snapshot.page_items.rescoring_codes(chosen.items)), leaks
