"""Parse large JSON in short steps.

A JSON parser holds Python's global lock until it is done, so a large body, even in a thread, would stop all other
requests for as long. Here the lists of an object are parsed one element at a time, and no element may be large. Vectors
become arrays, which are smaller.
"""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic_core import from_json

from stillhash.errors import InvalidInput, TooLarge

SPACE = re.compile(r"[ \t\n\r]*")
TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)  # a text, or what opens or closes a list or an object
WORD = re.compile(r"[^ \t\n\r,\]}]+")  # a number, true, false or null
OPENING = "[{"
MAX_DEPTH = 200
NUMBER_CHARACTERS, ROW_CHARACTERS = 32, 2 << 20  # at most, in JSON: of a number, and of a row besides its features


def max_row_characters(dim: int) -> int:
    """Return how long a row may be, as JSON."""
    return NUMBER_CHARACTERS * dim + ROW_CHARACTERS


def parse_large_object(data: bytes, vectors: str | None, max_elements: int, max_element: int) -> dict[str, Any]:
    """Parse a JSON object as the json module does, except that lists of numbers in the field `vectors` are arrays.

    TooLarge if a list that is not of plain numbers has more than `max_elements`, or one element more than `max_element`
    characters.
    """
    try:
        text = data.decode()
        at = _skip(text, 0)
        if text[at : at + 1] != "{":
            raise InvalidInput("body: expected a JSON object")
        values: dict[str, Any] = {}
        at = _skip(text, at + 1)
        while text[at : at + 1] != "}":
            if values:
                at = _expect(text, at, ",")
            end = _end(text, at, max_element)
            name = json.loads(text[at:end])
            if not isinstance(name, str):
                raise ValueError(f"expected the name of a field at character {at}")
            at = _expect(text, _skip(text, end), ":")
            parse = _parse_vector if name == vectors else json.loads
            values[name], at = _parse_value(text, at, name, parse, (max_elements, max_element))
            at = _skip(text, at)
        if len(text) > _skip(text, at + 1):
            raise ValueError(f"expected the end at character {at + 1}")
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"body: expected JSON: {error}") from None
    return values


def let_others_run() -> None:
    """Give up Python's global lock for a moment; a thread that computes would else hold it for 5 ms at a time."""
    time.sleep(0)


def number_array(value: Any) -> Any:
    """Return a list of numbers as an array, anything else as it is."""
    if type(value) is list and value and set(map(type, value)) <= {int, float}:
        try:
            return np.array(value, np.float64)
        except OverflowError:  # an integer beyond all doubles
            return value
    return value


def _parse_vector(text: str) -> Any:
    """Parse a list of numbers to an array; three times as fast as the json module."""
    try:
        return number_array(from_json(text))
    except ValueError:  # half of a surrogate pair, which json takes, or no JSON
        return json.loads(text)


def _parse_value(
    text: str, at: int, name: str, parse: Callable[[str], Any], limits: tuple[int, int]
) -> tuple[Any, int]:
    """Parse the value of a field; return it, and where it ends."""
    max_elements, max_element = limits
    if text[at : at + 1] != "[" or _is_plain(text, at):
        end = _end(text, at, max_element)
        return parse(text[at:end]), end
    elements: list[Any] = []
    at = _skip(text, at + 1)
    while not elements or text[at : at + 1] != "]":
        at = _expect(text, at, ",") if elements else at
        if len(elements) == max_elements:
            raise TooLarge(f"{name}: expected at most {max_elements} rows, got more")
        end = _end(text, at, max_element)
        elements.append(parse(text[at:end]))
        let_others_run()
        at = _skip(text, end)
    return elements, at + 1


def _is_plain(text: str, at: int) -> bool:
    """Return whether a list holds no texts, lists or objects."""
    end = text.find("]", at)
    return all(text.find(sign, at + 1, end) < 0 for sign in '[{"')


def _end(text: str, at: int, max_element: int) -> int:
    """Return where the value ends that starts here."""
    limit = at + max_element
    sign = text[at : at + 1]
    end = -1
    if sign == "[" and _is_plain(text, at):
        end = text.find("]", at) + 1 or -1
    elif sign and sign in OPENING + '"':
        depth = 0
        for token in TOKENS.finditer(text, at, min(len(text), limit + 1)):
            depth += (token[0] in OPENING) - (token[0] in "]}")
            if depth > MAX_DEPTH:
                raise ValueError(f"expected lists and objects nested at most {MAX_DEPTH} deep, got more")
            if not depth:
                end = token.end()
                break
        else:
            end = limit + 1 if len(text) > limit else -1
    elif word := WORD.match(text, at, min(len(text), limit + 1)):
        end = word.end()
    if end > limit:
        raise TooLarge(f"body: expected at most {max_element} characters in a row, got more")
    if end < 0:
        raise ValueError(f"expected a value at character {at}")
    return end


def _skip(text: str, at: int) -> int:
    space = SPACE.match(text, at)
    return space.end() if space else at


def _expect(text: str, at: int, sign: str) -> int:
    """Return the place of what follows this sign."""
    if text[at : at + 1] != sign:
        raise ValueError(f"expected {sign!r} at character {at}")
    return _skip(text, at + 1)
