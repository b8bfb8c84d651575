"""Filters: a small dictionary language over metadata and labels.

    {"year": 1999}                                    equal
    {"year": {"$gte": 1990, "$lt": 2000}}             $eq $ne $gt $gte $lt $lte $in $exists
    {"author.name": {"$in": ["Ann", "Bo"]}}           a dot leads into objects
    {"labels": "cat"}, {"labels": {"$in": [...]}}     has the label; has one of them
    {"$or": [{...}, {...}]}, {"$not": {...}}          $and $or $not

Several conditions in one dictionary must all hold. Comparisons hold between values of one type: a number is never
less than a text. A missing field equals nothing, so it is `$ne` to everything.

A filter is parsed into a small tree, which columns (columns.py) and SQL, with parameters, both answer.
"""

import json
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from stillhash.collection.values import SCALAR_TYPES, brief, json_text, plain_label, plain_value
from stillhash.errors import InvalidInput

COMPARISONS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
MAX_FILTER_DEPTH = 8  # SQLite parses up to 100 levels
MAX_FILTER_CONDITIONS = 500  # SQLite takes expressions up to 1,000 deep
MAX_FILTER_PARTS = 40 * MAX_FILTER_CONDITIONS  # conditions, operators and what joins them, before they are parsed
MAX_FIELD_LENGTH = 1000  # characters of the name of a field
LARGEST_DOUBLE = sys.float_info.max
COMPARABLE = {str, int, float}  # types of values that have an order


class FieldTest(NamedTuple):
    """Compare a field of the metadata; a dot in its name leads into objects. `$in` has a list as its value."""

    field: str
    operator: str
    value: Any


class LabelTest(NamedTuple):
    """Compare the labels."""

    operator: str
    value: Any


class AllOf(NamedTuple):
    """All parts hold; without any, this holds."""

    parts: tuple["FilterTree", ...]


class AnyOf(NamedTuple):
    """One part holds; without any, this does not hold."""

    parts: tuple["FilterTree", ...]


class Negation(NamedTuple):
    """The part does not hold."""

    part: "FilterTree"


FilterTree = FieldTest | LabelTest | AllOf | AnyOf | Negation


def parse_filter(where: Any) -> FilterTree:
    """Parse and validate a filter."""
    return check_joins(_parse(where, 0) if count_parts(where) <= MAX_FILTER_PARTS else None)


def check_joins(tree: FilterTree | None) -> FilterTree:
    """Return a tree; InvalidInput if there is none, or it has more conditions than SQL takes."""
    if tree is None or count_joins(tree) > MAX_FILTER_CONDITIONS:
        most = f"at most {MAX_FILTER_CONDITIONS} conditions"
        raise InvalidInput(f"where: expected {most}, got more. Use $in for long lists.")
    return tree


def count_parts(where: Any) -> int:
    """Count the conditions, operators and lists of conditions of a filter, up to a few more than are accepted."""
    parts, left = 0, [where]
    while left and parts <= MAX_FILTER_PARTS:
        entries = part.items() if isinstance(part := left.pop(), dict) else ()
        parts += 1 + len(entries)
        for key, operand in entries:
            listed = operand if key in ("$and", "$or") and isinstance(operand, list | tuple) else ()
            left += listed[:MAX_FILTER_PARTS]
            left += [operand] if key == "$not" else []
            parts += len(listed) + (len(operand) if isinstance(operand, dict) and key != "$not" else 0)
    return parts


def _parse(where: Any, depth: int) -> FilterTree:
    if not isinstance(where, dict) or not all(isinstance(key, str) for key in where):
        raise InvalidInput(f"where: expected a dictionary of conditions, got {brief(where)}")
    if depth > MAX_FILTER_DEPTH:
        raise InvalidInput(f"where: expected conditions nested at most {MAX_FILTER_DEPTH} deep, got more")
    return _all_of([_condition(key, operand, depth) for key, operand in where.items()])


def _all_of(parts: list[FilterTree]) -> FilterTree:
    return parts[0] if len(parts) == 1 else AllOf(tuple(parts))


def _condition(key: str, operand: Any, depth: int) -> FilterTree:
    if key in ("$and", "$or"):
        parts = tuple(_parse(part, depth + 1) for part in check_list(key, operand))
        return AllOf(parts) if key == "$and" else AnyOf(parts)
    if key == "$not":
        return Negation(_parse(operand, depth + 1))
    if key.startswith("$"):
        raise InvalidInput(f"where: expected $and, $or, $not or a field, got {key}")
    if len(key) > MAX_FIELD_LENGTH:
        raise InvalidInput(f"where: expected names of fields up to {MAX_FIELD_LENGTH} characters, got {len(key)}")
    tests = operand if isinstance(operand, dict) else {"$eq": operand}
    if not tests or not all(isinstance(operator, str) and operator.startswith("$") for operator in tests):
        raise InvalidInput(f"where: {key}: expected a value, or operators such as {{'$gt': 3}}, got {brief(operand)}")
    test = _label_test if key == "labels" else _field_test
    return _all_of([test(key, operator, value) for operator, value in tests.items()])


