"""Check the source tree against the house style: retired words, repeated names, private access, file length.

`python -m tests.support.style [PATH ...]` lists what is left, of the whole tree or of these paths.
`python -m tests.support.style --prose [PATH ...]` lists retired words in strings, comments, templates, tests, guides,
for information: some of them are plain English where they stand.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "stillhash"
EXAMPLES = ROOT / "examples"
MAX_FILE_LINES = 300
RETIRED_WORDS = """
told said asked asks heard hears eyes room rooms desk gate crew keeper ledger whoever anew teacher lesson lessons
founding found founded kept given shown drawn bridge bridges bridging crossing crossed dead still wire house door doors
looking thumb thumbs pressed joining spread wanted made begun
"""
RETIRED = frozenset(RETIRED_WORDS.split())
PLAIN_ENGLISH_WORDS = "asked crossed dead found given kept looking made shown spread still"  # in a sentence
SELDOM_PLAIN = sorted(RETIRED.difference(PLAIN_ENGLISH_WORDS.split()))
PHRASES = ("for ever", "long since", "stands? still", "nobody", "somebody", *SELDOM_PLAIN)
RETIRED_PHRASES = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE)
PAGE = "server/pages/"  # people give thumbs there, and nowhere else
ON_THE_PAGE = frozenset(("thumb", "thumbs"))
PUBLIC_DESPITE_UNDERSCORE = frozenset(("_asdict", "_replace", "_fields", "_make", "_exit", "_native"))
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
PROSE_FILES = ("*.md", "docs/*.md", "examples/*.md", "src/**/*.html", "src/**/*.js", "src/**/*.css")
Problem = tuple[str, int, str]  # file, line, what is wrong


def trees(source: Path = SOURCE) -> dict[str, ast.Module]:
    """Parse every module, by its path below the package."""
    return {str(file.relative_to(source)): ast.parse(file.read_text()) for file in sorted(source.rglob("*.py"))}


def identifiers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every name that the module defines: variables, arguments, attributes, functions, classes, aliases."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case ast.alias(asname=str(name)):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno
            case ast.MatchMapping(rest=str(name)):
                yield name, node.lineno


OTHERS_NAMES = ("NotFound", "connection_made")  # of HTTP, and of asyncio


def retired_in(name: str, allowed: frozenset[str] = frozenset()) -> bool:
    return name not in OTHERS_NAMES and any(word.lower() in RETIRED - allowed for word in WORD.findall(name))


def retired_words(modules: dict[str, ast.Module]) -> Iterator[Problem]:
    """Yield names with a retired word in them."""
    for file, tree in modules.items():
        allowed = ON_THE_PAGE if file.startswith(PAGE) else frozenset()
        for name, line in identifiers(tree):
            if retired_in(name, allowed):
                yield file, line, f"retired word in {name}"
        if retired_in(file.removesuffix(".py")):
            yield file, 0, "retired word in the file's name"


def top_level(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those under `if`, `try` and `with` included."""
    for node in statements:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            inner = [*node.body, *getattr(node, "orelse", ()), *getattr(node, "finalbody", ())]
            handlers = [each for handler in getattr(node, "handlers", ()) for each in handler.body]
            yield from top_level(inner + handlers)


def shared_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the module's classes, nested ones too, and its constants and type aliases, annotated or not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
    for node in top_level(tree.body):
        targets: list[ast.expr] = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign) or type(node).__name__ == "TypeAlias":
            targets = [node.target if isinstance(node, ast.AnnAssign) else node.name]  # type: ignore[attr-defined]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Call) and ast.unparse(value.func).endswith(("TypeVar", "ParamSpec")):
            continue
        for name in (each for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)):
            if isinstance(name.ctx, ast.Store) and name.id.lstrip("_")[:1].isupper():
                yield name.id, node.lineno


def repeated_names(modules: dict[str, ast.Module]) -> Iterator[Problem]:
    """Yield classes, constants and type aliases whose name is defined in more than one module."""
    places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for file, tree in modules.items():
        for name, line in shared_names(tree):
            places[name].append((file, line))
    for name, definitions in places.items():
        for file, line in definitions:
            others = ", ".join(sorted({other for other, _ in definitions if other != file}))
            if others:
                yield file, line, f"{name} is also defined in {others}"


