"""The source tree follows the house style, and the checks notice where it would not."""

from __future__ import annotations

import ast

import pytest

from tests.support import style

SHARED = """
LIMIT: int = 3
_Rows = list[int]
if True:
    SIZES, (Names, lower) = (1,), ("", "")
class Outer:
    class Inner: ...
T = TypeVar("T")
LIMITS["x"] = 1
"""
PRIVATE = """
class Node:
    def __init__(self, other):
        self._rows = other._rows      # of the same class
        super()._start()
        self._store._connection = 1   # of another object
    def _copy(self):
        return self.nodes[0]._copy()  # of another object
def rows(node):
    return node._rows                 # from outside the class
from package import _hidden
point._replace(x=1)
"""


def test_source_follows_the_house_style() -> None:
    assert [f"{file}:{line}: {what}" for file, line, what in style.problems()] == []


def test_shared_names_include_nested_classes_and_annotated_constants() -> None:
    names = [name for name, _ in style.shared_names(ast.parse(SHARED))]
    assert sorted(names) == ["Inner", "LIMIT", "Names", "Outer", "SIZES", "_Rows"]
    modules = {
        "one.py": ast.parse("LIMIT = 1"),
        "two.py": ast.parse("LIMIT: int = 2"),
        "three.py": ast.parse("LIMITS = 1"),
    }
    assert [file for file, _, _ in style.repeated_names(modules)] == ["one.py", "two.py"]


def test_private_names_belong_to_their_class() -> None:
    problems = {what for _, _, what in style.private_accesses({"a.py": ast.parse(PRIVATE)})}
    assert problems == {
        "private access self._store._connection",
        "private access self.nodes[0]._copy",
        "private access node._rows",
        "private import package: _hidden",
    }


@pytest.mark.parametrize(
    "source",
    [
        "told = 1",
        "def f(asked_rows): ...",
        "class DeskTop: ...",
        "self.keeper = 1",
        "import a as eyes",
        "[1 for room in y]",
    ],
)
def test_retired_words_are_noticed_wherever_a_name_is_defined(source: str) -> None:
    assert len([*style.retired_words({"a.py": ast.parse(source)})]) == 1


def test_words_in_plain_use_are_fine() -> None:
    assert [*style.retired_words({"a.py": ast.parse("class NotFound: ...\nmade_up = rows.told\nbedrooms = 1")})] == [
        ("a.py", 2, "retired word in made_up")
    ]