def _field_test(key: str, operator: str, value: Any) -> FilterTree:
    value = plain_value(value) if operator in COMPARISONS or operator == "$exists" else value
    if operator == "$exists":
        if not isinstance(value, bool):
            raise InvalidInput(f"where: {key}: $exists: expected true or false, got {brief(value)}")
    elif operator in ("$eq", "$ne", "$in"):
        value = plain_values(check_list(f"{key}: $in", value)) if operator == "$in" else plain_value(value)
        values = value if operator == "$in" else [value]
        if not set(map(type, values)) <= {*COMPARABLE, bool, type(None)}:
            raise InvalidInput(f"where: {key}: expected a number, text, boolean or null, got {brief(value)}")
        check_values(key, values)
    elif operator not in COMPARISONS:
        raise InvalidInput(f"where: {key}: expected $eq, $ne, $in, $exists, {', '.join(COMPARISONS)}, got {operator}")
    elif type(value) not in COMPARABLE:
        raise InvalidInput(f"where: {key}: {operator}: expected a number or a text, got {brief(value)}")
    else:
        check_values(key, [value])
    check_values(key, [key])
    return Negation(FieldTest(key, "$eq", value)) if operator == "$ne" else FieldTest(key, operator, value)


def _label_test(key: str, operator: str, value: Any) -> FilterTree:
    if operator in ("$eq", "$ne", "$in"):
        labels = [value] if operator != "$in" else check_list(f"{key}: $in", value)
        check_values(key, labels)
        if not set(map(type, labels)) <= COMPARABLE:
            labels = [plain_label(label, "where: labels") for label in labels]
        check_values(key, labels)
        return Negation(LabelTest("$in", labels)) if operator == "$ne" else LabelTest("$in", labels)
    if operator == "$exists" and isinstance(value, bool):
        return LabelTest(operator, value)
    raise InvalidInput(f"where: labels: expected $eq, $ne, $in, or $exists with true or false, got {operator}")


def check_list(operator: str, value: Any) -> list[Any]:
    """Return a list, tuple, set, array or column as a list."""
    if not isinstance(value, list | tuple | set | frozenset):
        for method in ("to_list", "tolist", "to_pylist"):
            if hasattr(value, method) and hasattr(value, "__len__"):
                return list(value) if getattr(value, "ndim", 1) == 1 else [value]
        raise InvalidInput(f"where: {operator}: expected a list, got {brief(value)}")
    return list(value)


def plain_values(values: list[Any]) -> list[Any]:
    """Return values as they are stored."""
    return values if set(map(type, values)) <= SCALAR_TYPES else list(map(plain_value, values))


def check_values(key: str, values: list[Any]) -> None:
    """Check that numbers are finite, and that texts can be stored."""
    types = set(map(type, values))
    numbers = values if types <= {int, float} else [value for value in values if type(value) in (int, float)]
    for number in [min(numbers), max(numbers)] if numbers and float not in types else numbers:
        if not abs(number) <= LARGEST_DOUBLE:
            text = number if isinstance(number, float) else f"an integer beyond {LARGEST_DOUBLE:.1e}"
            raise InvalidInput(f"where: {key}: expected a finite number, got {text}")
    if str in types and any("\0" in value for value in values if type(value) is str):
        raise InvalidInput(f"where: {key}: expected texts without the character 0, got some")


def count_joins(tree: FilterTree) -> int:
    """Count how often AND and OR join parts of the SQL."""
    match tree:
        case AllOf(parts) | AnyOf(parts):
            return sum(map(count_joins, parts)) + max(0, len(parts) - 1)
        case Negation(part):
            return count_joins(part)
        case FieldTest(_, "$eq" | "$in" as operator, value):
            types = set(map(type, value if operator == "$in" else [value]))
            texts, numbers, words = str in types, not types.isdisjoint({int, float}), not types <= COMPARABLE
            return texts + numbers + max(0, texts + numbers + words - 1)
        case FieldTest(_, "$exists", _) | LabelTest():
            return 0
    return 1


def compared_fields(tree: FilterTree) -> tuple[set[str], bool]:
    """Return the fields that a filter compares, and whether it compares labels."""
    if isinstance(tree, FieldTest):
        return {tree.field}, False
    if isinstance(tree, LabelTest):
        return set(), True
    below = [compared_fields(part) for part in ((tree.part,) if isinstance(tree, Negation) else tree.parts)]
    return {field for fields, _ in below for field in fields}, any(labels for _, labels in below)


def valued_fields(tree: FilterTree) -> set[str]:
    """Return the fields that a filter compares with values; `$exists` is no such comparison."""
    if isinstance(tree, FieldTest):
        return set() if tree.operator == "$exists" else {tree.field}
    parts = () if isinstance(tree, LabelTest) else (tree.part,) if isinstance(tree, Negation) else tree.parts
    return {field for part in parts for field in valued_fields(part)}


def tree_to_json(tree: FilterTree) -> list[Any]:
    """Return a tree as lists that JSON can hold."""
    match tree:
        case FieldTest(field, operator, value):
            return ["field", field, operator, value]
        case LabelTest(operator, value):
            return ["labels", operator, value]
        case Negation(part):
            return ["not", tree_to_json(part)]
    return ["all" if isinstance(tree, AllOf) else "any", *map(tree_to_json, tree.parts)]


def tree_from_json(parts: Any, depth: int = 0) -> FilterTree:
    """Return the tree of such lists; InvalidInput if they are not of a tree."""
    if depth > 2 * MAX_FILTER_DEPTH + 2:  # a filter has two levels of a tree in each of its own, at most
        raise InvalidInput(f"where: expected conditions nested at most {MAX_FILTER_DEPTH} deep, got more")
    match parts:
        case ["field", str(field), str(operator), value] if operator != "$ne":
            return _field_test(field, operator, value)
        case ["labels", "$in" | "$exists" as operator, value]:
            return _label_test("labels", operator, value)
        case ["not", part]:
            return Negation(tree_from_json(part, depth + 1))
        case ["all" | "any" as kind, *below]:
            joined = tuple(tree_from_json(part, depth + 1) for part in below)
            return AllOf(joined) if kind == "all" else AnyOf(joined)
    raise InvalidInput(f"where: expected the lists of a condition, got {brief(parts)}")


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
