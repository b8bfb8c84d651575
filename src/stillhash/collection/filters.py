"""Filters: a small dictionary language over metadata and labels, compiled to SQL with parameters.

    {"year": 1999}                                    equal
    {"year": {"$gte": 1990, "$lt": 2000}}             $eq $ne $gt $gte $lt $lte $in $exists
    {"author.name": {"$in": ["Ann", "Bo"]}}           a dot leads into objects
    {"labels": "cat"}, {"labels": {"$in": [...]}}     has the label; has one of them
    {"$or": [{...}, {...}]}, {"$not": {...}}          $and $or $not

Several conditions in one dictionary must all hold. Comparisons hold between values of one kind: a number is never
less than a text. A field that is not there equals nothing, and so it is `$ne` to everything.
"""

from __future__ import annotations

import json
import math
from typing import Any

from stillhash.errors import InvalidInput

COMPARED = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
KINDS = {str: ("text",), int: ("integer", "real"), float: ("integer", "real")}
DEEPEST = 32

Sql = tuple[str, list[Any]]


def compiled(where: Any, depth: int = 0) -> Sql:
    """The condition as SQL over the columns metadata and labels, and its parameters."""
    if not isinstance(where, dict) or not all(isinstance(key, str) for key in where):
        raise InvalidInput(f"where is {where!r}; a dictionary of conditions is wanted")
    if depth > DEEPEST:
        raise InvalidInput(f"where is nested more than {DEEPEST} deep")
    return _all([_condition(key, wanted, depth) for key, wanted in where.items()], "AND", "1")


def _condition(key: str, wanted: Any, depth: int) -> Sql:
    if key in ("$and", "$or"):
        if not isinstance(wanted, (list, tuple)):
            raise InvalidInput(f"where: {key} is {wanted!r}; a list of conditions is wanted")
        parts = [compiled(part, depth + 1) for part in wanted]
        return _all(parts, "AND" if key == "$and" else "OR", "1" if key == "$and" else "0")
    if key == "$not":
        sql, values = compiled(wanted, depth + 1)
        return f"NOT ({sql})", values
    if key.startswith("$"):
        raise InvalidInput(f"where: {key} is not known; known are $and, $or, $not, and fields")
    tests = wanted if isinstance(wanted, dict) else {"$eq": wanted}
    if not tests or not all(isinstance(name, str) and name.startswith("$") for name in tests):
        raise InvalidInput(f"where: {key} is {wanted!r}; a value, or tests such as {{'$gt': 3}}, are wanted")
    test = _label if key == "labels" else _field
    return _all([test(key, name, value) for name, value in tests.items()], "AND", "1")


def _field(key: str, name: str, value: Any) -> Sql:
    path = "$" + "".join(f".{json.dumps(part)}" for part in key.split("."))
    if name == "$exists":
        if not isinstance(value, bool):
            raise InvalidInput(f"where: $exists of {key} is {value!r}; true or false is wanted")
        return f"json_type(metadata, ?) IS {'NOT ' if value else ''}NULL", [path]
    if name == "$in":
        return _all([_equal(path, key, each) for each in _listed(key, value)], "OR", "0")
    if name == "$eq":
        return _equal(path, key, value)
    if name == "$ne":
        sql, values = _equal(path, key, value)
        return f"NOT ({sql})", values
    if name in COMPARED:
        kinds = KINDS.get(type(value))
        if kinds is None:
            raise InvalidInput(f"where: {name} of {key} is {value!r}; a number or a text is wanted")
        among = ", ".join(f"'{kind}'" for kind in kinds)
        compared = f"json_extract(metadata, ?) {COMPARED[name]} ?"
        return f"(ifnull(json_type(metadata, ?), '') IN ({among}) AND {compared})", [path, path, _number(key, value)]
    raise InvalidInput(f"where: {name} is not known; known are $eq, $ne, $in, $exists, {', '.join(COMPARED)}")


def _equal(path: str, key: str, value: Any) -> Sql:
    if value is None or isinstance(value, bool):
        return "ifnull(json_type(metadata, ?), '') = ?", [path, json.dumps(value)]
    kinds = KINDS.get(type(value))
    if kinds is None:
        raise InvalidInput(f"where: {key} is compared with {value!r}; a number, text, boolean or null is wanted")
    among = ", ".join(f"'{kind}'" for kind in kinds)
    sql = f"(ifnull(json_type(metadata, ?), '') IN ({among}) AND json_extract(metadata, ?) = ?)"
    return sql, [path, path, _number(key, value)]


def _label(key: str, name: str, value: Any) -> Sql:
    if name in ("$eq", "$in"):
        wanted = [value] if name == "$eq" else _listed(key, value)
        if not all(type(label) in (str, int, float) for label in wanted):
            raise InvalidInput(f"where: labels is {value!r}; texts or numbers are wanted")
        marks = ", ".join("?" * len(wanted))
        return f"EXISTS (SELECT 1 FROM json_each(labels) WHERE value IN ({marks}))", [_number(key, w) for w in wanted]
    if name == "$ne":
        sql, values = _label(key, "$eq", value)
        return f"NOT {sql}", values
    if name == "$exists" and isinstance(value, bool):
        return f"json_array_length(labels) {'>' if value else '='} 0", []
    raise InvalidInput(f"where: labels does not take {name}; it takes $eq, $ne, $in and $exists")


def _listed(key: str, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise InvalidInput(f"where: $in of {key} is {value!r}; a list is wanted")
    return list(value)


def _number(key: str, value: Any) -> Any:
    """SQLite's integers have 64 bits; beyond them, and for reals, a double compares."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"where: {key} is compared with {value}; a finite number is wanted")
    return float(value) if type(value) is int and not -(2**63) <= value < 2**63 else value


def _all(parts: list[Sql], word: str, of_none: str) -> Sql:
    if not parts:
        return of_none, []
    return "(" + f" {word} ".join(sql for sql, _ in parts) + ")", [value for _, values in parts for value in values]
