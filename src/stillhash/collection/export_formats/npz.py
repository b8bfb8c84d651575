"""Exports as npz: an array for each column, and the state as lines of JSON in the member `stillhash.jsonl`.

A column of texts or bytes is two arrays: `NAME_data`, all values one after another, and `NAME_ends`, where each ends.
An empty value is null. `numpy.load` reads the arrays; nothing is pickled.
"""

import math
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from stillhash.collection.export_formats.records import (
    ITEMS_LINE,
    MAX_ITEM_BYTES,
    MAX_RECORD_BYTES,
    ExportShape,
)
from stillhash.collection.storage.exported_items import BATCH_ROWS, MAX_BATCH_BYTES, ItemBatch
from stillhash.collection.storage.schema import parsing
from stillhash.errors import BadState
from stillhash.files.sealed_files import create_private

STATE_MEMBER, END_MEMBER = "stillhash.jsonl", "stillhash_end.json"
ZIP_MAGIC = b"PK\x03\x04"
COPY_BYTES = 1 << 20
MAX_NPY_HEADER = 1 << 12
COMPACT_ARRAYS = ("codes", "features", "rescoring", "feature_digests", "pictures_data")  # as small as they get
VALUE_COLUMNS = ("labels", "metadata", "pictures")
DAMAGED_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, RuntimeError)

ColumnType = tuple[str, tuple[int, ...]]  # dtype, and the shape of a row


def array_columns(shape: ExportShape) -> dict[str, ColumnType]:
    """Return the arrays with a row for each item."""
    columns: dict[str, ColumnType] = {"rows": ("<i8", ())}
    if shape.ids == "integers":
        columns["ids"] = ("<i8", ())
    columns |= {f"{name}_ends": ("<i8", ()) for name in value_columns(shape)}
    if shape.fitted:
        columns |= {"codes": ("|u1", (shape.code_bytes,)), "feature_digests": ("<i8", ())}
    columns |= {"rescoring": ("|u1", (shape.rescoring_bytes,))} if shape.rescoring_bytes else {}
    return columns | ({"features": ("<f4", (shape.dim,))} if shape.features else {})


def value_columns(shape: ExportShape) -> tuple[str, ...]:
    """Return the columns of texts and bytes."""
    return VALUE_COLUMNS if shape.ids == "integers" else ("ids", *VALUE_COLUMNS)


class NpzExportWriter:
    """Write the columns to temporary files without a name, and then one after another into the archive."""

    def __init__(self, path: Path, shape: ExportShape) -> None:
        self._path, self._shape, self._files = path, shape, ExitStack()
        self._archive = self._files.enter_context(zipfile.ZipFile(create_private(path), "w", zipfile.ZIP_DEFLATED))
        self._state: IO[bytes] = self._files.enter_context(self._archive.open(STATE_MEMBER, "w", force_zip64=True))
        self._columns: dict[str, IO[bytes]] = {}
        self._rows, self._ends = 0, dict.fromkeys(("ids", *VALUE_COLUMNS), 0)

    def write_state(self, line: bytes) -> None:
        self._state.write(line)

    def begin_items(self) -> None:
        self._state.close()
        for name in (*array_columns(self._shape), *(f"{name}_data" for name in value_columns(self._shape))):
            self._columns[name] = self._files.enter_context(tempfile.TemporaryFile(dir=self._path.parent))  # noqa: SIM115

    def write_items(self, batch: ItemBatch) -> None:
        values: dict[str, list[bytes]] = {
            "labels": [text.encode() for text in batch.labels],
            "metadata": [(text or "").encode() for text in batch.metadata],
            "pictures": [data or b"" for data in batch.pictures],
        }
        arrays: dict[str, Any] = {"rows": batch.rows, "codes": batch.codes, "features": batch.features}
        arrays |= {"feature_digests": batch.digests, "rescoring": batch.rescoring}
        if self._shape.ids == "integers":
            arrays["ids"] = np.array(batch.ids, np.int64)
        else:
            values["ids"] = [text.encode() for text in self._shape.id_texts(batch.ids)]
        for name, entries in values.items():
            arrays[f"{name}_ends"] = ends = self._ends[name] + np.cumsum(list(map(len, entries)), dtype=np.int64)
            self._ends[name] = int(ends[-1])
            self._columns[f"{name}_data"].write(b"".join(entries))
        for name, (dtype, _) in array_columns(self._shape).items():
            self._columns[name].write(np.ascontiguousarray(arrays[name], dtype).tobytes())
        self._rows += len(batch.ids)

    def finish(self, end: bytes) -> None:
        types = array_columns(self._shape)
        for name, file in self._columns.items():
            dtype, row_shape = types.get(name, ("|u1", ()))
            length = self._rows if name in types else self._ends[name.removesuffix("_data")]
            compact = name in COMPACT_ARRAYS
            self._archive.compression = zipfile.ZIP_STORED if compact else zipfile.ZIP_DEFLATED
            with self._archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(_npy_header(dtype, (length, *row_shape)))
                file.seek(0)
                shutil.copyfileobj(file, member, COPY_BYTES)
        self._archive.writestr(zipfile.ZipInfo(END_MEMBER), end)
        self._archive.close()

    def close(self) -> None:
        self._state.close()
        self._files.close()


