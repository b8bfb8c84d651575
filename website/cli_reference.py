"""Write the reference of the command line from the typer app, with examples from the guides, which the tests run."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from website.command_lines import (
    GUIDES,
    check_call,
    command_tree,
    find_command,
    guide_commands,
    inline_calls,
    stillhash_calls,
)
from website.markdown import cell, table

FOLDER = "reference/cli"
MAX_EXAMPLES = 3
OWN_EXAMPLES = re.compile(r"\n\n(?:\x08\n)?Examples:\n((?: +.+(?:\n|$))+)")
TYPE_NAMES = {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH"}


def pages() -> dict[str, str]:
    """Return the Markdown of each page by its path: the commands, and each group of commands."""
    root = command_tree()
    groups = {name: each for name, each in root.commands.items() if hasattr(each, "commands")}
    commands = {name: each for name, each in root.commands.items() if name not in groups}
    result = {f"{FOLDER}/index.md": _front_page(commands, groups)}
    for name, group in groups.items():
        parts = [f"# stillhash {name}", group.help or "", _summary(group.commands, "")]
        parts += [part for each in group.commands for part in _command((name, each), group.commands[each])]
        result[f"{FOLDER}/{name}.md"] = "\n\n".join(parts) + "\n"
    return result


def _front_page(commands: dict[str, Any], groups: dict[str, Any]) -> str:
    parts = [
        "# Command line",
        "`pip install 'stillhash[cli]'` installs `stillhash`. Results go to stdout, progress and errors to stderr. "
        "With `--json` a command prints one JSON object. [Exit codes](../../shell.md#exit-codes) say what went "
        "wrong. This page is written from the program itself.",
        table(
            ("group", "what it is for"),
            [(f"[`stillhash {name}`]({name}.md)", cell(group.help or "")) for name, group in groups.items()],
        ),
        _summary(commands, ""),
    ]
    parts += [part for name, command in commands.items() for part in _command((name,), command)]
    return "\n\n".join(parts) + "\n"


def _summary(commands: dict[str, Any], page: str) -> str:
    rows = [(f"[`{name}`]({page}#{name})", cell(_first_line(command))) for name, command in commands.items()]
    return table(("command", "what it does"), rows)


def _first_line(command: Any) -> str:
    return inspect.cleandoc(command.help or "").split("\n\n")[0].replace("\n", " ")


def _command(names: tuple[str, ...], command: Any) -> Iterator[str]:
    """Yield the section of a command, part by part."""
    yield f"## {names[-1]}"
    text, own_examples = split_help(inspect.cleandoc(command.help or ""))
    yield _escape(text)
    arguments = [each for each in command.params if not each.opts[0].startswith("-")]
    usage = " ".join(["stillhash", *names, *map(_usage, arguments), "[OPTIONS]"])
    yield f"```text\n{usage}\n```"
    types_of = get_type_hints(command.callback)
    rows = [(f"`{_metavar(each)}`", _help(each)) for each in arguments]
    options = [each for each in command.params if each not in arguments and not each.hidden]
    rows += [(_option(each, types_of), _help(each)) for each in options]
    yield table(("option", "meaning"), rows)
    examples = own_examples or command_examples().get(names, [])
    if examples:
        yield "```sh\n" + "\n".join(examples) + "\n```"


def split_help(text: str) -> tuple[str, list[str]]:
    """Return the help of a command without the examples at its end, and the examples."""
    match = OWN_EXAMPLES.search(text)
    if match is None:
        return text, []
    return (text[: match.start()] + text[match.end() :]).strip(), [line.strip() for line in match[1].splitlines()]


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name).upper().strip("[]").removesuffix("...")


def _usage(argument: Any) -> str:
    text = _metavar(argument) + ("..." if argument.nargs == -1 else "")
    return text if argument.required else f"[{text}]"


def _option(option: Any, types_of: dict[str, Any]) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {option.metavar or _type_name(types_of[option.name])}"
    return f"`{names}{value}`".replace("|", "\\|")


def _inner_type(annotation: Any) -> Any:
    """Return the type of one value: X of X | None and of list[X]."""
    while True:
        origin, inner = get_origin(annotation), [each for each in get_args(annotation) if each is not type(None)]
        if (origin in (Union, types.UnionType) and len(inner) == 1) or origin in (list, tuple):
            annotation = inner[0]
        else:
            return annotation


def _type_name(annotation: Any) -> str:
    kind = _inner_type(annotation)
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if hasattr(kind, "__members__"):
        return "|".join(str(each.value) for each in kind)
    return TYPE_NAMES.get(kind, "TEXT")


def _default(option: Any) -> str:
    if option.required:
        return "required"
    value = getattr(option.default, "value", option.default)
    if value is None or value in ((), [], ""):
        return ""
    if isinstance(value, bool):
        if not option.secondary_opts:
            return ""
        value = option.opts[0] if value else option.secondary_opts[0]
    elif isinstance(value, int):
        value = f"{value:,}"
    return f"`{cell(str(value))}`"


def _help(parameter: Any) -> str:
    """Return the help of a parameter, with the limits of a number, the default, and whether it can be repeated."""
    text = _escape(parameter.help or "")
    holder = parameter if hasattr(parameter, "min") else getattr(parameter, "type", None)  # as typer has it, or click
    least, most = getattr(holder, "min", None), getattr(holder, "max", None)
    ends = [f"{words} {limit:,}" for words, limit in (("at least", least), ("at most", most)) if limit is not None]
    default = _default(parameter) if parameter.opts[0].startswith("-") else ""
    ends += ["required"] * (default == "required") + [f"default {default}"] * (default not in ("", "required"))
    ends += ["can be repeated"] * parameter.multiple
    return cell(text + (f" ({', '.join(ends)})" if ends else ""))


def _escape(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("\x08\n", "")


@cache
def command_examples() -> dict[tuple[str, ...], list[str]]:
    """Return a few examples of each command, from blocks of the guides, and from their sentences."""
    lines = [line for guide in GUIDES for line in guide_commands(guide)]
    lines += [line for guide in GUIDES for line in inline_calls(guide)]
    examples: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        calls = list(stillhash_calls(line)) if line.startswith("stillhash ") else []
        if len(calls) == 1 and not check_call(calls[0]):
            names = tuple(calls[0][: len(calls[0]) - len(find_command(calls[0])[1])])
            some, example = examples.setdefault(names, []), " ".join(line.split())
            if example not in some and len(some) < MAX_EXAMPLES:
                some.append(example)
    return examples
