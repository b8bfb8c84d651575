"""Words to search for: what a user types, as an expression of FTS5 in which nothing of it is syntax."""

import re

from stillhash.errors import TooLarge, WrongType

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
