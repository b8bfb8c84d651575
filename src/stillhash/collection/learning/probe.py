"""A fixed probe: the same stored queries rank the same stored items by any version of the model.

Unlike the prequential evaluation, whose rows are others in each step, a probe says how versions differ, for each label
too. Its rows are labelled items, chosen by a hash of their row numbers: they stay the same while items are added, until
there are twice as many. The measures are those of `prequential`: items that share a label are relevant, and the Jaccard
of their label sets is the grade.
"""

import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.filters.language import compile_filter
from stillhash.collection.learning.prequential import MIN_LABELLED_ROWS, MeasuredItems, score_items
from stillhash.collection.read_view import Snapshot
from stillhash.collection.storage.items import read_labels
from stillhash.collection.storage.schema import RowNumbers, get_meta
from stillhash.collection.types import Id, VersionName
from stillhash.errors import Conflict, NotFitted
from stillhash.hashers import LinearHasher, Model
from stillhash.numeric import kernels
from stillhash.numeric.codes import signs
from stillhash.numeric.kernels import RankingQuality
from stillhash.numeric.labels import Labels, label_jaccard, parse_labels
from stillhash.numeric.ranking import order_rows
from stillhash.numeric.reference import FIRST_PAGE
from stillhash.numeric.rescoring import Rescorer
from stillhash.numeric.validation import Codes, Floats, Mask, check_integer

PROBE_QUERIES, PROBE_ITEMS = 100, 2000
MAX_PROBE_QUERIES, MAX_PROBE_ITEMS = 1000, 20_000
MIN_PROBE_ITEMS, MAX_PROBE_SEED = 10, 2**32 - 1
MAX_CACHED_PROBES = 2
LABELLED_ITEMS = compile_filter({"labels": {"$exists": True}})
MIN_LABEL_QUERIES = 3  # the quality of a label with fewer queries is mostly chance
SAME_BITS_SHARE = 0.2  # codes hold labels if this share of the rows with equal labels has equal bits of labels
PROBE_MEASURES = tuple(map(RankingQuality._fields.index, ("precision_10", "ndcg_10", "map")))


@dataclass(frozen=True)
class ProbeQuality:
    """Means over queries: precision and nDCG of the first ten hits, and mean average precision of the whole ranking."""

    precision: float
    ndcg: float
    map: float


@dataclass(frozen=True)
class LabelQuality:
    """How well the queries with a label are answered."""

    label: Any
    queries: int
    items: int  # of the probe that have it
    precision: float
    ndcg: float
    precision_gain: float  # over version 0
    ndcg_gain: float


@dataclass(frozen=True)
class ProbeReport:
    """The quality of a version on the probe, and that of version 0, before anything was learnt."""

    version: VersionName
    queries: int
    items: int
    quality: ProbeQuality
    before: ProbeQuality
    gain: ProbeQuality
    gain_error: ProbeQuality  # the standard error of the gain, over queries
    labels: list[LabelQuality]  # the worst first; those with fewer than three queries last
    labels_in_codes: bool  # queries are rebuilt from codes that hold their labels: no gain can be seen


@dataclass(frozen=True)
class QueryComparison:
    """The first ten hits of a query by two versions; pairs are by the one and by the other."""

    id: Id
    labels: list[Any]
    precision: tuple[float, float]
    ndcg: tuple[float, float]
    hits: tuple[list[Id], list[Id]]
    differing: int  # hits of the other version that are not among those of the one


@dataclass(frozen=True)
class VersionComparison:
    """Two versions on the same queries; pairs are by the one and by the other."""

    versions: tuple[VersionName, VersionName]
    items: int  # that are ranked
    quality: tuple[ProbeQuality, ProbeQuality]
    differing: float  # of the first ten hits, the mean over queries
    queries: list[QueryComparison]  # the largest gain first, the largest loss last


class ProbeRows(NamedTuple):
    """The rows of a probe: queries, and the items that they rank, in order of arrival."""

    queries: RowNumbers
    items: RowNumbers


class Probe(NamedTuple):
    """What all versions of a commit are measured on."""

    ids: list[Id]  # of queries, then of items
    labels: Labels  # likewise
    query_labels: list[list[Any]]  # as they are stored
    features: Floats  # (queries, D)
    codes: Codes  # of items
    functions: LinearHasher
    rescorer: Rescorer | None = None
    rescoring_codes: Codes | None = None  # of items

    @property
    def is_query(self) -> Mask:
        """Return which rows are queries."""
        return np.arange(len(self.ids)) < len(self.features)

    def grades(self) -> Floats:
        """Return the grade (queries, items) of each item as a hit of each query."""
        return label_jaccard(self.labels.rows(self.is_query), self.labels.rows(~self.is_query))

    def scores(self, model: Model) -> Floats:
        """Return scores (queries, items) that rank the items as search does, with the labels that they have now."""
        stored = None
        if self.rescoring_codes is not None:
            stored = MeasuredItems(self.rescoring_codes, self.labels.rows(~self.is_query))
        return score_items(self.functions, model, self.features, self.codes, self.rescorer, stored)

    def measure(self, scores: Floats) -> NDArray[np.float64]:
        """Return precision, nDCG and average precision (queries, 3)."""
        return kernels.rank_quality(scores, self.grades())[:, PROBE_MEASURES]


