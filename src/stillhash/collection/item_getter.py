"""The verb `get`, for every class that reads items by their ids."""

from typing import overload

from stillhash.collection.types import Id, IdLike, Item, ItemIds
from stillhash.collection.validation import check_ids
from stillhash.collection.values import is_single_id
from stillhash.errors import report_shortages


@report_shortages
class ItemGetter:
    """Returns one item for one id, and a list for a list; subclasses read the items."""

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
