"""What the meta of documents holds: fields and their types, ranges and distinct values."""

import json
from collections.abc import Iterable
from typing import Any

from stillhash.collection.types import Item

META_PREFIX = "meta."
TYPE_NAMES = {bool: "boolean", int: "int", float: "float"}


def meta_field(field: str) -> str:
    """Return the name of a field without the prefix that filters have."""
    return field.removeprefix(META_PREFIX)


def meta_values(items: Iterable[Item], field: str) -> list[Any]:
    """Return the values of a field, of the documents that have it."""
    values = ((item.metadata or {}).get("meta", {}).get(field) for item in items)
    return [value for value in values if value is not None]


def distinct_values(values: Iterable[Any]) -> list[Any]:
    """Return values without repetitions, sorted as texts; 1, 1.0, True and "1" are different."""
    distinct = {(type(value).__name__, json.dumps(value, sort_keys=True)): value for value in values}
    return [distinct[key] for key in sorted(distinct, key=lambda key: (str(distinct[key]), key))]


def field_types(items: Iterable[Item]) -> dict[str, dict[str, str]]:
    """Return the fields, and the type of a value of each; "keyword" for texts and all others."""
    metas = ((item.metadata or {}).get("meta", {}) for item in items)
    types = {key: type(value) for meta in metas for key, value in meta.items() if value is not None}
    return {key: {"type": TYPE_NAMES.get(kind, "keyword")} for key, kind in types.items()}


def value_range(values: Iterable[Any]) -> dict[str, Any]:
    """Return the least and the greatest value; None of what cannot be compared."""
    comparable = [value for value in values if isinstance(value, int | float | str)]
    try:
        return {"min": min(comparable, default=None), "max": max(comparable, default=None)}
    except TypeError:
        return {"min": None, "max": None}


class MetadataMethods:
    """The methods of the document store that say what meta holds. They read all documents that match."""

    def matching_items(self, filters: dict[str, Any] | None = None) -> list[Item]:
        """Return the items of the documents that match."""
        raise NotImplementedError

    def count_unique_metadata_by_filter(self, filters: dict[str, Any], metadata_fields: list[str]) -> dict[str, int]:
        """Return how many different values fields of the meta have, in the documents that match."""
        items, names = self.matching_items(filters), map(meta_field, metadata_fields)
        return {name: len(distinct_values(meta_values(items, name))) for name in names}

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """Return the fields of the meta of all documents, and their types."""
        return field_types(self.matching_items())

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """Return the least and the greatest value of a field of the meta."""
        return value_range(meta_values(self.matching_items(), meta_field(metadata_field)))

    def get_metadata_field_unique_values(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: dict[str, Any] | None = None,
    ) -> tuple[list[Any], int]:
        """Return a page of the different values of a field, and how many there are; those that hold a term, if any."""
        values = distinct_values(meta_values(self.matching_items(filters), meta_field(metadata_field)))
        term = (search_term or "").lower()
        values = [value for value in values if term in str(value).lower()]
        return values[from_ : from_ + size], len(values)
