"""The lexical index: the words of one field of the metadata, in an FTS5 table of store.db without a copy of the texts.

It is there if `meta` names its field, and always of the same commit as the items. FTS5 cannot read back what it has
indexed, so to remove a row it gets the exact text again, from the metadata that is still stored. What a user types
becomes an expression of FTS5 in which none of it is syntax.
"""

import functools
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice

from stillhash.collection.storage.schema import (
    LEXICAL_KEY,
    LEXICAL_SCHEMA,
    MAX_ROW_NUMBER,
    batches,
    count_rows,
    get_meta,
    parsing,
    set_meta,
)
from stillhash.errors import BadState, InvalidInput, TooLarge, Unsupported, WrongType
from stillhash.search.blocks import Bitmap

MAX_WORDS_LENGTH = 10_000  # characters
MAX_TERMS = 256
TERM = re.compile(r'"([^"]*)"|([^\s"]+)')  # a phrase in double quotes, or a word


def parse_terms(words: str) -> list[str]:
    """Return the words and the phrases in double quotes, each once whatever its case; a lone quote separates.

    What the tokenizer splits, as it does e-mail, is a phrase.
    """
    if not isinstance(words, str):
        raise WrongType(f"words: expected a text, got {words!r:.100}")
    if len(words) > MAX_WORDS_LENGTH:
        raise TooLarge(f"words: expected at most {MAX_WORDS_LENGTH} characters, got {len(words)}")
    plain = words.replace("\0", " ").encode("utf-8", "replace").decode()
    terms = {term.casefold(): term for match in TERM.finditer(plain) if (term := (match[1] or match[2] or "").strip())}
    if len(terms) > MAX_TERMS:
        raise TooLarge(f"words: expected at most {MAX_TERMS} different words and phrases, got {len(terms)}")
    return list(terms.values())


def match_expression(terms: list[str]) -> str:
    """Return the expression of FTS5 that is met by a text with any of these terms, which have no double quotes."""
    return " OR ".join(f'"{term}"' for term in terms)


MAX_LEXICAL_FIELD = 200  # characters of its name
INDEXED_AT_ONCE = 1000  # rows between two reports of progress

RowText = tuple[int, str]
ReportShare = Callable[[int, int], None]  # items so far, and of all


def check_lexical_field(field: object) -> str | None:
    """Return the name of a field of the metadata; None for no lexical index."""
    if field is None:
        return None
    if not isinstance(field, str):
        raise WrongType(f"lexical_field: expected the name of a field, got {field!r}")
    if field == "labels" or field.startswith("$") or not field.isprintable() or not 0 < len(field) <= MAX_LEXICAL_FIELD:
        most = f"of at most {MAX_LEXICAL_FIELD} printable characters"
        raise InvalidInput(f"lexical_field: expected the name of a field of the metadata {most}, got {field[:50]!r}")
    return field


@functools.cache
def has_fts5() -> bool:
    """Return whether this SQLite has FTS5."""
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.executescript(LEXICAL_SCHEMA)
        except sqlite3.OperationalError:
            return False
    return True


def require_fts5() -> None:
    """Raise Unsupported if this SQLite lacks FTS5."""
    if not has_fts5():
        raise Unsupported(f"lexical_field: expected an SQLite with FTS5, got {sqlite3.sqlite_version} without it")


def check_new_field(field: object) -> str | None:
    """Return the name of a field to index; Unsupported if this SQLite cannot."""
    if (name := check_lexical_field(field)) is not None:
        require_fts5()
    return name


def lexical_field(connection: sqlite3.Connection) -> str | None:
    """Return the field whose words are indexed, None without a lexical index."""
    field = get_meta(connection, LEXICAL_KEY)
    if field is None:
        return None
    try:
        name = check_lexical_field(field)
    except InvalidInput as error:
        raise BadState(f"meta: {error}") from error
    require_fts5()
    return name


def set_lexical_field(connection: sqlite3.Connection, field: str | None, progress: ReportShare | None = None) -> int:
    """Index the words of another field, of all items, or of none; return how many items have a text in it."""
    if lexical_field(connection) is not None:
        connection.execute("DROP TABLE lexical")
        connection.execute("DELETE FROM meta WHERE key = ?", [LEXICAL_KEY])
    if field is not None:
        connection.execute(LEXICAL_SCHEMA)
        set_meta(connection, LEXICAL_KEY, field)
        _index_all(connection, field, progress)
    return 0 if field is None else count_rows(connection, "lexical_docsize")


def rebuild_lexical(connection: sqlite3.Connection) -> None:
    """Index all items again, if there is a lexical index: nothing is left in it of those that were deleted."""
    if (field := lexical_field(connection)) is not None:
        connection.execute("INSERT INTO lexical (lexical) VALUES ('delete-all')")
        _index_all(connection, field, None)


