"""Compile the tree of a filter to SQL with parameters, over the columns metadata and labels of the table `items`."""

import json
from typing import Any

from stillhash.collection.filters.tree import COMPARISONS, AllOf, AnyOf, FieldTest, FilterTree, LabelTest, Negation
from stillhash.collection.values import json_text

JSON_TEXT, JSON_NUMERIC = "'text'", "'integer', 'real'"  # as json_type names them
JSON_TYPES = {str: JSON_TEXT, int: JSON_NUMERIC, float: JSON_NUMERIC}

Sql = tuple[str, list[Any]]  # a condition, and its parameters


def compile_sql(tree: FilterTree) -> Sql:
    """Return the condition in SQL, which holds no text of the caller; values are serialised as metadata is."""
    match tree:
        case AllOf(parts):
            return _join([compile_sql(part) for part in parts], "AND", "1")
        case AnyOf(parts):
            return _join([compile_sql(part) for part in parts], "OR", "0")
        case Negation(part):
            sql, values = compile_sql(part)
            return f"NOT ({sql})", values
        case LabelTest("$exists", value):
            return f"json_array_length(labels) {'>' if value else '='} 0", []
        case LabelTest(_, labels):
            sql, parameter = _one_of(labels)
            return f"EXISTS (SELECT 1 FROM json_each(labels) WHERE value {sql})", [parameter]
    return _compile_field(tree)


def _compile_field(test: FieldTest) -> Sql:
    key, operator, value = test
    path = "$" + "".join(f".{json_text(part)}" for part in key.split("."))
    if operator == "$exists":
        return f"json_type(metadata, ?) IS {'NOT ' if value else ''}NULL", [path]
    if operator in ("$eq", "$in"):
        return _equals_any(path, value if operator == "$in" else [value])
    comparison = f"json_extract(metadata, ?) {COMPARISONS[operator]} json_extract(?, '$')"
    return f"({_has_type(JSON_TYPES[type(value)])} AND {comparison})", [path, path, json_text(value)]


def _equals_any(path: str, values: list[Any]) -> Sql:
    """Test whether a field equals one of these values; all values of a type are one parameter."""
    parts: list[Sql] = []
    if constants := sorted({json.dumps(value) for value in values if type(value) not in JSON_TYPES}):
        parts.append((_has_type(", ".join(f"'{constant}'" for constant in constants)), [path]))
    for json_type in (JSON_TEXT, JSON_NUMERIC):
        if same_type := [value for value in values if JSON_TYPES.get(type(value)) == json_type]:
            sql, parameter = _one_of(same_type)
            parts.append((f"({_has_type(json_type)} AND json_extract(metadata, ?) {sql})", [path, path, parameter]))
    return _join(parts, "OR", "0")


def _one_of(values: list[Any]) -> tuple[str, str]:
    if len(values) == 1:
        return "= json_extract(?, '$')", json_text(values[0])
    return "IN (SELECT value FROM json_each(?))", json_text(values)


def _has_type(json_types: str) -> str:
    return f"ifnull(json_type(metadata, ?), '') IN ({json_types})"


def _join(parts: list[Sql], word: str, if_empty: str) -> Sql:
    if not parts:
        return if_empty, []
    return "(" + f" {word} ".join(sql for sql, _ in parts) + ")", [value for _, values in parts for value in values]