def choose_probe(labelled: RowNumbers, queries: int, items: int, fitted_rows: int, seed: int) -> ProbeRows:
    """Choose the rows of a probe, of all labelled rows in order; at most half of them are queries.

    fitted_rows: so many of the first rows have fitted the hash functions, which suit them better than other rows. They
    are no queries where there are enough others.
    """
    queries = min(queries, len(labelled) // 2)
    later = labelled[np.searchsorted(labelled, fitted_rows) :]
    chosen = choose_rows(later if len(later) >= queries else labelled, queries, seed)
    others = np.ones(len(labelled), bool)
    others[np.searchsorted(labelled, chosen)] = False
    return ProbeRows(chosen, np.sort(choose_rows(labelled[others], items, seed)))


def choose_rows(rows: RowNumbers, count: int, seed: int) -> RowNumbers:
    """Choose so many of these rows, or all, by a hash of their numbers; in the order of it.

    They are chosen of the first count * 2**j rows, for the largest j. So they stay while rows are added, until there
    are twice as many, and then about half of them stay; but they are never of the earliest rows only.
    """
    doublings = max(0, (len(rows) // max(1, count)).bit_length() - 1)
    first = rows if len(rows) < count else rows[: count << doublings]
    keys = hash_numbers(first, seed)  # no two are equal
    least = np.argpartition(keys, count - 1)[:count] if 0 < count < len(first) else np.arange(len(first))[:count]
    return first[least[np.argsort(keys[least])]]


def hash_numbers(numbers: RowNumbers, seed: int) -> NDArray[np.uint64]:
    """Return a hash of each number: splitmix64."""
    z = (numbers.astype(np.uint64) + np.uint64(1 + seed)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def report_quality(probe: Probe, version: VersionName, model: Model, initial: Model, leaks: bool) -> ProbeReport:
    """Measure a model and the initial one."""
    now, before = (probe.measure(probe.scores(each)) for each in (model, initial))
    gain, error = now - before, np.zeros(len(PROBE_MEASURES))
    if len(gain) > 1:
        error = gain.std(axis=0, ddof=1) / np.sqrt(len(gain))
    sizes = len(probe.features), len(probe.codes)
    quality, earlier, gained = (_quality(values.mean(axis=0)) for values in (now, before, gain))
    labels = label_quality(probe, now, gain)
    return ProbeReport(version, *sizes, quality, earlier, gained, _quality(error), labels, leaks)


def label_quality(probe: Probe, now: NDArray[np.float64], gain: NDArray[np.float64]) -> list[LabelQuality]:
    """Return the means over the queries with each label, the worst first; labels without queries are left out."""
    queries, items = (probe.labels.rows(some) for some in (probe.is_query, ~probe.is_query))
    count = len(probe.labels.names)
    of_query = np.repeat(np.arange(len(queries)), np.diff(queries.indptr))
    counts, item_counts = (np.bincount(part.indices, minlength=count) for part in (queries, items))
    measures = np.column_stack([now[:, :2], gain[:, :2]])[of_query]
    sums = np.column_stack([np.bincount(queries.indices, column, count) for column in measures.T])
    probed = np.flatnonzero(counts)
    rows = [
        LabelQuality(probe.labels.names[c], int(counts[c]), int(item_counts[c]), *(sums[c] / counts[c]).tolist())
        for c in probed
    ]
    return sorted(rows, key=lambda row: (row.queries < MIN_LABEL_QUERIES, row.ndcg, row.precision, str(row.label)))


def compare_models(
    probe: Probe, versions: tuple[VersionName, VersionName], models: tuple[Model, Model]
) -> VersionComparison:
    """Compare the first ten hits by two models."""
    scores = [probe.scores(model) for model in models]
    measures = [probe.measure(each) for each in scores]
    pages = [order_rows(each)[:, :FIRST_PAGE] for each in scores]
    item_ids = probe.ids[len(probe.features) :]
    queries = []
    for q, labels in enumerate(probe.query_labels):
        one, other = ([item_ids[place] for place in page[q]] for page in pages)
        (precision_1, ndcg_1, _), (precision_2, ndcg_2, _) = (each[q].tolist() for each in measures)
        pairs = (precision_1, precision_2), (ndcg_1, ndcg_2), (one, other)
        queries.append(QueryComparison(probe.ids[q], labels, *pairs, len(set(other) - set(one))))
    queries.sort(key=lambda each: (each.ndcg[0] - each.ndcg[1], each.precision[0] - each.precision[1]))
    quality = _quality(measures[0].mean(axis=0)), _quality(measures[1].mean(axis=0))
    differing = sum(each.differing for each in queries) / len(queries)
    return VersionComparison(versions, len(probe.codes), quality, differing, queries)


def codes_hold_labels(codes: Codes, labels: Labels, functions: LinearHasher) -> bool:
    """Return whether many codes hold the labels of their rows: rows with the same labels then have the same bits."""
    if not functions.label_bits_:
        return False
    bits = np.packbits(signs(codes, functions.bits)[:, : functions.label_bits_] > 0, axis=1)
    seen: dict[tuple[Any, ...], set[bytes]] = {}
    compared = same = 0
    for row, part in enumerate(map(bytes, bits)):
        others = seen.setdefault(tuple(labels.indices[labels.indptr[row] : labels.indptr[row + 1]].tolist()), set())
        compared, same = compared + bool(others), same + (part in others)
        others.add(part)
    return same > SAME_BITS_SHARE * compared


def _quality(values: NDArray[np.float64]) -> ProbeQuality:
    return ProbeQuality(*values.tolist())


class Probes:
    """Chooses and reads the probe of a commit, and keeps the latest ones, on which several versions are measured."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, ...], tuple[Probe, bool]] = {}  # by commit and arguments
        self._lock = threading.Lock()

    def read(
        self, snapshot: Snapshot, queries: int, items: int, seed: int, names: list[Id] | None = None
    ) -> tuple[Probe, bool]:
        """Return the probe of a commit, and whether its queries hold their labels.

        The snapshot allows the labelled items. names: the queries are these items.
        """
        check_integer(queries, "queries", 1, MAX_PROBE_QUERIES)
        check_integer(items, "items", MIN_PROBE_ITEMS, MAX_PROBE_ITEMS)
        check_integer(seed, "seed", 0, MAX_PROBE_SEED)
        if names is not None:
            return read_probe(snapshot, _rows_of_probe(snapshot, queries, items, seed, names))
        key = int(get_meta(snapshot.connection, "seq")), queries, items, seed
        with self._lock:
            if key in self._latest:
                return self._latest[key]
        probe = read_probe(snapshot, _rows_of_probe(snapshot, queries, items, seed, None))
        with self._lock:
            self._latest[key] = probe
            while len(self._latest) > MAX_CACHED_PROBES:
                del self._latest[next(iter(self._latest))]
        return probe


def _rows_of_probe(snapshot: Snapshot, queries: int, items: int, seed: int, names: list[Id] | None) -> ProbeRows:
    """Choose the rows of a probe among the rows that the snapshot allows."""
    if snapshot.functions is None:
        raise NotFitted("probe: the hash functions are not fitted yet: add more rows, or call fit")
    assert snapshot.allowed is not None
    labelled = np.flatnonzero(np.unpackbits(snapshot.allowed, bitorder="little"))
    if len(labelled) < MIN_LABELLED_ROWS:
        raise Conflict(f"probe: expected {MIN_LABELLED_ROWS} labelled items or more, got {len(labelled)}")
    if names is None:
        return choose_probe(labelled, queries, items, snapshot.store.settings["init_rows"], seed)
    rows = snapshot.store.items.rows_of(snapshot.connection, names)
    chosen = np.intersect1d(labelled, np.array(list(rows.values()), np.int64))[:queries]
    if not len(chosen) or len(labelled) - len(chosen) < MIN_PROBE_ITEMS:
        raise Conflict(f"ids: expected items with labels, and {MIN_PROBE_ITEMS} other ones, got {len(chosen)}")
    return ProbeRows(chosen, np.sort(choose_rows(np.setdiff1d(labelled, chosen), items, seed)))


def read_probe(snapshot: Snapshot, chosen: ProbeRows) -> tuple[Probe, bool]:
    """Read the labels, codes and features of a probe; return it, and whether its queries hold their labels."""
    assert snapshot.functions is not None
    rows = np.concatenate(chosen)
    stored = read_labels(snapshot.connection, rows.tolist())
    ids, lists = zip(*(stored[row] for row in rows.tolist()), strict=True)
    labels, codes = parse_labels(list(lists), len(rows)), snapshot.index.codes(rows)
    features, own = snapshot.features(chosen.queries)
    count, rescorer = len(features), snapshot.store.rescorer
    leaks = rescorer is None and not own.all() and codes_hold_labels(codes, labels, snapshot.functions)
    parts = list(ids), labels, list(lists[:count]), features, codes[count:], snapshot.functions
    if rescorer is None or snapshot.page_items is None:
        return Probe(*parts), leaks
    return Probe(*parts, rescorer, snapshot.page_items.rescoring_codes(chosen.items)), leaks
