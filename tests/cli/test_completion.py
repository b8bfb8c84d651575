"""Completion as a shell runs it: the scripts that the command prints, in bash, zsh and fish."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stillhash
from stillhash.cli import completion
from tests.cli.commands import LAUNCHER
from tests.support.toys import toy

X, Y = toy(320, 8, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two collections and another folder, and `stillhash` on the path below bin."""
    folder = tmp_path_factory.mktemp("completion")
    with stillhash.open(folder / "films", 8, init_rows=300) as collection:
        collection.add([f"r{r}" for r in range(320)], X, [["cat"] if row[0] > 0 else ["dog"] for row in Y])
        collection.tag(collection.flush(), "good")
    stillhash.open(folder / "fish tank", 8).close()
    (folder / "fields").mkdir()
    (folder / "bin").mkdir()
    script = folder / "bin" / "stillhash"
    script.write_text(f"#!{sys.executable}\n{LAUNCHER}\n")
    script.chmod(0o755)
    return folder


def in_shell(shell: str, code: str, folder: Path) -> str:
    """Return what the code prints in a shell without the user's own settings; skip without that shell."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed, and its completion is run in it")
    options = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(folder), "TERM": "dumb"}
    done = subprocess.run([shell, *options, "-c", code], capture_output=True, text=True, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def complete_in_bash(words: list[str], folder: Path) -> list[str]:
    quoted = " ".join(f"'{word}'" for word in words)
    code = f"""
        eval "$(_STILLHASH_COMPLETE=source_bash stillhash)"
        complete -p stillhash >/dev/null
        COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}
        _stillhash_completion stillhash
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return in_shell("bash", code, folder).split("\n")[:-1]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("stillhash roll", ["rollback"]),
        ("stillhash cluster d", ["down", "drain"]),
        ("stillhash count fi", ["films", "fish tank"]),
        ("stillhash rollback films ", ["2", "1"]),
        ("stillhash search films --version ", ["2", "1", "hamming"]),
        ("stillhash experiment run --preset label-", ["label-noise", "label-delay"]),
        ("stillhash experiment run --methods tally,oh", ["tally,ohsl", "tally,ohsl-sym", "tally,ohweu"]),
        ("stillhash add films ro", [""]),  # the shell itself completes files
    ],
)
def test_bash(words: str, expected: list[str], folder: Path) -> None:
    assert complete_in_bash(words.split(" "), folder) == expected


def test_zsh_offers_commands_with_their_help(folder: Path) -> None:
    code = """
        autoload -U compinit; compinit -u -D
        eval "$(_STILLHASH_COMPLETE=source_zsh stillhash)"
        _arguments() { print -r -- "$@" }
        words=(stillhash rollb); CURRENT=2
        _stillhash_completion
        words=(stillhash rollback films ''); CURRENT=4
        _stillhash_completion
    """
    out = in_shell("zsh", code, folder)
    assert '"rollback":"Restore' in out and '"2":"good, 320 rows"' in out


def test_fish_offers_commands_with_their_help(folder: Path) -> None:
    code = """
        _STILLHASH_COMPLETE=source_fish stillhash | source
        complete -C 'stillhash rollb'
        complete -C 'stillhash count fi'
    """
    lines = in_shell("fish", code, folder).splitlines()
    assert lines[0].startswith("rollback\tRestore") and {"films", "fish tank"} <= set(lines)


@pytest.mark.medium
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_option_shows_and_installs_completion(shell: str, folder: Path, tmp_path: Path) -> None:
    code = f"stillhash --show-completion; env HOME={tmp_path} stillhash --install-completion; true"
    out = in_shell(shell, code, folder)
    assert "_STILLHASH_COMPLETE=complete_" + shell in out and "installed" in out
    written = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert any("_STILLHASH_COMPLETE" in text for text in written)


def test_versions_are_those_of_the_library(folder: Path) -> None:
    class Line:
        params, args = {"path": folder / "films"}, ()

    with stillhash.open(folder / "films", read_only=True) as collection:
        versions = [str(each["version"]) for each in collection.versions()]
    offered = completion.versions(Line(), "")  # type: ignore[arg-type]
    assert sorted(str(each[0]) for each in offered) == sorted(versions)
    Line.params = {"path": folder / "fields"}
    assert completion.versions(Line(), "") == []  # type: ignore[arg-type]
    assert not (folder / "fields" / "store.db").exists()


def test_collections_are_offered_as_typed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert completion.collections("") == ["films", "fish tank"]
    assert completion.collections("./f") == ["./films", "./fish tank"]
    assert completion.collections(f"{folder}/fis") == [f"{folder}/fish tank"]
    assert completion.collections("nosuch/") == [] == completion.collections("fields/")