def _npy_header(dtype: DTypeLike, shape: tuple[int, ...]) -> bytes:
    header = BytesIO()
    npy.write_array_header_1_0(
        header, {"descr": npy.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    )
    return header.getvalue()


class NpzExportReader:
    """Read all columns side by side, a batch of rows at a time."""

    def __init__(self, path: Path) -> None:
        self._path, self._files = path, ExitStack()
        try:  # a file of ours: that of an archive stays open as long as one of its members
            file = self._files.enter_context(path.open("rb"))
            self._archive = self._files.enter_context(zipfile.ZipFile(file))
        except DAMAGED_ZIP as error:
            self._files.close()
            raise self._damaged(error) from error

    def _damaged(self, error: BaseException) -> BadState:
        return BadState(f"{self._path.name}: cannot be read as npz: {type(error).__name__}: {error}")

    @staticmethod
    def matches(path: Path, start: bytes) -> bool:
        """Return whether a file that starts so is one of these."""
        return start.startswith(ZIP_MAGIC) and start[30 : 30 + len(STATE_MEMBER)] == STATE_MEMBER.encode()

    def state_lines(self) -> Iterator[bytes]:
        try:
            with self._archive.open(STATE_MEMBER) as member:
                while True:
                    line = member.readline(MAX_RECORD_BYTES + 1)
                    if not line.endswith(b"\n"):
                        raise BadState(f"{STATE_MEMBER}: expected lines of JSON, got no such line")
                    yield line
                    if line == ITEMS_LINE:
                        break
                if member.read(1):  # the end, where the checksum is compared
                    raise BadState(f"{STATE_MEMBER}: expected nothing after the last line, got more")
        except (*DAMAGED_ZIP, KeyError) as error:
            raise self._damaged(error) from error

    def batches(self, shape: ExportShape) -> Iterator[ItemBatch]:
        types = array_columns(shape)
        data = [f"{name}_data" for name in value_columns(shape)]
        expected = sorted([STATE_MEMBER, END_MEMBER, *(f"{name}.npy" for name in (*types, *data))])
        if sorted(self._archive.namelist()) != expected:
            raise BadState(f"{self._path.name}: expected the arrays {', '.join(expected)}, got others")
        try:
            yield from self._read(shape, types, data)
        except DAMAGED_ZIP as error:
            raise self._damaged(error) from error

    def _read(self, shape: ExportShape, types: dict[str, ColumnType], data: list[str]) -> Iterator[ItemBatch]:
        with ExitStack() as members:
            columns = {
                name: members.enter_context(_ArrayMember(self._archive, name, *types.get(name, ("|u1", ()))))
                for name in (*types, *data)
            }
            for name in types:
                if columns[name].length != shape.items:
                    raise BadState(f"{name}: expected {shape.items} rows, got {columns[name].length}")
            most = min(BATCH_ROWS, max(1, MAX_BATCH_BYTES // sum(columns[name].row_bytes for name in types)))
            past = dict.fromkeys(value_columns(shape), 0)
            for start in range(0, shape.items, most):
                count = min(most, shape.items - start)
                arrays = {name: columns[name].read(count) for name in types}
                yield from _value_batches(shape, arrays, columns, past)
            for column in columns.values():
                column.check_end()

    def end(self) -> bytes:
        try:
            with self._archive.open(END_MEMBER) as member:
                return member.read(MAX_NPY_HEADER)
        except (*DAMAGED_ZIP, KeyError) as error:
            raise self._damaged(error) from error

    def close(self) -> None:
        self._files.close()


class _ArrayMember:
    """An array of an archive, read from its start."""

    def __init__(self, archive: zipfile.ZipFile, name: str, dtype: str, row_shape: tuple[int, ...]) -> None:
        self._name, self._dtype, self._row_shape = name, np.dtype(dtype), row_shape
        self.row_bytes = self._dtype.itemsize * math.prod(row_shape)
        self._file = archive.open(f"{name}.npy")
        with ExitStack() as on_error:
            on_error.callback(self._file.close)  # otherwise the archive stays open, too
            self.length = self._read_header()
            on_error.pop_all()

    def _read_header(self) -> int:
        """Return the number of rows; BadState unless the array has the expected type."""
        name, row_shape = self._name, self._row_shape
        with parsing(name):
            version = npy.read_magic(self._file)
            if version != (1, 0):
                raise BadState(f"{name}: expected npy format 1.0, got {version}")
            shape, fortran, stored = npy.read_array_header_1_0(self._file, max_header_size=MAX_NPY_HEADER)
            if fortran or stored != self._dtype or len(shape) != 1 + len(row_shape) or shape[1:] != row_shape:
                raise BadState(f"{name}: expected rows {row_shape} of {self._dtype}, got an array {shape} of {stored}")
            return int(shape[0])

    def __enter__(self) -> "_ArrayMember":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, rows: int) -> NDArray[Any]:
        """Return the next rows."""
        size = rows * self.row_bytes
        data = self._file.read(size)
        if len(data) != size:
            raise BadState(f"{self._name}: expected {size} bytes more, got {len(data)}")
        return np.frombuffer(data, self._dtype).reshape(rows, *self._row_shape)

    def check_end(self) -> None:
        """Raise BadState if there is more; at the end the checksum is compared."""
        if self._file.read(1):
            raise BadState(f"{self._name}: expected no more rows, got some")


def _value_batches(
    shape: ExportShape, arrays: dict[str, NDArray[Any]], columns: dict[str, _ArrayMember], past: dict[str, int]
) -> Iterator[ItemBatch]:
    """Yield the rows of these arrays with their texts and bytes, in batches of limited size; advance `past`."""
    names, count = tuple(past), len(arrays["rows"])
    sizes = np.stack([np.diff(arrays[f"{name}_ends"], prepend=past[name]) for name in names])
    if sizes.min() < 0 or sizes.max() > MAX_ITEM_BYTES:
        raise BadState(f"ends: expected ascending ends of values of at most {MAX_ITEM_BYTES} bytes, got others")
    start = 0
    for stop in _batch_ends(sizes.sum(axis=0)):
        values = {}
        for name, lengths in zip(names, sizes[:, start:stop].tolist(), strict=True):
            packed, at = columns[f"{name}_data"].read(sum(lengths)).tobytes(), 0
            values[name] = [packed[(at := at + length) - length : at] for length in lengths]
        part = {name: array[start:stop] for name, array in arrays.items()}
        yield _parse_values(shape, part, values)
        start = stop
    past |= {name: int(arrays[f"{name}_ends"][count - 1]) for name in names}


def _batch_ends(sizes: NDArray[np.int64]) -> Iterator[int]:
    """Yield where batches of at most about MAX_BATCH_BYTES end."""
    size = 0
    for place, row_bytes in enumerate(sizes.tolist()):
        if place and size + row_bytes > MAX_BATCH_BYTES:
            yield place
            size = 0
        size += row_bytes
    yield len(sizes)


@parsing("npz")
def _parse_values(shape: ExportShape, arrays: dict[str, NDArray[Any]], values: dict[str, list[bytes]]) -> ItemBatch:
    if shape.ids == "integers":
        ids: list[Any] = arrays["ids"].tolist()
    else:
        ids = shape.parse_ids([data.decode() for data in values["ids"]])
    labels, metadata = ([data.decode() for data in values[name]] for name in ("labels", "metadata"))
    pictures = [data or None for data in values["pictures"]]
    coded = arrays.get("codes"), arrays.get("feature_digests"), arrays.get("features"), arrays.get("rescoring")
    return ItemBatch(arrays["rows"], ids, labels, [text or None for text in metadata], pictures, *coded)