def private_members(body: ast.ClassDef) -> set[str]:
    """Return the private methods, fields and attributes that a class defines."""
    members = {each.name for each in body.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in ast.walk(body):
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            members.add(node.attr if isinstance(node, ast.Attribute) else node.id)
    return members


def private_accesses(modules: dict[str, ast.Module]) -> Iterator[Problem]:
    """Yield uses of another object's private names. A class may use those of its own instances (`other._rows`)."""
    for file, tree in modules.items():
        same_class: set[ast.AST] = set()
        for body in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            members = private_members(body)
            for node in ast.walk(body):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in members:
                    same_class.add(node)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                names = {alias.name for alias in node.names} | set((node.module or "").split("."))
                for name in names - PUBLIC_DESPITE_UNDERSCORE:
                    if re.match(r"_[^_]", name):
                        yield file, node.lineno, f"private import {node.module}: {name}"
            if not isinstance(node, ast.Attribute) or not re.match(r"_[^_]", node.attr) or node in same_class:
                continue
            owner = ast.unparse(node.value)
            if owner not in ("self", "cls", "super()") and node.attr not in PUBLIC_DESPITE_UNDERSCORE:
                yield file, node.lineno, f"private access {owner}.{node.attr}"


def long_files(source: Path = SOURCE) -> Iterator[Problem]:
    """Yield files of too many lines."""
    for file in sorted(source.rglob("*.py")):
        lines = len(file.read_text().splitlines())
        if lines > MAX_FILE_LINES:
            yield str(file.relative_to(source)), lines, f"{lines} lines; at most {MAX_FILE_LINES}"


def problems() -> Iterator[Problem]:
    """Yield everything that the house style forbids in src/, and in examples/, whose programs may repeat names."""
    modules, programs = trees(), {f"examples/{name}": tree for name, tree in trees(EXAMPLES).items()}
    yield from retired_words(modules | programs)
    yield from repeated_names(modules)
    yield from private_accesses(modules | programs)
    yield from long_files()
    yield from long_files(EXAMPLES)


def python_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of comments and strings of Python source."""
    starts = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in starts:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line.strip()


def retired_prose() -> Iterator[Problem]:
    """Yield retired words in strings, docstrings, comments, test names, templates, scripts and guides."""
    for file in sorted([*SOURCE.rglob("*.py"), *EXAMPLES.glob("*.py"), *(ROOT / "tests").rglob("*.py")]):
        name, text = str(file.relative_to(ROOT)).removeprefix("src/stillhash/"), file.read_text()
        if file == Path(__file__):
            continue
        for line, words in python_prose(text):
            identifier = re.fullmatch(r"[frb]*([\"'])(\w+)\1", words)
            if RETIRED_PHRASES.search(words) or (identifier and retired_in(identifier[2])):
                yield name, line, words
        if name.startswith("tests/"):
            for identifier_name, line in identifiers(ast.parse(text)):
                if retired_in(identifier_name, ON_THE_PAGE):
                    yield name, line, f"retired word in {identifier_name}"
    for file in (each for pattern in PROSE_FILES for each in sorted(ROOT.glob(pattern))):
        name = str(file.relative_to(ROOT)).removeprefix("src/stillhash/")
        for line, words in enumerate(file.read_text().splitlines(), 1):
            if match := RETIRED_PHRASES.search(words):
                start = max(0, match.start() - 40)
                yield name, line, words[start : match.end() + 40].strip()


def main(arguments: list[str]) -> int:
    """Print the problems of the paths named, or of all; return 1 if there are any, but 0 for prose."""
    check = retired_prose if "--prose" in arguments else problems
    paths = tuple(each.removeprefix("src/stillhash/") for each in arguments if each != "--prose") or ("",)
    listed = [problem for problem in check() if problem[0].startswith(paths)]
    for file, line, what in listed:
        print(f"{file}:{line}: {what}")
    print(len(listed), "left")
    return 1 if listed and check is problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
