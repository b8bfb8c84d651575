"""Chunks of rows whose ids are read first: what an import that is resumed need not read, it does not read."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput, StillhashError
from stillhash.io.arrow_batches import BatchContent, batch_content, batch_rows
from stillhash.io.columns import Columns

CONVERSION_ERRORS = (ValueError, TypeError, NotImplementedError, OverflowError)  # of pyarrow too, for rare types


class Chunk(NamedTuple):
    """Consecutive rows of a file or a table."""

    place: str  # of its first and last row
    progress: float  # share read so far; 0 if the number of rows is not known
    ids: list[Any] | None
    features: NDArray[Any]  # (n, D) finite numbers
    labels: Any  # one entry for each row
    metadata: Any


class LazyChunk(NamedTuple):
    """A chunk of which only the ids are read; `load` reads the rest, before the next chunk is taken."""

    place: str
    progress: float
    rows: int
    ids: list[Any] | None  # None if the rows have none
    read: Callable[[], BatchContent]

    def load(self) -> Chunk:
        """Read the rest."""
        return Chunk(self.place, self.progress, self.ids, *self.read())


def read_batch(batch: Any, columns: Columns, first_row: int, separator: str | None, dim: int | None) -> BatchContent:
    """Convert a record batch to features, labels and metadata, each vector with `dim` finite numbers.

    Where the fast conversion cannot, rows are parsed one by one: then the error names the row.
    """
    try:
        content = batch_content(batch, columns, first_row, separator)
        if content is not None and is_valid(content.features, dim):
            return content
        rows = list(batch_rows(batch, columns, first_row, separator))
    except CONVERSION_ERRORS as error:
        if isinstance(error, StillhashError):
            raise
        raise InvalidInput(f"{columns.source}, from row {first_row} on: cannot be converted: {error}") from None
    dim = vector_length(rows[0].features) if dim is None else dim
    features = [check_vector(row.features, dim, f"{columns.source}, {row.place}") for row in rows]
    return BatchContent(np.stack(features), [row.labels or [] for row in rows], [row.metadata for row in rows])


def is_valid(features: NDArray[Any], dim: int | None) -> bool:
    """Return whether these are rows of `dim` finite numbers."""
    shape_fits = features.ndim == 2 and (dim is None or features.shape[1] == dim)
    return shape_fits and features.dtype.kind in "fiub" and bool(np.isfinite(features).all())


def vector_length(value: Any) -> int:
    """Return how many numbers a vector has, 1 if it is none."""
    return len(value) if isinstance(value, (list, np.ndarray)) else 1


def check_vector(value: Any, dim: int, where: str) -> NDArray[Any]:
    """Return features as a vector of `dim` finite numbers."""
    try:
        vector = np.asarray(value)
    except ValueError:
        vector = np.empty((0, 0))  # nested lists of several lengths
    if vector.ndim != 1 or (vector.size and vector.dtype.kind not in "fiub"):
        raise InvalidInput(f"{where}: features: expected {dim} numbers, got other values")
    if len(vector) != dim:
        raise InvalidInput(f"{where}: features: expected {dim} numbers, got {len(vector)}")
    if not np.isfinite(vector).all():
        at = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise InvalidInput(f"{where}: features[{at}]: expected a finite number, got {vector[at]}")
    return vector
