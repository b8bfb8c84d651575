"""Find duplicates: items that are alike by their rescoring codes, or whose codes are near each other.

Comparing millions of codes takes a while, so no transaction is held meanwhile. Codes never change and row numbers are
never used again: items that are deleted meanwhile are left out, and that is all.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from stillhash.collection.read_view import Snapshot
from stillhash.collection.storage.schema import RowNumbers
from stillhash.collection.storage.store import Store
from stillhash.collection.types import Id
from stillhash.errors import InvalidInput, NotFitted
from stillhash.numeric.cosine_groups import MIN_COSINE, cosine_groups, feature_groups
from stillhash.numeric.near_groups import ShareProgress, near_groups
from stillhash.numeric.validation import check_integer, check_number
from stillhash.search.blocks import is_set

DUPLICATE_COSINE, DUPLICATE_DISTANCE = 0.97, 3  # are the defaults


class Likeness(NamedTuple):
    """What makes items duplicates: a cosine of at least, or a Hamming distance of at most."""

    cosine: float | None
    distance: int | None

    def __str__(self) -> str:
        if self.cosine is not None:
            return f"of a cosine of at least {self.cosine:g}"
        return f"within {self.distance} bit{'s' if self.distance != 1 else ''}"


class ComparedRows(NamedTuple):
    """Rows, and a function that returns for each the number of the first of its group; it needs no transaction."""

    rows: RowNumbers
    groups: Callable[[ShareProgress | None], RowNumbers]


def check_likeness(settings: Mapping[str, Any], cosine: float | None = None, distance: int | None = None) -> Likeness:
    """Return what makes items duplicates: by rescoring codes unless a distance is given, or there are none."""
    if cosine is not None and distance is not None:
        raise InvalidInput("duplicates: expected a cosine or a distance, got both")
    if distance is not None:
        return Likeness(None, check_integer(distance, "distance", 0, settings["bits"]))
    if settings["rescore_bits"]:
        chosen = DUPLICATE_COSINE if cosine is None else cosine
        return Likeness(check_number(chosen, "cosine", low=MIN_COSINE, high=1), None)
    if cosine is not None:
        raise InvalidInput("cosine: expected a distance where items have no rescoring codes, got a cosine")
    return Likeness(None, DUPLICATE_DISTANCE)


def read_compared(store: Store, snapshot: Snapshot, likeness: Likeness) -> ComparedRows:
    """Return the rows of all items, or of those that meet the condition of the snapshot, and what compares them."""
    cosine, distance = likeness
    if snapshot.functions is None:
        if cosine is None:
            raise NotFitted("distance: the hash functions are not fitted yet: add more rows, or call fit")
        rows, (X, _, _) = store.items.awaiting_codes(snapshot.connection)
        keep = np.ones(len(rows), bool) if snapshot.allowed is None else is_set(snapshot.allowed, rows)
        kept, features = rows[keep], X[keep]
        return ComparedRows(kept, lambda progress: feature_groups(features, cosine, progress))
    stored = store.codes.after(snapshot.connection, -1)
    keep = ~np.isin(stored.numbers, store.codes.deleted_after(snapshot.connection, -1))
    if snapshot.allowed is not None:
        keep &= is_set(snapshot.allowed, stored.numbers)
    kept = stored.numbers[keep]
    if distance is not None:
        codes, bits = stored.codes[keep], store.settings["bits"]
        return ComparedRows(kept, lambda progress: near_groups(codes, bits, distance, progress))
    items, rescorer = snapshot.page_items, store.rescorer
    assert items is not None and rescorer is not None and cosine is not None

    def groups(progress: ShareProgress | None) -> RowNumbers:
        return cosine_groups(lambda places: items.rescoring_codes(kept[places]), len(kept), rescorer, cosine, progress)

    return ComparedRows(kept, groups)


def find_duplicates(store: Store, compared: ComparedRows, limit: int, progress: ShareProgress | None) -> list[list[Id]]:
    """Return groups of two items or more, as `Collection.duplicates` does."""
    members, starts = _members(compared.groups(progress), limit)
    numbers = compared.rows[members].tolist()
    with store.reading() as connection:
        names = {row: content[0] for row, content in store.items.contents(connection, numbers).items()}
    ends = [*starts.tolist(), len(numbers)][1:]
    groups = [
        [names[row] for row in numbers[start:end] if row in names]
        for start, end in zip(starts.tolist(), ends, strict=True)
    ]
    return [group for group in groups if len(group) > 1]


def _members(groups: RowNumbers, limit: int) -> tuple[RowNumbers, RowNumbers]:
    """Return the members of the first groups of two or more, one group after another, and where each begins."""
    several = np.flatnonzero(np.bincount(groups, minlength=len(groups)) > 1)[:limit]
    place = np.full(len(groups), -1, np.int64)
    place[several] = np.arange(len(several))
    members = np.flatnonzero(place[groups] >= 0)
    number = place[groups[members]]
    order = np.argsort(number, kind="stable")
    return members[order], np.searchsorted(number[order], np.arange(len(several)))
