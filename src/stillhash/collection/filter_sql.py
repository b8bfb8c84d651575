"""Compile the tree of a filter to SQL with parameters, over the columns metadata and labels of the table `items`."""

import json
import sys
from typing import Any

from stillhash.collection.filter_tree import COMPARISONS, AllOf, AnyOf, FieldTest, FilterTree, LabelTest, Negation
from stillhash.collection.validation import json_text
from stillhash.errors import InvalidInput

JSON_TEXT, JSON_NUMERIC = "'text'", "'integer', 'real'"  # as json_type names them
JSON_TYPES = {str: JSON_TEXT, int: JSON_NUMERIC, float: JSON_NUMERIC}
MAX_FILTER_CONDITIONS = 500  # SQLite takes expressions up to 1,000 deep
LARGEST_DOUBLE = sys.float_info.max

Sql = tuple[str, list[Any]]  # a condition, and its parameters


def compile_sql(tree: FilterTree) -> Sql:
    """Return the condition in SQL, once its values are validated."""
    sql, values = _compile(tree)
    if sql.count(" AND ") + sql.count(" OR ") > MAX_FILTER_CONDITIONS:  # the SQL holds no text of the caller
        most = f"at most {MAX_FILTER_CONDITIONS} conditions"
        raise InvalidInput(f"where: expected {most}, got more. Use $in for long lists.")
    return sql, values


def _compile(tree: FilterTree) -> Sql:
    match tree:
        case AllOf(parts):
            return _join([_compile(part) for part in parts], "AND", "1")
        case AnyOf(parts):
            return _join([_compile(part) for part in parts], "OR", "0")
        case Negation(part):
            sql, values = _compile(part)
            return f"NOT ({sql})", values
        case LabelTest("$exists", value):
            return f"json_array_length(labels) {'>' if value else '='} 0", []
        case LabelTest(_, labels):
            sql, parameter = _one_of("labels", labels)
            return f"EXISTS (SELECT 1 FROM json_each(labels) WHERE value {sql})", [parameter]
    return _compile_field(tree)


def _compile_field(test: FieldTest) -> Sql:
    key, operator, value = test
    path = "$" + "".join(f".{_json_parameter(key, part)}" for part in key.split("."))
    if operator == "$exists":
        return f"json_type(metadata, ?) IS {'NOT ' if value else ''}NULL", [path]
    if operator in ("$eq", "$in"):
        return _equals_any(path, key, value if operator == "$in" else [value])
    comparison = f"json_extract(metadata, ?) {COMPARISONS[operator]} json_extract(?, '$')"
    return f"({_has_type(JSON_TYPES[type(value)])} AND {comparison})", [path, path, _json_parameter(key, value)]


def _equals_any(path: str, key: str, values: list[Any]) -> Sql:
    """Test whether a field equals one of these values; all values of a type are one parameter."""
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
