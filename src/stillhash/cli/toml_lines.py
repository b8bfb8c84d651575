"""Change one value in the text of a TOML file, and leave comments and all other lines as they are.

Only keys under the header of their table, with a value on one line, are changed in place. Every change is read back:
if anything else than this key differs, it is refused.
"""

import json
import re
import tomllib
from typing import Any

from stillhash.errors import InvalidInput

HEADER = re.compile(r"^\s*\[([^\[\]]+)\]\s*(#.*)?$")


def format_value(value: Any) -> str:
    """Return a value as TOML, which writes these kinds as JSON does."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def set_value(text: str, key: str, value: Any) -> str:
    """Return the text with a key set, in its table or in a new one at the end."""
    *table, name = key.split(".")
    tables = tomllib.loads(text)
    lines = text.removesuffix("\n").split("\n") if text else []
    written = f"{name} = {format_value(value)}"
    place, number = _find(lines, table, name)
    if number is not None:
        lines[number] = written
    elif place is not None:
        lines.insert(place, written)
    else:
        lines += [*([""] if lines and lines[-1].strip() else []), f"[{'.'.join(table)}]", written]
    return _checked(lines, _changed(tables, table, name, value), key)


def unset_value(text: str, key: str) -> str:
    """Return the text without a key, which must be in it."""
    *table, name = key.split(".")
    tables = tomllib.loads(text)
    lines = text.removesuffix("\n").split("\n") if text else []
    number = _find(lines, table, name)[1]
    if number is not None:
        del lines[number]
    return _checked(lines, _changed(tables, table, name, None), key)


def _find(lines: list[str], table: list[str], name: str) -> tuple[int | None, int | None]:
    """Return the line after the last one of the table that says something, and the line of the name in it."""
    inside = False
    place = number = None
    for index, line in enumerate(lines):
        if match := HEADER.match(line):
            inside = [part.strip(" \t\"'").replace("_", "-") for part in match[1].split(".")] == table
        if inside and line.strip():
            place = index + 1
            before, equals, _ = line.partition("=")
            if equals and before.strip(" \t\"'").replace("_", "-") == name:
                number = index
    return place, number


def _changed(tables: dict[str, Any], table: list[str], name: str, value: Any) -> dict[str, Any]:
    """Return the tables with one value replaced, or removed if it is None."""
    inner: dict[str, Any] = _normal(tables)
    result = inner
    for part in table:
        inner = inner.setdefault(part, {})
    inner.pop(name, None)
    if value is not None:
        inner[name] = value
    return result


def _normal(value: Any) -> Any:
    """Return tables whose keys have - in place of _."""
    if isinstance(value, dict):
        return {name.replace("_", "-"): _normal(each) for name, each in value.items()}
    return value


def _checked(lines: list[str], expected: dict[str, Any], key: str) -> str:
    text = "\n".join(lines) + "\n" if lines else ""
    try:
        if _normal(tomllib.loads(text)) == expected:
            return text
    except tomllib.TOMLDecodeError:
        pass
    raise InvalidInput(f"{key}: expected it on one line under the header of its table; change the file in an editor")
