"""The source package and the wheel that is built from it, installed into an empty environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DEPENDENCIES = ("numpy", "safetensors", "threadpoolctl")
MAX_WHEEL_BYTES = 2_250_000

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("wheel")]


def run(*command: str | Path, **environment: str) -> str:
    """Run a command outside the source tree, and return what it printed."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    words = [str(word) for word in command]
    done = subprocess.run(words, env=variables, capture_output=True, text=True, cwd=Path(words[0]).parent)
    assert done.returncode == 0, f"{words}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of a new environment that has what stillhash depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("empty")
    run(sys.executable, "-m", "venv", folder)
    interpreter = folder / "bin" / "python"
    install = [interpreter, "-m", "pip", "install", "--quiet", *DEPENDENCIES]
    if subprocess.run(install, capture_output=True).returncode != 0:
        pytest.skip("no package index can be reached, and an empty environment needs NumPy from one")
    return interpreter


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory, python: Path) -> Path:
    """Return the folder of the source package and of the wheel that `build` makes from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, STILLHASH_REQUIRE_EXTENSION="1")
    return folder


def test_wheel_is_small_and_has_what_it_needs(packages: Path) -> None:
    (wheel,) = packages.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.stat().st_size < MAX_WHEEL_BYTES
    assert sum(name.startswith("stillhash/numeric/_native.") for name in names) == 1
    assert {"stillhash/py.typed", "stillhash/server/static/vendor/htmx.min.js"} <= set(names)
    assert [name for name in names if name.endswith((".cpp", ".hpp", ".inl", ".pyc"))] == []
    assert {name.split("/")[0] for name in names} == {"stillhash", f"stillhash-{wheel.name.split('-')[1]}.dist-info"}


def test_source_package_has_what_it_is_built_and_tested_from(packages: Path) -> None:
    (source,) = packages.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CMakeLists.txt", "pyproject.toml", "LICENSE", "src/stillhash/numeric/native/module.cpp"} <= names
    assert {"tests/test_wheel.py", "examples/README.md", "examples/images.py", "examples/first_steps.ipynb"} <= names
    assert not any(name.endswith(".so") or name.startswith((".venv", "build/", "dist/")) for name in names)


def test_readme_runs_from_the_wheel(packages: Path, python: Path, tmp_path: Path) -> None:
    (wheel,) = packages.glob("*.whl")
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall", wheel)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    program = tmp_path / "readme.py"
    program.write_text("\n".join(blocks), encoding="utf-8")
    run(python, program)
    smoke = run(python, ROOT / "tests" / "support" / "smoke.py")
    assert '"kernels": "native"' in smoke
    listed = run(python, "-c", "import stillhash, sys; print(stillhash.__file__)")
    assert str(python.parent.parent) in listed


def test_source_package_installs_without_a_compiler(packages: Path, python: Path) -> None:
    (source,) = packages.glob("*.tar.gz")
    install = [python, "-m", "pip", "install", "--verbose", "--no-deps", "--force-reinstall", source]
    assert "expected a C++ compiler, got none" in run(*install, CXX="/nonexistent/c++")
    program = "import stillhash; print(stillhash.info()['kernels'], stillhash.Scan(64).search)"
    printed = run(python, "-c", program)
    assert "numpy reference" in printed and "RuntimeWarning: stillhash runs without its compiled extension" in printed
