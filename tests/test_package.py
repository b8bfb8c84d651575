"""The public names, info(), errors, and the package without its native extension."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stillhash
from stillhash.errors import InvalidInput, StillhashError
from stillhash.numeric import kernels


def test_public_names_exist() -> None:
    for name in stillhash.__all__:
        assert hasattr(stillhash, name)
    assert {method.__name__ for method in stillhash.METHODS.values()} <= set(stillhash.__all__)
    assert (Path(stillhash.__file__).parent / "py.typed").exists()


def test_info_names_the_kernels_in_use() -> None:
    assert stillhash.info()["lanes"] == kernels.lanes() == kernels.available()[0]
    with kernels.using("numpy"):
        assert stillhash.info()["kernels"] == "numpy reference"


def test_errors_carry_status_and_exit_code() -> None:
    tree = [StillhashError, *StillhashError.__subclasses__()]
    assert all(400 <= error.status < 600 for error in tree)
    assert all(error.exit_code > 0 for error in tree)


def test_unknown_lanes_are_rejected() -> None:
    with pytest.raises(InvalidInput, match=r"^lanes"), kernels.using("sse9"):
        pass


SCRIPT = """
import sys, json
class NoExtension:
    def find_spec(self, name, path=None, target=None):
        if name.endswith("_native"):
            raise ImportError("no extension")
sys.meta_path.insert(0, NoExtension())
import numpy as np, stillhash
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(400, 20)), rng.random((400, 3)) < 0.5
hasher = stillhash.OHSL(bits=16).fit(X).partial_fit(X, Y)
index = stillhash.Scan(16)
index.add(hasher.encode(X))
hits = index.search(hasher.weigh(X[:3]), 5)
print(json.dumps({"info": stillhash.info(), "ids": hits.ids.tolist()}))
"""


def test_numpy_replaces_a_missing_extension() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    without = json.loads(done.stdout)
    assert "without its compiled extension (no extension)" in done.stderr and done.stderr.count("RuntimeWarning") == 1
    assert without["info"]["lanes"] == "numpy" and "no extension" in without["info"]["extension"]
    with_extension = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("sys.meta_path.insert(0, NoExtension())", "")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "STILLHASH_LANES": kernels.available()[0]},
    ).stdout
    assert json.loads(with_extension)["ids"] == without["ids"]


def test_names_are_imported_on_first_use() -> None:
    program = """
import sys
before = set(sys.modules)
import stillhash
imported = set(sys.modules) - before
assert {"numpy", "typing", "importlib.metadata"}.isdisjoint(imported), sorted(imported)
assert set(stillhash.__all__) <= set(dir(stillhash))
stillhash.Scan
assert "stillhash.search" in sys.modules and "stillhash.collection" not in sys.modules
stillhash.open
optional = set("PIL asyncio fastapi httpx pandas pyarrow ray rich scipy sklearn typer urllib3".split())
assert optional.isdisjoint(sys.modules), optional & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_unknown_name_of_the_package() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        stillhash.nothing  # noqa: B018
