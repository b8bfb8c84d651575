"""Read query vectors from JSON text, from stdin or from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput
from stillhash.io.arrays import open_npy
from stillhash.io.chunks import check_vector, read_chunks
from stillhash.io.rows import read_lines, reading

VECTORS = "a JSON array of numbers, or an array of such arrays"


def read_features(path: Path, dim: int) -> NDArray[Any]:
    """Return the features (n, dim) of all rows of a file."""
    chunks = [chunk.features for chunk in read_chunks(path, dim, 1000)]
    if not chunks:
        raise InvalidInput(f"{path.name}: expected rows, got an empty file")
    return np.concatenate(chunks)


def read_queries(text: str, dim: int) -> NDArray[Any]:
    """Return queries (m, dim) from JSON itself, from JSON on stdin ('-'), from a .json file, or from a file of rows."""
    path = Path(text)
    if not text.lstrip().startswith("["):
        if text != "-" and path.suffix.lower() != ".json":
            return _read_query_file(path, dim)
        with reading(path):
            text = "".join(line for _, line, _ in read_lines(path))
    vectors: list[Any] = []
    while text := text.strip():  # one array after another, as a program prints them
        value, end = _first_array(text)
        vectors += value if isinstance(value[0], list) else [value]
        text = text[end:]
    if not vectors:
        raise InvalidInput(f"vector: expected {VECTORS}, got nothing")
    return np.stack([check_vector(vector, dim, f"vector {number}") for number, vector in enumerate(vectors)])


def _read_query_file(path: Path, dim: int) -> NDArray[Any]:
    """Return the rows of a file, or the one vector of a .npy file."""
    if path.suffix.lower() == ".npy":
        with reading(path):
            array = open_npy(path)
        if array.ndim == 1:
            return check_vector(array, dim, path.name)[None]
    return read_features(path, dim)


def _first_array(text: str) -> tuple[list[Any], int]:
    """Parse the JSON array at the start of a text, and return it with its length."""
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"vector: expected {VECTORS}: {error}") from None
    if not isinstance(value, list) or not value:
        raise InvalidInput(f"vector: expected {VECTORS}, got {text[:40]!r}")
    return value, end
