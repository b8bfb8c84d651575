"""Look up ids as people type them: by how they begin, by one wrong character, or by what is beside them in order."""

from sqlite3 import Connection

from stillhash.collection.storage.schema import batches
from stillhash.collection.types import Id

LAST_CHARACTER = chr(0x10FFFF)
MAX_ID_DIGITS = 18  # so that no 64-bit integer has more
ID_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789-_./"  # that may be missing or wrong
EDITED_LENGTHS = range(3, 41)  # of texts that may have a wrong character


def ids_beginning(connection: Connection, text: str, limit: int) -> list[Id]:
    """Return ids that begin with a text, in order: integers by their digits, then texts, in any of three cases."""
    ids: list[Id] = []
    if is_number(text):
        number = int(text)
        for zeros in range(MAX_ID_DIGITS - len(text) + 1 if number > 0 and text[0] != "0" else 1):
            sql = "SELECT id FROM items WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?"
            bounds = number * 10**zeros, (number + 1) * 10**zeros - 1
            ids += [name for (name,) in connection.execute(sql, [*bounds, limit])]
            if len(ids) >= limit:
                return ids[:limit]
    for start in dict.fromkeys((text, text.lower(), text.upper())):
        sql = "SELECT id FROM items WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
        ids += [name for (name,) in connection.execute(sql, [start, start + LAST_CHARACTER, limit])]
    return ids[:limit]


def ids_beside(connection: Connection, text: str, limit: int) -> list[Id]:
    """Return the ids before and after a text or a number in their order, at most so many of each."""
    key: Id = int(text) if is_number(text) else text
    before = connection.execute("SELECT id FROM items WHERE id < ? ORDER BY id DESC LIMIT ?", [key, limit]).fetchall()
    after = connection.execute("SELECT id FROM items WHERE id > ? ORDER BY id LIMIT ?", [key, limit]).fetchall()
    return [name for (name,) in [*before, *after] if type(name) is type(key)]


def ids_one_edit_away(connection: Connection, text: str) -> list[Id]:
    """Return the ids that differ from a text by one character: missing, too many, another, or two exchanged."""
    if len(text) not in EDITED_LENGTHS:
        return []
    cuts = [(text[:place], text[place:]) for place in range(len(text) + 1)]
    edits = {a + b[1:] for a, b in cuts if b} | {a + b[1] + b[0] + b[2:] for a, b in cuts if len(b) > 1}
    edits |= {a + character + b for a, b in cuts for character in ID_CHARACTERS}
    edits |= {a + character + b[1:] for a, b in cuts if b for character in ID_CHARACTERS}
    ids: list[Id] = []
    keys: list[Id] = [int(edit) for edit in edits if is_number(edit)] if is_number(text) else []
    for marks, batch in batches([*keys, *sorted(edits - {text, ""})]):
        ids += [name for (name,) in connection.execute(f"SELECT id FROM items WHERE id IN ({marks})", batch)]
    return ids


def is_number(text: str) -> bool:
    """Return whether a text is an integer that can be an id."""
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= MAX_ID_DIGITS
