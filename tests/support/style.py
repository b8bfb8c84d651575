"""Check the source tree against the house style: retired words, repeated names, private access, file length.

`python -m tests.support.style [PATH ...]` lists what is left, of the whole tree or of these paths.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "stillhash"
LONGEST_FILE = 300
RETIRED_WORDS = """
told said asked asks heard hears eyes room rooms desk gate crew keeper ledger whoever anew teacher lesson lessons
founding found founded kept given shown drawn bridge bridges bridging crossing crossed dead still wire house door doors
looking thumb thumbs pressed joining spread wanted made begun
"""
RETIRED = frozenset(RETIRED_WORDS.split())
PAGE = "server/pages/"  # people give thumbs there, and nowhere else
ON_THE_PAGE = frozenset(("thumb", "thumbs"))
NAMED_TUPLE = frozenset(("_asdict", "_replace", "_fields", "_make"))  # public, in spite of the underscore
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
Problem = tuple[str, int, str]  # file, line, what


def trees(source: Path = SOURCE) -> dict[str, ast.Module]:
    """Parse every module, by its path below the package."""
    return {str(file.relative_to(source)): ast.parse(file.read_text()) for file in sorted(source.rglob("*.py"))}


def identifiers(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield every name that the module defines: variables, arguments, attributes, functions, classes, aliases."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, 0


def retired_words(modules: dict[str, ast.Module]) -> Iterator[Problem]:
    """Yield names with a retired word in them."""
    for file, tree in modules.items():
        allowed = ON_THE_PAGE if file.startswith(PAGE) else frozenset()
        for name, line in identifiers(tree):
            for word in WORD.findall(name):
                if word.lower() in RETIRED - allowed and name != "NotFound":
                    yield file, line, f"retired word in {name}"
    for file in modules:
        for part in WORD.findall(file.removesuffix(".py")):
            if part.lower() in RETIRED:
                yield file, 0, "retired word in the file's name"


def repeated_names(modules: dict[str, ast.Module]) -> Iterator[Problem]:
    """Yield classes, constants and type aliases whose name stands in more than one module."""
    places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for file, tree in modules.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append((file, node.lineno))
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            for name in (each for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)):
                if name.id[:1].isupper() or name.id.lstrip("_")[:1].isupper():
                    places[name.id].append((file, node.lineno))
    for name, found_in in places.items():
        if len({file for file, _ in found_in}) > 1:
            for file, line in found_in:
                others = ", ".join(sorted({other for other, _ in found_in if other != file}))
                yield file, line, f"{name} is also defined in {others}"


def private_accesses(modules: dict[str, ast.Module]) -> Iterator[Problem]:
    """Yield uses of another object's private name: anything but self, cls, super() or a name of the same module."""
    for file, tree in modules.items():
        own = {name for name, _ in identifiers(tree)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not re.match(r"_[^_]", node.attr):
                continue
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                continue
            if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "super":
                continue
            if (
                node.attr in ("_asdict", "_replace", "_fields", "_make") or node.attr in own
            ):  # of named tuples; of a class here
                continue
            yield file, node.lineno, f"private access {ast.unparse(node)}"


def long_files(source: Path = SOURCE) -> Iterator[Problem]:
    """Yield files of too many lines."""
    for file in sorted(source.rglob("*.py")):
        lines = len(file.read_text().splitlines())
        if lines > LONGEST_FILE:
            yield str(file.relative_to(source)), lines, f"{lines} lines; at most {LONGEST_FILE}"


def problems() -> Iterator[Problem]:
    modules = trees()
    yield from retired_words(modules)
    yield from repeated_names(modules)
    yield from private_accesses(modules)
    yield from long_files()


if __name__ == "__main__":
    wanted_paths = tuple(path.removeprefix("src/stillhash/") for path in sys.argv[1:]) or ("",)
    listed = [problem for problem in problems() if problem[0].startswith(wanted_paths)]
    for file, line, what in listed:
        print(f"{file}:{line}: {what}")
    print(len(listed), "left")