def merge_lexical(connection: sqlite3.Connection) -> None:
    """Merge the parts of the lexical index, if there is one, which drops what they hold of deleted items."""
    if lexical_field(connection) is not None:
        connection.execute("INSERT INTO lexical (lexical) VALUES ('optimize')")


def index_words(connection: sqlite3.Connection, rows: Sequence[int], metadata: Sequence[str | None]) -> None:
    """Index the words of rows that are not in the index, by their metadata as JSON."""
    if (field := lexical_field(connection)) is not None:
        _insert(connection, sorted(_texts(zip(rows, metadata, strict=True), field)))  # FTS5 is faster in this order


def remove_words(connection: sqlite3.Connection, rows: Iterable[int]) -> None:
    """Remove rows from the index; their metadata must still be the one that was indexed."""
    if (field := lexical_field(connection)) is None:
        return
    for marks, batch in batches(sorted(rows)):
        sql = f"SELECT row, metadata FROM items WHERE row IN ({marks}) ORDER BY row"
        texts = list(_texts(connection.execute(sql, batch), field))
        connection.executemany("INSERT INTO lexical (lexical, rowid, words) VALUES ('delete', ?, ?)", texts)


def best_rows(
    connection: sqlite3.Connection, expression: str, k: int, allowed: Bitmap | None
) -> list[tuple[int, float]]:
    """Return the k best rows for an FTS5 expression with their BM25 scores, higher is better, ties by row.

    allowed: only rows in this bitmap. The scores are of all items, with or without it.
    """
    sql = "SELECT rowid, bm25(lexical) AS score FROM lexical WHERE lexical MATCH ? ORDER BY score, rowid LIMIT ?"
    ranked: Iterator[tuple[int, float]]
    ranked = connection.execute(sql, [expression, min(k, MAX_ROW_NUMBER) if allowed is None else -1])
    if allowed is not None:
        bits = allowed.tobytes()
        ranked = islice((hit for hit in ranked if bits[hit[0] >> 3] >> (hit[0] & 7) & 1), k)
    return [(row, -score) for row, score in ranked]


def lexical_problems(connection: sqlite3.Connection) -> list[str]:
    """Compare every word of the index with the metadata of the items; return one sentence for each problem."""
    try:
        field = lexical_field(connection)
        if field is None or _has_words_of_items(connection, field):
            return []
    except (sqlite3.DatabaseError, BadState, Unsupported) as error:
        return [f"store.db: the lexical index cannot be read: {error}"]
    return ["store.db: the lexical index has other words than the items. Use repair to build it again."]


def _has_words_of_items(connection: sqlite3.Connection, field: str) -> bool:
    """Return whether the index has exactly the words of this field: index all again, some at a time, in memory."""
    texts = _texts(connection.execute("SELECT row, metadata FROM items ORDER BY row"), field)
    count = expected = 0
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as memory:
        memory.executescript(LEXICAL_SCHEMA)
        while some := list(islice(texts, INDEXED_AT_ONCE)):
            memory.execute("BEGIN")
            _insert(memory, some)
            memory.execute("COMMIT")
            expected += _sum_of_words(memory)
            count += len(some)
            memory.execute("INSERT INTO lexical (lexical) VALUES ('delete-all')")
    return count_rows(connection, "lexical_docsize") == count and _sum_of_words(connection) == expected


def _sum_of_words(connection: sqlite3.Connection) -> int:
    """Return the sum of the hashes of all words with their places, in any order."""
    connection.execute("CREATE VIRTUAL TABLE temp.lexical_words USING fts5vocab(main, lexical, instance)")
    try:
        return sum(map(hash, connection.execute("SELECT term, doc, offset FROM temp.lexical_words")))
    finally:
        connection.execute("DROP TABLE temp.lexical_words")


def _index_all(connection: sqlite3.Connection, field: str, progress: ReportShare | None) -> None:
    total, done = int(get_meta(connection, "items")), 0
    rows = connection.execute("SELECT row, metadata FROM items ORDER BY row")
    while some := rows.fetchmany(INDEXED_AT_ONCE):
        _insert(connection, _texts(some, field))
        done += len(some)
        if progress is not None:
            progress(done, total)


def _insert(connection: sqlite3.Connection, texts: Iterable[RowText]) -> None:
    connection.executemany("INSERT INTO lexical (rowid, words) VALUES (?, ?)", texts)


def _texts(rows: Iterable[tuple[int, str | None]], field: str) -> Iterator[RowText]:
    """Yield the rows whose metadata has a text in this field, with the text."""
    path = field.split(".")
    with parsing("metadata"):
        for row, metadata in rows:
            text = None if metadata is None else _text_at(metadata, path)
            if text is not None:
                yield row, text


def _text_at(metadata: str, path: list[str]) -> str | None:
    """Return the text at this path of an object; half of a surrogate pair, which SQLite cannot store, separates."""
    value = json.loads(metadata)
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None
