"""Run the examples as a reader would, and check that what they print is true."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from website.links import ROOT, relative_links

EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
CELL_SECONDS = 120  # only a cell that hangs takes so long


def images_claim(result: dict[str, Any], folder: Path) -> bool:
    few, many = (result["curve"][step]["p10"] for step in (1, -1))
    return many > result["before"] + 0.3 and few > result["before"] - 0.02 and (folder / "sheet.png").stat().st_size > 0


def clicks_claim(result: dict[str, Any], folder: Path) -> bool:
    before, after = result["days"][0], result["days"][-1]
    gains = [after[queries] - before[queries] for queries in ("popular", "untried")]
    first = result["first_hit"]
    return gains[0] > 0.03 and gains[1] > 0 and first["after_robots"] < 0.5 and first["same_after_rollback"] is True


def duplicates_claim(result: dict[str, Any], folder: Path) -> bool:
    by_distance = {line["distance"]: line for line in result["table"]}
    rising = [line["copies"] for line in result["table"]]
    best = by_distance[result["chosen"]]
    return rising == sorted(rising) and best["wrong"] == 0 and result["before"] - result["after"] == best["copies"] > 75


def cluster_claim(result: dict[str, Any], folder: Path) -> bool:
    return sum(result["rows"]) == 30_000 and min(result["rows"]) > 0 and set(result["different"].values()) == {0}


def text_claim(result: dict[str, Any], folder: Path) -> bool:
    rising = [step["p10"] for step in result["curve"]]
    return rising[-1] > rising[0] + 0.05 and min(rising) > rising[0] - 0.02 and all(map(any, result["hits"].values()))


CLAIMS: dict[str, Callable[[dict[str, Any], Path], bool]] = {
    "images": images_claim,
    "text": text_claim,
    "clicks": clicks_claim,
    "duplicates": duplicates_claim,
    "cluster": cluster_claim,
}
NEEDS = {"images": "PIL", "text": "sqlite3", "clicks": "sklearn", "duplicates": "PIL", "cluster": "ray"}
MARKS = {
    **{name: [pytest.mark.slow] for name in ("images", "text")},
    "clicks": [pytest.mark.nightly],
    "cluster": [pytest.mark.slow, pytest.mark.cluster],
}


WARNINGS = ("-Werror", "-Wignore::DeprecationWarning")  # which the lowest versions of other libraries raise


def run_example(program: Path, *options: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *WARNINGS, str(program), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in CLAIMS])
def test_program_shows_what_it_claims(name: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
    if name == "cluster" and sys.platform != "linux":
        pytest.skip("a cluster needs Linux")
    folder = tmp_path / "out"
    done = run_example(EXAMPLES / f"{name}.py", "--json", "--out", folder)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert CLAIMS[name](result, folder), result


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="PIL is not installed")
    done = run_example(EXAMPLES / "duplicates.py", "--out", tmp_path)
    assert done.returncode == 2 and "--out" in done.stderr and [*tmp_path.iterdir()] == []


def test_every_program_is_tested_and_says_how_to_run_it() -> None:
    assert {program.stem for program in PROGRAMS} == set(CLAIMS) == set(NEEDS)
    for program in PROGRAMS:
        text = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))) or ""
        assert f"python examples/{program.name}" in text and re.search(r"pip install '?stillhash", text), program.name


@pytest.mark.parametrize("page", ["examples/README.md", "docs/examples.md"])
def test_pages_list_every_example(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [file.name for file in PROGRAMS + NOTEBOOKS if not re.search(rf"\]\([./a-z]*\b{file.name}\)", text)] == []


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_notebooks_are_stored_without_outputs(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len({cell["id"] for cell in cells}) == len(cells)
    prose = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert [path for path, _ in relative_links(prose) if not (EXAMPLES / path).exists()] == []


@pytest.mark.nightly
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all cells in a kernel; their last ones assert what the notebook says."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    cells = nbformat.read(notebook, as_version=4)
    done = nbclient.execute(cells, cwd=str(tmp_path), timeout=CELL_SECONDS)
    outputs = [output for cell in done.cells if cell.cell_type == "code" for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"stream", "display_data"}
    assert [output.text for output in outputs if output.output_type == "stream" and output.name == "stderr"] == []
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
