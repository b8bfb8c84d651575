"""The disk that tells and fails, built once."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.collection import disk


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library to preload, which stands between a process and its disk."""
    if sys.platform != "linux":
        pytest.skip("a library that stands between a process and its disk is made for Linux only")
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("there is no C++ compiler to build the library that stands between a process and its disk")
    library = tmp_path_factory.mktemp("disk") / "disk.so"
    disk.build(library)
    return library
