"""The library that stands between a process and its disk, built once."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.collection import disk


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the library to preload."""
    if sys.platform != "linux":
        pytest.skip("the library that stands between a process and its disk needs Linux")
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("the library that stands between a process and its disk needs a C++ compiler")
    library = tmp_path_factory.mktemp("disk") / "disk.so"
    disk.build(library)
    return library
