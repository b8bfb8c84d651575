"""The help of every command: a sentence, options that are explained, and examples that work."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer.core
from typer.testing import CliRunner

from stillhash.cli.main import app
from tests.cli.commands import ROOT, stillhash, walk

ALL = list(walk())
IDS = [" ".join(place) or "stillhash" for place, _ in ALL]


def examples(command: Any) -> list[str]:
    """Return the lines under "Examples:" in the help."""
    _, _, block = inspect.cleandoc(command.help).partition("Examples:\n")
    return [line.strip() for line in block.splitlines() if line.startswith("  ")]


def own_words(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of stillhash in a line of shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, "|"]:
        if word != "|":
            words.append(word)
            continue
        while words and "=" in words[0]:
            words.pop(0)
        if words and words[0] == "stillhash":
            yield words[1:]
        words = []


def parse(words: list[str]) -> tuple[str, ...]:
    """Parse a command line without running it; return the names of the command."""
    command, names = ROOT, []
    while words and words[0] in getattr(command, "commands", {}):
        command, words, names = command.commands[words[0]], words[1:], [*names, words[0]]  # type: ignore[attr-defined]
    if words and hasattr(command, "commands"):
        raise LookupError(f"no such command: {words[0]}")
    command.make_context(" ".join(names), list(words)).close()
    return tuple(names)


@pytest.mark.parametrize(("place", "command"), ALL, ids=IDS)
def test_every_command_has_help_and_examples_that_parse(place: tuple[str, ...], command: Any) -> None:
    sentence = inspect.cleandoc(command.help).split("\n\n")[0]
    assert sentence[0].isupper() and sentence.endswith((".", "?"))
    for parameter in command.params:
        assert getattr(parameter, "help", None), parameter.name
    calls = [words for line in examples(command) for words in own_words(line)]
    assert calls
    parsed = [parse(words) for words in calls]
    assert place in [names[: len(place)] for names in parsed]


@pytest.mark.parametrize("line", ["stillhash search films --nosuch 3", "stillhash nosuch films"])
def test_examples_with_unknown_names_do_not_parse(line: str) -> None:
    with pytest.raises(Exception, match=r"(?i)no such|unexpected|missing"):
        for words in own_words(line):
            parse(words)


@pytest.mark.parametrize(("place", "command"), ALL, ids=IDS)
def test_examples_fit_80_columns_with_rich(place: tuple[str, ...], command: Any) -> None:
    out = CliRunner().invoke(app, [*place, "--help"], env={"COLUMNS": "80", "TERM": "dumb"}).output
    lines = [line.strip() for line in out.splitlines()]
    assert set(examples(command)) <= set(lines)
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.medium
def test_examples_fit_80_columns_without_rich() -> None:
    if not hasattr(typer.core, "HAS_RICH"):
        pytest.skip("this version of typer always uses rich")
    for place in ((), ("search",), ("keys",), ("serve",)):
        out = stillhash(*place, "--help", env={"COLUMNS": "80", "TYPER_USE_RICH": "0"}).stdout
        command = dict(ALL)[place]
        assert set(examples(command)) <= {line.strip() for line in out.splitlines()}
        assert "╭" not in out and max(map(len, out.splitlines())) <= 80
