"""Filters: a small dictionary language over metadata and labels, compiled to SQL with parameters.

    {"year": 1999}                                    equal
    {"year": {"$gte": 1990, "$lt": 2000}}             $eq $ne $gt $gte $lt $lte $in $exists
    {"author.name": {"$in": ["Ann", "Bo"]}}           a dot leads into objects
    {"labels": "cat"}, {"labels": {"$in": [...]}}     has the label; has one of them
    {"$or": [{...}, {...}]}, {"$not": {...}}          $and $or $not

Several conditions in one dictionary must all hold. Comparisons hold between values of one type: a number is never
less than a text. A missing field equals nothing, so it is `$ne` to everything.
"""

import json
import sys
from typing import Any

from stillhash.collection.validation import json_text
from stillhash.errors import InvalidInput

COMPARISONS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
JSON_TEXT, JSON_NUMERIC = "'text'", "'integer', 'real'"  # as json_type names them
JSON_TYPES = {str: JSON_TEXT, int: JSON_NUMERIC, float: JSON_NUMERIC}
MAX_FILTER_DEPTH = 8  # SQLite parses up to 100 levels
MAX_FILTER_CONDITIONS = 500  # SQLite takes expressions up to 1,000 deep
LARGEST_DOUBLE = sys.float_info.max

Sql = tuple[str, list[Any]]  # a condition, and its parameters


def compile_filter(where: Any, depth: int = 0) -> Sql:
    """Compile a filter to SQL over the columns metadata and labels."""
    if not isinstance(where, dict) or not all(isinstance(key, str) for key in where):
        raise InvalidInput(f"where: expected a dictionary of conditions, got {where!r}")
    if depth > MAX_FILTER_DEPTH:
        raise InvalidInput(f"where: expected conditions nested at most {MAX_FILTER_DEPTH} deep, got more")
    sql, values = _join([_condition(key, operand, depth) for key, operand in where.items()], "AND", "1")
    if sql.count(" AND ") + sql.count(" OR ") > MAX_FILTER_CONDITIONS:  # the SQL holds no text of the caller
        most = f"at most {MAX_FILTER_CONDITIONS} conditions"
        raise InvalidInput(f"where: expected {most}, got more. Use $in for long lists.")
    return sql, values


def _condition(key: str, operand: Any, depth: int) -> Sql:
    if key in ("$and", "$or"):
        parts = [compile_filter(part, depth + 1) for part in _check_list(key, operand)]
        return _join(parts, "AND" if key == "$and" else "OR", "1" if key == "$and" else "0")
    if key == "$not":
        sql, values = compile_filter(operand, depth + 1)
        return f"NOT ({sql})", values
    if key.startswith("$"):
        raise InvalidInput(f"where: expected $and, $or, $not or a field, got {key}")
    tests = operand if isinstance(operand, dict) else {"$eq": operand}
    if not tests or not all(isinstance(operator, str) and operator.startswith("$") for operator in tests):
        raise InvalidInput(f"where: {key}: expected a value, or operators such as {{'$gt': 3}}, got {operand!r}")
    test = _label_test if key == "labels" else _field_test
    return _join([test(key, operator, value) for operator, value in tests.items()], "AND", "1")


def _field_test(key: str, operator: str, value: Any) -> Sql:
    path = "$" + "".join(f".{_json_parameter(key, part)}" for part in key.split("."))
    if operator == "$exists":
        if not isinstance(value, bool):
            raise InvalidInput(f"where: {key}: $exists: expected true or false, got {value!r}")
        return f"json_type(metadata, ?) IS {'NOT ' if value else ''}NULL", [path]
    if operator in ("$eq", "$ne", "$in"):
        sql, values = _equals_any(path, key, _check_list(f"{key}: $in", value) if operator == "$in" else [value])
        return f"NOT ({sql})" if operator == "$ne" else sql, values
    if operator in COMPARISONS:
        json_type = JSON_TYPES.get(type(value))
        if json_type is None:
            raise InvalidInput(f"where: {key}: {operator}: expected a number or a text, got {value!r}")
        comparison = f"json_extract(metadata, ?) {COMPARISONS[operator]} json_extract(?, '$')"
        return f"({_has_type(json_type)} AND {comparison})", [path, path, _json_parameter(key, value)]
    raise InvalidInput(f"where: {key}: expected $eq, $ne, $in, $exists, {', '.join(COMPARISONS)}, got {operator}")


def _equals_any(path: str, key: str, values: list[Any]) -> Sql:
    """Test whether a field equals one of these values; all values of a type are one parameter."""
    for value in values:
        if value is not None and type(value) not in (bool, *JSON_TYPES):
            raise InvalidInput(f"where: {key}: expected a number, text, boolean or null, got {value!r}")
    parts: list[Sql] = []
    if constants := sorted({json.dumps(value) for value in values if type(value) not in JSON_TYPES}):
        parts.append((_has_type(", ".join(f"'{constant}'" for constant in constants)), [path]))
    for json_type in (JSON_TEXT, JSON_NUMERIC):
        if same_type := [value for value in values if JSON_TYPES.get(type(value)) == json_type]:
            sql, parameter = _one_of(key, same_type)
            parts.append((f"({_has_type(json_type)} AND json_extract(metadata, ?) {sql})", [path, path, parameter]))
    return _join(parts, "OR", "0")


def _one_of(key: str, values: list[Any]) -> tuple[str, str]:
    if len(values) == 1:
        return "= json_extract(?, '$')", _json_parameter(key, values[0])
    return "IN (SELECT value FROM json_each(?))", _json_parameter(key, values)


def _has_type(json_types: str) -> str:
    return f"ifnull(json_type(metadata, ?), '') IN ({json_types})"


def _label_test(key: str, operator: str, value: Any) -> Sql:
    if operator in ("$eq", "$in"):
        labels = [value] if operator == "$eq" else _check_list(f"{key}: $in", value)
        if not all(type(label) in JSON_TYPES for label in labels):
            raise InvalidInput(f"where: labels: expected texts or numbers, got {value!r}")
        sql, parameter = _one_of(key, labels)
        return f"EXISTS (SELECT 1 FROM json_each(labels) WHERE value {sql})", [parameter]
    if operator == "$ne":
        sql, values = _label_test(key, "$eq", value)
        return f"NOT {sql}", values
    if operator == "$exists" and isinstance(value, bool):
        return f"json_array_length(labels) {'>' if value else '='} 0", []
    raise InvalidInput(f"where: labels: expected $eq, $ne, $in, or $exists with true or false, got {operator}")


def _check_list(operator: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"where: {operator}: expected a list, got {value!r}")
    return list(value)


def _json_parameter(key: str, value: Any) -> str:
    """Serialise a value as metadata is, so that SQLite reads the same double, or text, from both."""
    for number in value if isinstance(value, list) else [value]:
        if type(number) in (int, float) and not abs(number) <= LARGEST_DOUBLE:
            text = number if isinstance(number, float) else f"an integer beyond {LARGEST_DOUBLE:.1e}"
            raise InvalidInput(f"where: {key}: expected a finite number, got {text}")
    try:
        return json_text(value)
    except ValueError as error:
        raise InvalidInput(f"where: {key}: expected a value that JSON can hold, got {value!r}: {error}") from None


def _join(parts: list[Sql], word: str, if_empty: str) -> Sql:
    if not parts:
        return if_empty, []
    return "(" + f" {word} ".join(sql for sql, _ in parts) + ")", [value for _, values in parts for value in values]
