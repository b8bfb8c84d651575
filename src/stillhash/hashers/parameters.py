"""Parameters of the methods with their checks, which serve for saved values too."""

from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any

from stillhash.numeric.validation import check_choice, check_integer, check_number

Check = Callable[[Any, str], object]  # refuses a bad value of a parameter, by its name
POSITIVE: Check = partial(check_number, above=0)
NOT_NEGATIVE: Check = partial(check_number, low=0)
COUNT: Check = partial(check_integer, low=0)
AT_LEAST_ONE: Check = partial(check_integer, low=1)


def one_of(*choices: Any) -> Check:
    return partial(check_choice, choices=choices)


def optional(check: Check) -> Check:
    return lambda value, name: None if value is None else check(value, name)


def parameter(default: Any, check: Check) -> Any:
    """Return a dataclass field; `Hasher.check_parameters` runs its check."""
    return field(default=default, metadata={"check": check})
