"""Prepare docstrings for the Python reference: a griffe extension that turns their layout into Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import griffe

PARAMETER = re.compile(r"(\w+(?:, \w+)*) : (.*)")
BLOCKING = re.compile(r"blocking\((\w+)\.(\w+)\)")
DEFAULT = re.compile(r"parameter\((.+?), [A-Z_a-z]+(?:\(.*\))?\)$")
GUIDE = re.compile(r"\bdocs/([\w-]+)\.md")
HEADING = re.compile(r"^(Parameters|Attributes)\n-+\n", re.MULTILINE)


def to_markdown(text: str, parameters: Sequence[str] = ()) -> str:
    """Return a docstring as Markdown: `name : meaning` as items of a list, examples and names of parameters as code."""
    lines: list[str] = []
    kind = "text"  # of the line before: text, list or code
    for line in GUIDE.sub(r"[\1.md](../../\1.md)", HEADING.sub("", text)).split("\n"):
        before, kind = kind, _kind(line, kind)
        if before != kind:
            lines += {"code": ["```"], "list": [""], "text": []}[before]
            lines += {"code": ["```python"], "list": [""], "text": []}[kind]
        name, colon, meaning = line.partition(": ")
        if kind == "code":
            line = line.removeprefix(">>> ").removeprefix("... ")
        elif match := PARAMETER.fullmatch(line):
            line = f"- {', '.join(f'`{each}`' for each in match[1].split(', '))}: {match[2]}"
        elif kind == "list":
            line = f"  {line.strip()}"
        elif colon and name in parameters:
            line = f"`{name}`: {meaning}"
        lines.append(line)
    return "\n".join([*lines, "```"] if kind == "code" else lines)


def _kind(line: str, before: str) -> str:
    """Return what a line of a docstring belongs to, by the kind of the line before it."""
    if line.startswith(">>>") or (before == "code" and line.strip()):
        return "code"
    if PARAMETER.fullmatch(line) or (before == "list" and line.startswith("    ")):
        return "list"
    return "text"


class Docstrings(griffe.Extension):
    """Change what griffe has read before it is shown."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Turn the docstring of an object into Markdown."""
        if obj.docstring is not None:
            names = [each.name for each in obj.parameters] if isinstance(obj, griffe.Function) else []
            obj.docstring.value = to_markdown(obj.docstring.value, names)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Give the blocking client the signatures of its verbs, and parameters of hashers their defaults."""
        client = pkg["client.client.Client"]
        for name, member in list(client.members.items()):
            match = BLOCKING.fullmatch(str(member.value)) if member.is_attribute else None
            if match:
                client.set_member(name, blocking_verb(pkg, client, *match.groups()))
        for module in pkg["hashers"].modules.values():
            for each in module.classes.values():
                clean_fields(each)


def clean_fields(hasher: griffe.Class) -> None:
    """Drop class variables from the fields of a dataclass, and show defaults in place of declarations."""
    for field in hasher.attributes.values():
        if str(field.annotation).startswith("ClassVar"):
            field.annotation = None
        elif match := DEFAULT.fullmatch(str(field.value)):
            field.value = match[1]


def blocking_verb(pkg: griffe.Module, client: griffe.Class, source: str, name: str) -> griffe.Function:
    """Return a coroutine of a class of verbs as a method of the client that blocks."""
    verb = client.module[source][name]
    verb = verb.final_target if verb.is_alias else verb
    method = griffe.Function(
        name, parameters=verb.parameters, returns=verb.returns, docstring=verb.docstring, lineno=verb.lineno
    )
    method.overloads = verb.overloads
    return method
