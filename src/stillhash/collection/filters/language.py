"""Filters: a small dictionary language over metadata and labels.

    {"year": 1999}                                    equal
    {"year": {"$gte": 1990, "$lt": 2000}}             $eq $ne $gt $gte $lt $lte $in $exists
    {"author.name": {"$in": ["Ann", "Bo"]}}           a dot leads into objects
    {"labels": "cat"}, {"labels": {"$in": [...]}}     has the label; has one of them
    {"$or": [{...}, {...}]}, {"$not": {...}}          $and $or $not

Several conditions in one dictionary must all hold. Comparisons hold between values of one type: a number is never
less than a text. A missing field equals nothing, so it is `$ne` to everything.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stillhash.collection.filters.sql import Sql, compile_sql
from stillhash.collection.filters.tree import FilterTree, check_joins, parse_filter, tree_from_json, tree_to_json


@dataclass(frozen=True)
class Condition:
    """A validated filter."""

    tree: FilterTree

    @cached_property
    def sql(self) -> Sql:
        """Return the same in SQL."""
        return compile_sql(self.tree)

    @cached_property
    def key(self) -> str:
        """Return what only equal filters have: True and 1 are the same in a tree, but not here."""
        return repr(self.tree)

    def to_json(self) -> list[Any]:
        """Return the filter as lists that JSON can hold, to send it to another process."""
        return tree_to_json(self.tree)

    @classmethod
    def from_json(cls, parts: Any) -> "Condition":
        """Return the filter of such lists; InvalidInput if they are not of a filter."""
        return cls(check_joins(tree_from_json(parts)))


def compile_filter(where: Any) -> Condition:
    """Parse and validate a filter."""
    return Condition(parse_filter(where))
