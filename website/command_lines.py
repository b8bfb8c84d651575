"""Read the `stillhash` command lines of guides, and check that the command line knows their options."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import typer.main

from stillhash.cli.main import app
from website.links import ROOT
from website.markdown import prose_lines

GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
BEFORE_A_COMMAND = {"--", "|", "&&", "||", ";", "do", "then", "{", "("}
REDIRECT = re.compile(r"\d?[<>]")
INLINE = re.compile(r"`(stillhash [^`]+)`")


class CodeBlock(NamedTuple):
    kind: str  # python, sh, text, ...
    text: str


def code_blocks(guide: Path) -> list[CodeBlock]:
    """Return the fenced code blocks of a guide, in order, also those in lists."""
    return [
        CodeBlock(kind, textwrap.dedent(text)) for _, kind, text in BLOCK.findall(guide.read_text(encoding="utf-8"))
    ]


def shell_commands(block: str) -> list[str]:
    """Return the lines of a shell block, those that end with a backslash joined to the next."""
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]


def guide_commands(guide: Path) -> list[str]:
    """Return the lines of all shell blocks of a guide, and of files that start commands."""
    return [line for kind, text in code_blocks(guide) if kind in ("sh", "ini") for line in shell_commands(text)]


def stillhash_calls(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of `stillhash` in a line of a shell."""
    words = _split(line)
    for at, word in enumerate(words):
        if word.endswith("bin/stillhash") or (word == "stillhash" and (at == 0 or words[at - 1] in BEFORE_A_COMMAND)):
            end = next((n for n in range(at, len(words)) if words[n] in ("|", "&&", "||", ";", ")", "&")), len(words))
            redirect = next((n for n in range(at, end) if REDIRECT.match(words[n])), end)
            yield words[at + 1 : redirect]


def _split(line: str) -> list[str]:
    """Split a line into words and operators; a comment is left out."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;()")
    lexer.whitespace_split = True
    return list(lexer)


def inline_calls(guide: Path) -> list[str]:
    """Return the command lines that stand in the text of a guide, between backticks."""
    return [call for line in prose_lines(guide.read_text(encoding="utf-8")) for call in INLINE.findall(line)]


@cache
def command_tree() -> Any:
    """Return the command line as typer builds it: a group, with `commands`."""
    return typer.main.get_command(app)


def find_command(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that words name, as far as they do, and the words that follow its name."""
    command = command_tree()
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    return command, words


def check_call(words: list[str], complete: bool = True) -> str:
    """Return what the command line would refuse in a call, without looking at any value; empty if nothing.

    A call that is not complete, as sentences mention it, may lack values and arguments.
    """
    command, rest = find_command(words)
    if hasattr(command, "commands"):
        known = {"--help", "$@", *(name for each in command.params for name in (*each.opts, *each.secondary_opts))}
        return "" if not rest or rest[0] in known else f"no such command: {' '.join(words)}"
    options = {name: each for each in command.params for name in (*each.opts, *each.secondary_opts)}
    positions, at = 0, 0
    while at < len(rest):
        name, equals, _ = rest[at].partition("=")
        if not re.match(r"--?[a-zA-Z]", name):
            positions += 1
        elif name not in options and name != "--help":
            return f"no such option: {name}"
        elif name != "--help" and not equals and not options[name].is_flag:
            at += 1
            if complete and at == len(rest):
                return f"no value for {name}"
        at += 1
    arguments = [each for each in command.params if not each.opts[0].startswith("-")]
    least = sum(each.required for each in arguments)
    most = len(words) if any(each.nargs == -1 for each in arguments) else len(arguments)
    if not complete or "..." in rest or "--help" in rest or least <= positions <= most:
        return ""
    return f"expected {least} to {most} arguments, got {positions}"
