"""Make streams that drift of any dataset, and watch the quality while one runs.

`drift:SCENARIO:DATA` opens DATA, which is all that `open_dataset` knows, as a stream that changes:

  classes    half of the classes are new: rows that show one of them arrive after all others
  labels     half of the labels are rare in the first part of the stream and frequent in the second
  features   from the middle on, a fifth of the dimensions have another gain and offset, as after a change of sensor
  recurring  rows of one half of the labels and of the other alternate in four blocks, so that what went comes back

All but classes run over the first 30,000 rows. Halves, gains and offsets follow from a seed that is the same for all
jobs: the methods meet the same stream. Rows that belong together keep their order. Quality before and after a change
is of other rows, so it is for comparing methods.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput
from stillhash.experiments.data import Dataset, QueryGroup, RowIndices, RowMask, StreamPosition, open_dataset
from stillhash.experiments.metrics import evaluate
from stillhash.hashers import Hasher
from stillhash.numeric.drift import PageHinkley
from stillhash.numeric.ranking import Ranking
from stillhash.numeric.validation import Codes, Floats

LEANING_SHARE = 0.9  # of the rows that lean to one half of the labels: how many are in its part of the stream
CHANGED_DIMENSIONS = 0.2  # of all, which a change of sensor alters
STREAM_ROWS = 30_000  # of the stream, for all scenarios but classes, where the new ones would be too few
MAX_GAIN, OFFSET_DEVIATIONS = 3.0, 3.0  # the largest factor, and the usual shift in deviations of its dimension
RECENT_ROWS, WATCHED_QUERIES = 4000, 200  # newest rows that a chunk is searched in, and rows of the chunk that search


def parse(data: str) -> tuple[str | None, str]:
    """Split a data string into the scenario that it names, if any, and the data under it."""
    word, scenario, under = (*data.split(":", 2), "", "")[:3]
    if word != "drift":
        return None, data
    if scenario not in SCENARIOS or not under:
        raise InvalidInput(f"data: expected drift:SCENARIO:DATA of {', '.join(SCENARIOS)}, got {data!r}")
    return scenario, under


def open_stream(data: str) -> Dataset:
    """Open any dataset, drifting if its name says so."""
    scenario, under = parse(data)
    return drifting(open_dataset(under), scenario) if scenario else open_dataset(data)


def drifting(data: Dataset, scenario: str, seed: int = 0) -> Dataset:
    """Return the same rows and queries as a stream that drifts."""
    if data.labels.shape[1] < 2:
        raise InvalidInput(f"labels: expected at least 2 in {data.name}, got {data.labels.shape[1]}")
    if scenario != "classes":
        data = replace(data, order=data.stream[:STREAM_ROWS])
    changed = SCENARIOS[scenario](data, np.random.default_rng(seed))
    return replace(changed, name=f"{data.name}-{scenario}")


def classes(data: Dataset, rng: np.random.Generator) -> Dataset:
    """Queries of old classes are judged as ever, those that show a new class by the new classes alone."""
    new = _half(data, rng)
    shows: RowMask = data.labels[:, new].sum(axis=1) > 0
    groups = {"old": QueryGroup(~shows, np.ones_like(new)), "new": QueryGroup(shows, new)}
    return _blocks(data, _split(data, shows), groups)


def labels(data: Dataset, rng: np.random.Generator) -> Dataset:
    lean = _lean(data, rng)
    late = rng.random(len(data)) < 0.5 + (LEANING_SHARE - 0.5) * lean
    return _blocks(data, _split(data, late), _by_lean(data, lean, "falling", "rising"))


def features(data: Dataset, rng: np.random.Generator) -> Dataset:
    start = len(data.stream) // 2
    deviation = data.read(data.stream[:1000]).std(axis=0)
    gain, offset = np.ones(data.dim, np.float32), np.zeros(data.dim, np.float32)
    other = rng.choice(data.dim, max(1, round(CHANGED_DIMENSIONS * data.dim)), replace=False)
    gain[other] = MAX_GAIN ** rng.uniform(-1, 1, len(other))
    offset[other] = OFFSET_DEVIATIONS * deviation[other] * rng.standard_normal(len(other))
    return replace(data, changes=(start,), transform=partial(_change_sensor, start, gain, offset))


def recurring(data: Dataset, rng: np.random.Generator) -> Dataset:
    lean = _lean(data, rng)
    second = np.where(lean == 0, rng.random(len(data)) < 0.5, lean > 0)
    (first, again), (then, last) = (np.array_split(rows, 2) for rows in _split(data, second))
    return _blocks(data, [first, then, again, last], _by_lean(data, lean, "first", "second"))


SCENARIOS: dict[str, Callable[[Dataset, np.random.Generator], Dataset]] = {
    scenario.__name__: scenario for scenario in (classes, labels, features, recurring)
}


def _change_sensor(start: int, gain: Floats, offset: Floats, X: Floats, at: StreamPosition) -> Floats:
    """Apply another gain and offset (D,) from one position of the stream on; a query is taken at the newest row."""
    late = np.broadcast_to(np.asarray(at) >= start, len(X))
    X[late] = X[late] * gain + offset
    return X


def _half(data: Dataset, rng: np.random.Generator) -> RowMask:
    count = data.labels.shape[1]
    return np.isin(np.arange(count), rng.permutation(count)[: count // 2])


def _lean(data: Dataset, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return for each row 1 if most of its labels are of one half of all, -1 if most are of the other, else 0."""
    return np.sign(data.labels.astype(np.int64) @ np.where(_half(data, rng), 1, -1))


