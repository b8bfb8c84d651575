"""The conditions of a filter as a small tree, which SQL (filter_sql.py) and columns (filter_columns.py) both answer."""

from typing import Any, NamedTuple

from stillhash.errors import InvalidInput

COMPARISONS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
MAX_FILTER_DEPTH = 8  # SQLite parses up to 100 levels


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


def parse_filter(where: Any, depth: int = 0) -> FilterTree:
    """Parse a filter, whose values are not validated yet."""
    if not isinstance(where, dict) or not all(isinstance(key, str) for key in where):
        raise InvalidInput(f"where: expected a dictionary of conditions, got {where!r}")
    if depth > MAX_FILTER_DEPTH:
        raise InvalidInput(f"where: expected conditions nested at most {MAX_FILTER_DEPTH} deep, got more")
    return AllOf(tuple(_condition(key, operand, depth) for key, operand in where.items()))


def _condition(key: str, operand: Any, depth: int) -> FilterTree:
    if key in ("$and", "$or"):
        parts = tuple(parse_filter(part, depth + 1) for part in check_list(key, operand))
        return AllOf(parts) if key == "$and" else AnyOf(parts)
    if key == "$not":
        return Negation(parse_filter(operand, depth + 1))
    if key.startswith("$"):
        raise InvalidInput(f"where: expected $and, $or, $not or a field, got {key}")
    tests = operand if isinstance(operand, dict) else {"$eq": operand}
    if not tests or not all(isinstance(operator, str) and operator.startswith("$") for operator in tests):
        raise InvalidInput(f"where: {key}: expected a value, or operators such as {{'$gt': 3}}, got {operand!r}")
    test = _label_test if key == "labels" else _field_test
    return AllOf(tuple(test(key, operator, value) for operator, value in tests.items()))


def _field_test(key: str, operator: str, value: Any) -> FilterTree:
    if operator == "$exists":
        if not isinstance(value, bool):
            raise InvalidInput(f"where: {key}: $exists: expected true or false, got {value!r}")
    elif operator in ("$eq", "$ne", "$in"):
        value = check_list(f"{key}: $in", value) if operator == "$in" else value
        for each in value if operator == "$in" else [value]:
            if each is not None and type(each) not in (bool, str, int, float):
                raise InvalidInput(f"where: {key}: expected a number, text, boolean or null, got {each!r}")
    elif operator not in COMPARISONS:
        raise InvalidInput(f"where: {key}: expected $eq, $ne, $in, $exists, {', '.join(COMPARISONS)}, got {operator}")
    elif type(value) not in (str, int, float):
        raise InvalidInput(f"where: {key}: {operator}: expected a number or a text, got {value!r}")
    return Negation(FieldTest(key, "$eq", value)) if operator == "$ne" else FieldTest(key, operator, value)


def _label_test(key: str, operator: str, value: Any) -> FilterTree:
    if operator in ("$eq", "$ne", "$in"):
        labels = [value] if operator != "$in" else check_list(f"{key}: $in", value)
        if not all(type(label) in (str, int, float) for label in labels):
            raise InvalidInput(f"where: labels: expected texts or numbers, got {value!r}")
        return Negation(LabelTest("$in", labels)) if operator == "$ne" else LabelTest("$in", labels)
    if operator == "$exists" and isinstance(value, bool):
        return LabelTest(operator, value)
    raise InvalidInput(f"where: labels: expected $eq, $ne, $in, or $exists with true or false, got {operator}")


def check_list(operator: str, value: Any) -> list[Any]:
    """Return a list or a tuple as a list."""
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"where: {operator}: expected a list, got {value!r}")
    return list(value)


def compared_fields(tree: FilterTree) -> tuple[set[str], bool]:
    """Return the fields that a filter compares, and whether it compares labels."""
    if isinstance(tree, FieldTest):
        return {tree.field}, False
    if isinstance(tree, LabelTest):
        return set(), True
    below = [compared_fields(part) for part in ((tree.part,) if isinstance(tree, Negation) else tree.parts)]
    return {field for fields, _ in below for field in fields}, any(labels for _, labels in below)
