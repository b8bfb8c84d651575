"""What is quick stays quick: --version, help and completion import no large library."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import stillhash as library
from stillhash.cli import completion
from stillhash.cli.main import app
from stillhash.collection import DEFAULT_BITS
from stillhash.collection.learning.votes import MAX_LISTED_VOTES
from stillhash.collection.storage.audit import MAX_ENTRIES
from stillhash.experiments.presets import PRESETS
from stillhash.hashers import FIXED_CODE_METHODS
from stillhash.io.tables import DEFAULT_BATCH
from stillhash.server import ROLES
from tests.cli.commands import stillhash

LARGE = ["numpy", "fastapi", "sqlite3", "stillhash.collection", "stillhash.io", "stillhash.experiments", "uvicorn"]
LIST_MODULES = """
import atexit, json, sys
atexit.register(lambda: print("modules", json.dumps([n for n in sys.modules if sys.modules[n]]), file=sys.stderr))
"""


def imported(*args: str, env: dict[str, str] | None = None) -> tuple[str, set[str]]:
    """Return what a command prints, and the modules it imported."""
    done = stillhash(*args, env=env, before=LIST_MODULES)
    assert done.returncode == 0, done.stderr
    return done.stdout, set(json.loads(done.stderr.rpartition("modules ")[2]))


def test_version() -> None:
    out, modules = imported("--version")
    assert out == f"stillhash {library.__version__}\n"
    assert not modules & {*LARGE, "rich", "typer"}


@pytest.mark.medium
@pytest.mark.parametrize("place", [(), ("serve",), ("keys",)])
def test_help_imports_no_library(place: tuple[str, ...]) -> None:
    out, modules = imported(*place, "--help")
    assert "Usage" in out and not modules & set(LARGE)


@pytest.mark.parametrize("words", ["stillhash ro", "stillhash search films --en"])
def test_completion_imports_no_library(words: str) -> None:
    for shell, env in (("bash", {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}), ("zsh", {})):
        more = {"_STILLHASH_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": words}
        out, modules = imported(env={**env, **more})
        assert out.strip() and not modules & {*LARGE, "rich", "pydantic"}


def test_version_needs_no_extra_and_commands_name_it() -> None:
    without = "import sys; sys.modules['typer'] = None"
    assert stillhash("--version", before=without).stdout == f"stillhash {library.__version__}\n"
    done = stillhash("info", before=without)
    assert done.returncode == 6 and "stillhash[cli]" in done.stderr and "Traceback" not in done.stderr
    assert CliRunner().invoke(app, ["--version"]).stdout == f"stillhash {library.__version__}\n"


def test_defaults_are_those_of_the_library() -> None:
    assert completion.NEW_CODE_BITS == DEFAULT_BITS and library.DEFAULT_HASHER.name == completion.DEFAULT_METHOD
    assert completion.FIXED_CODE_NAMES == FIXED_CODE_METHODS
    assert sorted(completion.FIXED_CODE_NAMES + completion.OTHER_METHOD_NAMES) == sorted(library.METHODS)
    assert tuple(PRESETS) == completion.PRESET_NAMES and tuple(ROLES) == completion.ROLE_NAMES
    assert completion.MAX_VOTE_ENTRIES == MAX_LISTED_VOTES
    assert completion.MAX_AUDIT_ENTRIES == MAX_ENTRIES and completion.IMPORT_BATCH == DEFAULT_BATCH