def _by_lean(data: Dataset, lean: NDArray[np.int64], left: str, right: str) -> dict[str, QueryGroup]:
    every = np.ones(data.labels.shape[1], bool)
    return {left: QueryGroup(lean == -1, every), right: QueryGroup(lean == 1, every)}


def _split(data: Dataset, second: RowMask) -> list[RowIndices]:
    """Split the stream into rows outside `second` and rows in it, each in order."""
    stream = data.stream
    return [stream[~second[stream]], stream[second[stream]]]


def _blocks(data: Dataset, blocks: list[RowIndices], groups: dict[str, QueryGroup]) -> Dataset:
    """Return the stream block by block; it changes where each block but the first begins."""
    ends = np.cumsum([len(block) for block in blocks])
    changes = tuple(dict.fromkeys(int(end) for end in ends[:-1] if 0 < end < ends[-1]))
    return replace(data, order=np.concatenate(blocks), changes=changes, groups=groups)


class DriftWatch:
    """Evaluates each chunk before it is learnt (prequential evaluation), with drift detection.

    Its rows are searched for among the newest rows, encoded as the method would now, so that this judges the method as
    it is and not the stored codes. It is not timed, and the method learns nothing from it.
    """

    def __init__(self, data: Dataset, stream: RowIndices) -> None:
        self.rows = 0
        self.changes = [change for change in data.changes if change < len(stream)]
        self.alarms: list[int] = []
        self._since: list[tuple[int, float]] = []  # quality since the last checkpoint
        self._monitor = PageHinkley()
        self._items, self._labels = data.read(stream[:0]), data.labels[:0]  # the newest rows

    def chunk(self, hasher: Hasher, X: Floats, Y: NDArray[np.uint8]) -> None:
        self.rows += len(X)
        queries = np.flatnonzero(Y.any(axis=1))
        queries = queries[:: max(1, -(-len(queries) // WATCHED_QUERIES))]
        if len(self._items) and len(queries):
            codes = hasher.encode(self._items)
            value = evaluate(hasher.ranking(X[queries]), codes, Y[queries], self._labels, threads=1).map
            self._since.append((self.rows, value))
            if self._monitor.update(value):
                self.alarms.append(self.rows)
        self._items = np.concatenate([self._items, X])[-RECENT_ROWS:]
        self._labels = np.concatenate([self._labels, Y])[-RECENT_ROWS:]

    def take_record(self) -> dict[str, Any]:
        """Return what was recorded since the last checkpoint; rows are counted as they arrive."""
        since, self._since = self._since, []
        return {"prequential": since, "alarms": list(self.alarms), "changes": self.changes}


def by_group(data: Dataset, ranking: Ranking, codes: Codes, queries: RowIndices, rows: RowIndices) -> dict[str, float]:
    """Return the mAP of each group of the `queries` over the database `rows`."""
    quality = {}
    for name, group in data.groups.items():
        some = group.rows[queries]
        if some.any():
            query_labels, item_labels = data.labels[queries[some]][:, group.labels], data.labels[rows][:, group.labels]
            quality[name] = evaluate(ranking.rows(some), codes, query_labels, item_labels, threads=1).map
    return quality
