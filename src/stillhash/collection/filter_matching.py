"""Match the tree of a filter against columns: all rows at once."""

from typing import Any, NamedTuple

from stillhash.collection.filter_tree import AllOf, AnyOf, FieldTest, FilterTree, Negation
from stillhash.collection.storage.column_builder import LABELS
from stillhash.collection.storage.columns import (
    FALSE,
    MISSING,
    NULL,
    OTHER,
    TRUE,
    Column,
    Interval,
    Matcher,
    Selection,
    all_of,
    any_of,
    negated,
)

ANY_VALUE = Selection(frozenset({NULL, FALSE, TRUE, OTHER}), (Interval(),), (Interval(),))
NO_VALUE = Selection(frozenset({MISSING}))


class NotInColumns(Exception):
    """Only SQL can answer."""


class ColumnTest(NamedTuple):
    """Which values of a column match."""

    name: str
    selection: Selection


ColumnTree = ColumnTest | tuple[type[AllOf] | type[AnyOf] | type[Negation], list["ColumnTree"]]


def column_tree(tree: FilterTree) -> Any:
    """Return the tree with the values that each test selects; raise NotInColumns if columns cannot tell."""
    if isinstance(tree, AllOf | AnyOf):
        return type(tree), [column_tree(part) for part in tree.parts]
    if isinstance(tree, Negation):
        return Negation, [column_tree(tree.part)]
    name = tree.field if isinstance(tree, FieldTest) else LABELS
    return ColumnTest(name, select_values(tree.operator, tree.value))


def select_values(operator: str, value: Any) -> Selection:
    """Return the values that meet a test."""
    if operator == "$exists":
        return ANY_VALUE if value else NO_VALUE
    if operator in ("$eq", "$in"):
        values = value if operator == "$in" else [value]
        words = {
            NULL if each is None else TRUE if each else FALSE
            for each in values
            if each is None or each is True or each is False
        }
        numbers, texts = set(), set()
        for each in values:
            if isinstance(each, str):
                texts.add(_comparable(each))
            elif type(each) in (int, float):
                numbers.add(_comparable(each))
        return Selection(frozenset(words), _points(numbers), _points(texts))
    bound = _comparable(value)
    is_open = operator in ("$gt", "$lt")
    upper = operator in ("$lt", "$lte")
    interval = Interval(high=bound, open_high=is_open) if upper else Interval(low=bound, open_low=is_open)
    return Selection(texts=(interval,)) if isinstance(value, str) else Selection(numbers=(interval,))


def _points(values: set[Any]) -> tuple[Interval, ...]:
    return tuple(Interval(value, value) for value in sorted(values))


def _comparable(value: Any) -> Any:
    """Return a text as UTF-8, and a number as SQLite reads it: integers beyond 64 bits as doubles."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            raise NotInColumns from None
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def match_tree(tree: Any, columns: dict[str, Column | None]) -> Matcher:
    """Return which rows match, by their columns; None is a column that no row has."""
    if isinstance(tree, ColumnTest):
        column = columns[tree.name]
        return MISSING in tree.selection.words if column is None else column.matcher(tree.selection)
    kind, parts = tree
    matchers = (match_tree(part, columns) for part in parts)
    return negated(next(matchers)) if kind is Negation else (all_of if kind is AllOf else any_of)(matchers)
