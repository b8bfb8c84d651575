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
import sys
from typing import Any

from stillhash.collection.types import json_text
from stillhash.errors import InvalidInput

COMPARED = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
TEXT, NUMBER = "'text'", "'integer', 'real'"  # as json_type calls them
KINDS = {str: TEXT, int: NUMBER, float: NUMBER}
DEEPEST, MOST = 8, 500  # SQLite parses no more than 100 words deep, and takes expressions up to 1,000 deep
LARGEST = sys.float_info.max

Sql = tuple[str, list[Any]]


def compiled(where: Any, depth: int = 0) -> Sql:
    """The condition as SQL over the columns metadata and labels, and its parameters."""
    if not isinstance(where, dict) or not all(isinstance(key, str) for key in where):
        raise InvalidInput(f"where is {where!r}; a dictionary of conditions is wanted")
    if depth > DEEPEST:
        raise InvalidInput(f"where is nested more than {DEEPEST} deep")
    sql, values = _all([_condition(key, wanted, depth) for key, wanted in where.items()], "AND", "1")
    if sql.count(" AND ") + sql.count(" OR ") > MOST:  # no text of the caller's is in it
        raise InvalidInput(f"where has more than {MOST} conditions; only the list of $in may be longer")
    return sql, values


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
    path = "$" + "".join(f".{_as_json(key, part)}" for part in key.split("."))
    if name == "$exists":
        if not isinstance(value, bool):
            raise InvalidInput(f"where: $exists of {key} is {value!r}; true or false is wanted")
        return f"json_type(metadata, ?) IS {'NOT ' if value else ''}NULL", [path]
    if name == "$in":
        return _among(path, key, _listed(key, value))
    if name == "$eq":
        return _among(path, key, [value])
    if name == "$ne":
        sql, values = _among(path, key, [value])
        return f"NOT ({sql})", values
    if name in COMPARED:
        kinds = KINDS.get(type(value))
        if kinds is None:
            raise InvalidInput(f"where: {name} of {key} is {value!r}; a number or a text is wanted")
        compared = f"json_extract(metadata, ?) {COMPARED[name]} json_extract(?, '$')"
        return f"({_is(kinds)} AND {compared})", [path, path, _as_json(key, value)]
    raise InvalidInput(f"where: {name} is not known; known are $eq, $ne, $in, $exists, {', '.join(COMPARED)}")


def _among(path: str, key: str, wanted: list[Any]) -> Sql:
    """Equal to one of these; all of a kind are one list, however many they are."""
    for value in wanted:
        if value is not None and type(value) not in (bool, *KINDS):
            raise InvalidInput(f"where: {key} is compared with {value!r}; a number, text, boolean or null is wanted")
    parts: list[Sql] = []
    if words := sorted({json.dumps(value) for value in wanted if type(value) not in KINDS}):
        parts.append((_is(", ".join(f"'{word}'" for word in words)), [path]))
    for kinds in (TEXT, NUMBER):
        if some := [value for value in wanted if KINDS.get(type(value)) == kinds]:
            sql, value = _one_of(key, some)
            parts.append((f"({_is(kinds)} AND json_extract(metadata, ?) {sql})", [path, path, value]))
    return _all(parts, "OR", "0")


def _one_of(key: str, wanted: list[Any]) -> tuple[str, str]:
    if len(wanted) == 1:
        return "= json_extract(?, '$')", _as_json(key, wanted[0])
    return "IN (SELECT value FROM json_each(?))", _as_json(key, wanted)


def _is(kinds: str) -> str:
    return f"ifnull(json_type(metadata, ?), '') IN ({kinds})"


def _label(key: str, name: str, value: Any) -> Sql:
    if name in ("$eq", "$in"):
        wanted = [value] if name == "$eq" else _listed(key, value)
        if not all(type(label) in KINDS for label in wanted):
            raise InvalidInput(f"where: labels is {value!r}; texts or numbers are wanted")
        sql, listed = _one_of(key, wanted)
        return f"EXISTS (SELECT 1 FROM json_each(labels) WHERE value {sql})", [listed]
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


def _as_json(key: str, value: Any) -> str:
    """As metadata is written, so that SQLite reads the same double, or text, from both."""
    for number in value if isinstance(value, list) else [value]:
        if type(number) in (int, float) and not abs(number) <= LARGEST:
            found = number if isinstance(number, float) else f"an integer beyond {LARGEST:.1e}"
            raise InvalidInput(f"where: {key} is compared with {found}; a finite number is wanted")
    try:
        return json_text(value)
    except ValueError as error:
        raise InvalidInput(f"where: {key} is compared with {value!r}, which nothing equals: {error}") from None


def _all(parts: list[Sql], word: str, of_none: str) -> Sql:
    if not parts:
        return of_none, []
    return "(" + f" {word} ".join(sql for sql, _ in parts) + ")", [value for _, values in parts for value in values]
