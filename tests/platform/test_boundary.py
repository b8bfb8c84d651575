"""What only some systems have is used in stillhash/platform alone; and no text depends on the system's encoding."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "stillhash"
LINUX_PACKAGES = {"experiments", "cluster"}  # studies and clusters, which run on Linux
MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "msvcrt", "winreg", "_winapi"}
NAMES = {
    *("os.name", "os.getuid", "os.geteuid", "os.getegid", "os.getpgid", "os.killpg", "os.fork", "os.fchmod"),
    *("os.fchown", "os.chown", "os.fsync", "os.access", "os.sysconf", "os.setpriority", "os.sched_getaffinity"),
    *("os.O_DIRECTORY", "os.O_NOFOLLOW", "os.O_NONBLOCK", "os.O_CLOEXEC", "os.O_BINARY", "os.register_at_fork"),
    *("sys.platform", "signal.SIGHUP", "signal.SIGKILL", "signal.SIGUSR1", "socket.SO_REUSEADDR", "socket.AF_UNIX"),
}
TEXT_MODES = {repr(mode) for mode in ("r", "w", "a", "x", "r+", "w+")}
TEXT_FILES = {"read_text": 0, "write_text": 1}  # with the place of the encoding among the arguments


def foreign_names(tree: ast.AST) -> Iterator[str]:
    """Yield each use of what some system lacks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            used = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from used & NAMES if node.module not in MODULES else [str(node.module)]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield from {f"{node.value.id}.{node.attr}"} & NAMES
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(("/proc", "/dev"))
        ):
            yield node.value


def texts_without_encoding(tree: ast.AST) -> Iterator[str]:
    """Yield each call that reads or writes text in the encoding of the system."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        method = node.func.attr if isinstance(node.func, ast.Attribute) else None
        name = node.func.id if isinstance(node.func, ast.Name) else method
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        if "encoding" in keywords or None in keywords:
            continue
        if method in TEXT_FILES and len(node.args) <= TEXT_FILES[method]:
            yield f"line {node.lineno}: {method}"
        if ast.unparse(keywords.get("text", ast.Constant(False))) == "True":
            yield f"line {node.lineno}: text="
        place = 0 if method == "open" else 1  # of the mode among the arguments
        mode = keywords.get("mode") or (node.args[place] if len(node.args) > place else None)
        if name in ("open", "fdopen") and ast.unparse(mode or ast.Constant(None)) in TEXT_MODES:
            yield f"line {node.lineno}: {name}"


def modules() -> list[str]:
    return sorted(file.relative_to(SOURCE).as_posix() for file in SOURCE.rglob("*.py"))


@pytest.mark.parametrize("package", sorted({name.partition("/")[0] for name in modules()}))
def test_only_the_platform_package_knows_the_system(package: str) -> None:
    problems = []
    for name in (name for name in modules() if name.partition("/")[0] == package):
        tree = ast.parse((SOURCE / name).read_text(encoding="utf-8"))
        problems += [f"{name}: {text}" for text in texts_without_encoding(tree)]
        if package not in LINUX_PACKAGES | {"platform"}:
            problems += [f"{name}: {text}" for text in foreign_names(tree)]
    assert not problems


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("import fcntl", 1),
        ("from resource import getrlimit", 1),
        ("from sys import platform", 1),
        ("import os\nos.getuid()", 1),
        ("open('/proc/self/status')", 1),
        ("import os\nos.replace('a', 'b')", 0),
    ],
)
def test_foreign_names_are_recognised(code: str, count: int) -> None:
    assert len(list(foreign_names(ast.parse(code)))) == count


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("p.read_text()", 1),
        ("p.write_text('a')", 1),
        ("p.read_text('utf-8')", 0),
        ("p.open('w')", 1),
        ("p.open('wb')", 0),
        ("open('a', 'r', encoding='utf-8')", 0),
        ("run([], text=True)", 1),
    ],
)
def test_texts_without_encoding_are_recognised(code: str, count: int) -> None:
    assert len(list(texts_without_encoding(ast.parse(code)))) == count
