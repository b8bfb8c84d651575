"""Match the tree of a filter against columns: all rows at once."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from stillhash.collection.filters.tree import AllOf, AnyOf, FieldTest, FilterTree, Negation
from stillhash.collection.storage.bitmaps import FALSE, MISSING, NULL, OTHER, TRUE, Interval, Points, Selection
from stillhash.collection.storage.columns import LABELS, MAX_RANGES, Column, Matcher, all_of, any_of, negated

ANY_VALUE = Selection(frozenset({NULL, FALSE, TRUE, OTHER}), (Interval(),), (Interval(),))
WORD_OF = {None: NULL, False: FALSE, True: TRUE}
NO_VALUE = Selection(frozenset({MISSING}))


class NotInColumns(Exception):
    """Only SQL can answer."""


class ColumnTest(NamedTuple):
    """Which values of a column match."""

    name: str
    selection: Selection


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
        plain = set(map(type, values)) <= {int, float}
        numbers = sql_numbers(values if plain else [each for each in values if type(each) in (int, float)])
        others = [] if plain else values
        words = frozenset(WORD_OF[each] for each in others if each is None or type(each) is bool)
        texts = frozenset(_utf8(each) for each in others if type(each) is str)
        if len(numbers) + len(texts) <= MAX_RANGES:
            return Selection(words, _intervals(numbers), _intervals(texts))
        return Selection(words, points=Points(numbers) if numbers else None, text_points=texts)
    bound = _utf8(value) if isinstance(value, str) else sql_numbers([value]).pop()
    is_open = operator in ("$gt", "$lt")
    upper = operator in ("$lt", "$lte")
    interval = Interval(high=bound, open_high=is_open) if upper else Interval(low=bound, open_low=is_open)
    return Selection(texts=(interval,)) if isinstance(value, str) else Selection(numbers=(interval,))


def _intervals(values: Iterable[Any]) -> tuple[Interval, ...]:
    return tuple(Interval(value, value) for value in values)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        raise NotInColumns from None


def sql_numbers(numbers: list[int | float]) -> set[int | float]:
    """Return numbers as SQLite reads them: integers beyond 64 bits are doubles."""
    if numbers and min(numbers) >= -(2**63) and max(numbers) < 2**63:
        return set(numbers)
    return {n if type(n) is float or -(2**63) <= n < 2**63 else float(n) for n in numbers}


def match_tree(tree: Any, columns: dict[str, Column | None]) -> Matcher:
    """Return which rows match, by their columns; None is a column that no row has."""
    if isinstance(tree, ColumnTest):
        column = columns[tree.name]
        return MISSING in tree.selection.words if column is None else column.matcher(tree.selection)
    kind, parts = tree
    matchers = (match_tree(part, columns) for part in parts)
    return negated(next(matchers)) if kind is Negation else (all_of if kind is AllOf else any_of)(matchers)
