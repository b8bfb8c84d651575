"""Filters: a small dictionary language over metadata and labels.

    {"year": 1999}                                    equal
    {"year": {"$gte": 1990, "$lt": 2000}}             $eq $ne $gt $gte $lt $lte $in $exists
    {"author.name": {"$in": ["Ann", "Bo"]}}           a dot leads into objects
    {"labels": "cat"}, {"labels": {"$in": [...]}}     has the label; has one of them
    {"$or": [{...}, {...}]}, {"$not": {...}}          $and $or $not

Several conditions in one dictionary must all hold. Comparisons hold between values of one type: a number is never
less than a text. A missing field equals nothing, so it is `$ne` to everything.
"""

from typing import Any, NamedTuple

from stillhash.collection.filter_sql import Sql, compile_sql
from stillhash.collection.filter_tree import FilterTree, parse_filter


class Condition(NamedTuple):
    """A validated filter: its tree, and the same in SQL."""

    tree: FilterTree
    sql: Sql

    @property
    def key(self) -> tuple[str, tuple[Any, ...]]:
        """Return what is equal for equal filters."""
        return self.sql[0], tuple(self.sql[1])


def compile_filter(where: Any) -> Condition:
    """Parse and validate a filter."""
    tree = parse_filter(where)
    return Condition(tree, compile_sql(tree))
