"""Prepare docstrings for the Python reference: a griffe extension that turns their layout into Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
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
        elif isinstance(obj, griffe.Attribute) and isinstance(obj.parent, griffe.Module) and comment_of(obj):
            obj.docstring = griffe.Docstring(f"{comment_of(obj).capitalize()}.", parent=obj)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Complete what is not in the source as griffe reads it: verbs of the client, parameters, fields."""
        complete_client(pkg)
        for module in pkg["hashers"].modules.values():
            for each in module.classes.values():
                clean_fields(each)
        for each in all_classes(pkg):
            fields = [] if is_hasher(each) else field_items(each)
            if fields:
                text = "" if each.docstring is None else each.docstring.value
                value = "\n".join([text, "", *fields]).strip()
                each.docstring = griffe.Docstring(value, parent=each)


def all_classes(module: griffe.Module) -> Iterator[griffe.Class]:
    """Yield the classes of a module and of those below it."""
    yield from (each for each in module.classes.values() if not each.is_alias)
    for below in module.modules.values():
        if not below.is_alias:
            yield from all_classes(below)


def is_hasher(each: griffe.Class) -> bool:
    """Tell whether the docstring of a class describes its fields as parameters."""
    return ".hashers." in each.path and "dataclass" in each.labels


def field_items(each: griffe.Class) -> list[str]:
    """Return the fields of a named tuple with their types, or those of a dataclass that have a comment, as a list."""
    is_tuple = any(str(base).endswith("NamedTuple") for base in each.bases)
    if "dataclass" not in each.labels and not is_tuple:
        return []
    items = []
    parents = (*reversed(each.mro()), each)
    fields = {name: field for parent in parents for name, field in parent.attributes.items()}
    for name, field in fields.items():
        if field.annotation is not None and not name.startswith("_") and "ClassVar" not in str(field.annotation):
            comment = comment_of(field)
            kind = f" (`{field.annotation}`)" if is_tuple else ""
            if comment or is_tuple:
                items.append(f"- `{name}`{kind}" + (f": {comment}" if comment else ""))
    return items


def comment_of(attribute: griffe.Attribute) -> str:
    """Return the comment at the end of the line that defines an attribute."""
    if attribute.lineno is None or not isinstance(attribute.filepath, Path):
        return ""
    line = attribute.filepath.read_text().splitlines()[attribute.lineno - 1]
    return line.partition("  # ")[2].partition("  # ")[0]


def complete_client(pkg: griffe.Module) -> None:
    """Give the blocking client the signatures and docstrings of its verbs."""
    client = pkg["client.client.Client"]
    for name, member in list(client.members.items()):
        match = BLOCKING.fullmatch(str(member.value)) if member.is_attribute else None
        if match:
            client.set_member(name, blocking_verb(client, *match.groups()))
        elif member.is_function and member.docstring is None and name in pkg["client.verbs_items.ItemVerbs"].members:
            member.docstring = pkg["client.verbs_items.ItemVerbs"][name].docstring


def clean_fields(hasher: griffe.Class) -> None:
    """Drop class variables from the fields of a dataclass, and show defaults in place of declarations."""
    for field in hasher.attributes.values():
        if str(field.annotation).startswith("ClassVar"):
            field.annotation = None
        elif match := DEFAULT.fullmatch(str(field.value)):
            field.value = match[1]


def blocking_verb(client: griffe.Class, source: str, name: str) -> griffe.Function:
    """Return a coroutine of a class of verbs as a method of the client that blocks."""
    verb = client.module[source][name]
    verb = verb.final_target if verb.is_alias else verb
    method = griffe.Function(
        name, parameters=verb.parameters, returns=verb.returns, docstring=verb.docstring, lineno=verb.lineno
    )
    method.overloads = verb.overloads
    return method
