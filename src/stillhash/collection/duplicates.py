"""Find duplicates: groups of items whose codes are near each other.

Comparing millions of codes takes a while, so no transaction is held meanwhile. Codes never change and row numbers are
never used again: items that are deleted meanwhile are left out, and that is all.
"""

import numpy as np

from stillhash.collection.read_view import Snapshot
from stillhash.collection.storage.items import RowNumbers
from stillhash.collection.storage.store import Store
from stillhash.collection.types import Id
from stillhash.errors import NotFitted
from stillhash.numeric.near_groups import ShareProgress, near_groups
from stillhash.numeric.validation import Codes
from stillhash.search.blocks import is_set


def read_codes(store: Store, snapshot: Snapshot) -> tuple[RowNumbers, Codes]:
    """Return the rows of all items, or of those that meet the condition of the snapshot, and their codes."""
    if snapshot.functions is None:
        raise NotFitted("duplicates: the hash functions are not fitted yet: add more rows, or call fit")
    stored = store.codes.after(snapshot.connection, -1)
    keep = ~np.isin(stored.numbers, store.codes.deleted_after(snapshot.connection, -1))
    if snapshot.allowed is not None:
        keep &= is_set(snapshot.allowed, stored.numbers)
    return stored.numbers[keep], stored.codes[keep]


def find_duplicates(
    store: Store, rows: RowNumbers, codes: Codes, distance: int, limit: int, progress: ShareProgress | None
) -> list[list[Id]]:
    """Return groups of two items or more, as `Collection.duplicates` does."""
    members, starts = _members(near_groups(codes, store.settings["bits"], distance, progress), limit)
    numbers = rows[members].tolist()
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
