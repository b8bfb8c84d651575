"""Prepare docstrings for the Python reference: a griffe extension that turns their layout into Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

PARAMETER = re.compile(r"(\w+(?:, \w+)*) : (.*)")
BLOCKING = re.compile(r"blocking\((\w+)\.(\w+)\)")
DEFAULT = re.compile(r"parameter\((.+?), [A-Z_a-z]+(?:\(.*\))?\)$")
GUIDE = re.compile(r"\bdocs/([\w-]+)\.md")
HEADING = re.compile(r"^(Parameters|Attributes)\n-+\n", re.MULTILINE)


def to_markdown(text: str) -> str:
    """Return a docstring as Markdown: `name : meaning` as items of a list, examples as code."""
    lines: list[str] = []
    kind = ""
    text = GUIDE.sub(r"[\1.md](../../\1.md)", HEADING.sub("", text))
    for line in text.split("\n"):
        parameter = PARAMETER.fullmatch(line)
        if line.startswith(">>>") and kind != "code":
            lines += ["```python"]
            kind = "code"
        elif kind == "code" and not line.strip():
            lines += ["```"]
            kind = ""
        if parameter:
            if kind != "list":
                lines.append("")
            names = ", ".join(f"`{name}`" for name in parameter[1].split(", "))
            lines.append(f"- {names}: {parameter[2]}")
            kind = "list"
        elif kind == "list" and line.startswith("    "):
            lines.append(f"  {line.strip()}")
        else:
            if kind == "list":
                lines.append("")
                kind = ""
            lines.append(line.removeprefix(">>> ") if kind == "code" else line)
    return "\n".join([*lines, "```"] if kind == "code" else lines)


class Docstrings(griffe.Extension):
    """Change what griffe has read before it is shown."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Turn the docstring of an object into Markdown."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Give the blocking client the signatures of its verbs, and parameters of hashers their defaults."""
        client = pkg["client.client.Client"]
        for name, member in list(client.members.items()):
            match = BLOCKING.fullmatch(str(member.value)) if member.is_attribute else None
            if match:
                client.set_member(name, blocking_verb(pkg, client, *match.groups()))
        for module in pkg["hashers"].modules.values():
            for each in module.classes.values():
                clean_parameters(each)


def clean_parameters(hasher: griffe.Class) -> None:
    """Drop class variables from the parameters of a dataclass, and show defaults in place of their declarations."""
    init = hasher.members.get("__init__")
    if not isinstance(init, griffe.Function):
        return
    for parameter in list(init.parameters):
        if str(parameter.annotation).startswith("ClassVar"):
            del init.parameters[parameter.name]
        elif match := DEFAULT.fullmatch(str(parameter.default)):
            parameter.default = match[1]


def blocking_verb(pkg: griffe.Module, client: griffe.Class, source: str, name: str) -> griffe.Function:
    """Return a coroutine of a class of verbs as a method of the client that blocks."""
    verb = client.module[source][name]
    verb = verb.final_target if verb.is_alias else verb
    method = griffe.Function(
        name, parameters=verb.parameters, returns=verb.returns, docstring=verb.docstring, lineno=verb.lineno
    )
    method.overloads = verb.overloads
    return method
