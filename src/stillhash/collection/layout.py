"""Lay out items in two dimensions, for a map: by principal components of their features, or of predicted labels.

Features are not stored. A code gives them back as the mean direction of its sides, signs @ W.T, a linear map: so their
covariance follows from that of the signs, which is exact, and no features are computed: 20,000 items take a fifth of a
second. The steps by which `decode` goes on would take 5 seconds. Where codes hold labels of some items, only the bits
that hold looks count.

By labels, the rows are the labels predicted of codes, of unit norm, as the first page of a search compares them.

The items are those with the lowest hash of their row number and the seed: always the same ones, at random, of which few
change when others are added or deleted.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.label_names import LabelNames
from stillhash.collection.read_view import Snapshot
from stillhash.collection.storage.codes import CodeTable
from stillhash.collection.storage.item_labels import ids_and_labels
from stillhash.collection.storage.items import RowNumbers
from stillhash.collection.storage.store import Store
from stillhash.collection.types import Id
from stillhash.errors import NotFitted
from stillhash.hashers import LinearHasher, Model
from stillhash.numeric import kernels
from stillhash.numeric.codes import signs
from stillhash.numeric.principal_plane import PlaneSums, place_rows, principal_axes
from stillhash.numeric.validation import Codes, Doubles, Floats, Mask

LayoutSide = Literal["features", "labels"]
MAX_LAYOUT_ITEMS = 100_000
MAX_PLANE_LABELS = 512  # that count, of those that are predicted: the most frequent ones
LAYOUT_BATCH_ROWS = 4096
MIN_LOOKS_SHARE = 4  # one in so many bits must hold looks, for the others to be left out
MIN_MAIN_CHANCE = 0.25  # of an unlabelled item's best label, as a cosine, for it to be the main label

HASH_STEPS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # splitmix64


@dataclass(frozen=True, eq=False)
class ItemLayout:
    """Items in two dimensions, in order of arrival, with the label that says most of each."""

    by: LayoutSide
    ids: list[Id]
    coordinates: Floats  # (n, 2), within -1 and 1
    labels: list[Any]  # that are main labels, the most frequent first
    main: NDArray[np.int64]  # (n,): the place of each item's main label among them; -1 without one
    predicted: Mask  # (n,): the item has no labels, and this one is predicted
    items: int  # of the collection
    version: int  # of the model


class MainLabels(NamedTuple):
    """The main label of each item, as the names of labels, and whether it is predicted."""

    names: list[Hashable | None]
    predicted: Mask


def lay_out(
    store: Store, snapshot: Snapshot, names: LabelNames, items: int, by: LayoutSide, seed: int, count: int
) -> ItemLayout:
    """Return where items are on the map; `names` are the labels that the model of the snapshot predicts."""
    functions, model = snapshot.functions, snapshot.model
    if functions is None:
        raise NotFitted("layout: the hash functions are not fitted yet: add more rows, or call fit")
    if by == "labels" and (model.V is None or model.v is None):
        raise NotFitted("by: expected features, since no labels are predicted yet, got labels")
    rows = sample_rows(item_rows(store.codes, snapshot), items, seed)
    contents = ids_and_labels(snapshot.connection, rows.tolist())
    rows = rows[[row in contents for row in rows.tolist()]] if len(rows) else rows
    codes = snapshot.index.codes(rows)
    own = [contents[row][1] for row in rows.tolist()]
    places = places_by_labels(model, codes) if by == "labels" else places_by_features(functions, codes)
    main = main_labels(model, names, codes, own)
    counts = Counter(name for name in main.names if name is not None)
    labels = sorted(counts, key=lambda name: (-counts[name], str(name)))
    numbers = {name: number for number, name in enumerate(labels)}
    column = np.array([-1 if name is None else numbers[name] for name in main.names], np.int64)
    ids = [contents[row][0] for row in rows.tolist()]
    return ItemLayout(by, ids, places, labels, column, main.predicted, count, snapshot.version)


def item_rows(codes: CodeTable, snapshot: Snapshot) -> RowNumbers:
    """Return the rows of all items, ascending: those of segments and later ones, without the deleted ones."""
    connection, parts = snapshot.connection, []
    for record in codes.segment_records(connection):
        consecutive = record.last - record.first + 1 == record.rows
        rows = np.arange(record.first, record.last + 1)
        parts.append(rows if consecutive else codes.read_segment(record, check=False).row_numbers())
    parts.append(codes.unsealed_rows(connection))
    return np.setdiff1d(np.concatenate(parts), codes.deleted_after(connection, -1), assume_unique=True)


def sample_rows(rows: RowNumbers, count: int, seed: int) -> RowNumbers:
    """Return so many of the rows, ascending: those with the lowest hash; all if there are fewer."""
    if len(rows) <= count:
        return rows
    order = hash_rows(rows, seed)
    return np.sort(rows[np.argpartition(order, count)[:count]])


def hash_rows(rows: RowNumbers, seed: int) -> NDArray[np.uint64]:
    """Return numbers at random that depend on the row and the seed alone; different ones for different rows."""
    start = np.random.default_rng(seed).integers(2**63)
    h = (rows.astype(np.uint64) + np.uint64(start)) * HASH_STEPS[0]
    for shift, step in zip((np.uint64(30), np.uint64(27)), HASH_STEPS[1:], strict=True):
        h = (h ^ (h >> shift)) * step
    return h ^ (h >> np.uint64(31))


def places_by_features(functions: LinearHasher, codes: Codes) -> Floats:
    """Return coordinates (n, 2) by the principal components of signs(codes) @ W.T, of bits that hold looks."""
    W = functions.W_
    first = functions.label_bits_ if MIN_LOOKS_SHARE * (functions.bits - functions.label_bits_) >= functions.bits else 0

    def batches() -> Iterator[Floats]:
        return (signs(some, functions.bits)[:, first:] for some in in_batches(codes))

    sums = PlaneSums(functions.bits - first)
    for x in batches():
        sums.add(x)
    # Features are (x R^T) Q^T with W = Q R, and Q keeps lengths: their components are those of x R^T.
    R: Doubles = np.asarray(np.linalg.qr(W[:, first:].astype(np.float64), mode="r"))
    axes = R.T @ principal_axes(R @ sums.covariance() @ R.T)
    return place_rows(batches(), sums.sum / max(1, sums.rows), axes)


def places_by_labels(model: Model, codes: Codes) -> Floats:
    """Return coordinates (n, 2) by the principal components of the labels predicted of codes."""
    total: Any = 0.0
    for predicted in predictions(model, codes):
        total = total + predicted.sum(axis=0, dtype=np.float64)
    assert model.V is not None
    frequent = np.sort(np.argsort(-np.broadcast_to(total, model.V.shape[1]), kind="stable")[:MAX_PLANE_LABELS])
    sums = PlaneSums(len(frequent))
    for predicted in predictions(model, codes):
        sums.add(predicted[:, frequent])
    batches = (predicted[:, frequent] for predicted in predictions(model, codes))
    return place_rows(batches, sums.sum / max(1, sums.rows), principal_axes(sums.covariance()))


def predictions(model: Model, codes: Codes) -> Iterator[Floats]:
    """Yield the labels predicted of codes, of unit norm, some rows at a time: there may be thousands of labels."""
    V, v = model.V, model.v
    assert V is not None and v is not None
    return (kernels.predict_labels(some, V, v, model.item_power) for some in in_batches(codes))


def in_batches(codes: Codes) -> Iterator[Codes]:
    return (codes[start : start + LAYOUT_BATCH_ROWS] for start in range(0, len(codes), LAYOUT_BATCH_ROWS))


def main_labels(model: Model, names: LabelNames, codes: Codes, own: list[list[Hashable]]) -> MainLabels:
    """Return of each item the one of its labels that is predicted best; of one without labels, the best of all.

    Before anything is learnt it is the first of its labels, and none of an item without labels.
    """
    mains: list[Hashable | None] = [labels[0] if labels else None for labels in own]
    predicted = np.zeros(len(own), bool)
    if model.V is None or len(names) < model.V.shape[1]:
        return MainLabels(mains, predicted)
    columns = {name: column for column, name in enumerate(names)}
    start = 0
    for chances in predictions(model, codes):
        best, best_chances = chances.argmax(axis=1).tolist(), chances.max(axis=1).tolist()
        for place, labels in enumerate(own[start : start + len(chances)]):
            if len(labels) > 1:
                known = [(chances[place, columns[name]], -n) for n, name in enumerate(labels) if name in columns]
                mains[start + place] = labels[-max(known)[1]] if known else labels[0]
            elif not labels and best_chances[place] >= MIN_MAIN_CHANCE:
                mains[start + place], predicted[start + place] = names[best[place]], True
        start += len(chances)
    return MainLabels(mains, predicted)
