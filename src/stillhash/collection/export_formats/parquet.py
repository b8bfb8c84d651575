"""Exports as Parquet: a row for each item. The state is in the file before the first row group, where tables have none.

Readers of Parquet follow the offsets in the footer, so what is between the magic word and the first row group is not
part of the table. The footer has the header's key, and the line with the digest.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from stillhash.collection.export_formats.records import (
    EXPORT_FORMAT,
    EXPORT_KEY,
    ITEMS_LINE,
    MAX_RECORD_BYTES,
    ExportShape,
)
from stillhash.collection.storage.exported_items import BATCH_ROWS, ItemBatch
from stillhash.collection.storage.schema import parsing
from stillhash.errors import BadState, MissingExtra, StillhashError, shortage
from stillhash.files.sealed_files import create_private, open_regular
from stillhash.numeric.feature_digests import NO_DIGEST

PARQUET_MAGIC = b"PAR1"
END_KEY = f"{EXPORT_KEY}_end"
MAX_GROUP_BYTES = 1 << 29  # of a row group, decompressed
READ_ROWS = 1024
NULLABLE_COLUMNS, NULLABLE_WITH_CODES = ("metadata", "picture"), ("feature_digest", "features")


def _pyarrow(name: str = "pyarrow") -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise MissingExtra("export: Parquet needs pyarrow: pip install 'stillhash[parquet]'") from None


def export_schema(shape: ExportShape) -> Any:
    """Return the columns of an export."""
    arrow = _pyarrow()
    columns = [("id", arrow.int64() if shape.ids == "integers" else arrow.string()), ("row", arrow.int64())]
    columns += [("labels", arrow.string()), ("metadata", arrow.string()), ("picture", arrow.binary())]
    if shape.fitted:
        columns += [("code", arrow.binary(shape.code_bytes)), ("feature_digest", arrow.int64())]
    if shape.features:
        columns += [("features", arrow.list_(arrow.float32()))]  # pyarrow reads null among lists of one size from 26 on
    if shape.rescoring_bytes:
        columns += [("rescoring", arrow.binary(shape.rescoring_bytes))]
    return arrow.schema(columns)


class ParquetExportWriter:
    """Write a row group for each batch."""

    def __init__(self, path: Path, shape: ExportShape) -> None:
        parquet = _pyarrow("pyarrow.parquet")
        self._shape, self._schema = shape, export_schema(shape)
        schema = self._schema.with_metadata({EXPORT_KEY: str(EXPORT_FORMAT)})
        self._sink = _pyarrow().OSFile(str(create_private(path)), "wb")
        self._writer = parquet.ParquetWriter(self._sink, schema, compression="zstd")  # writes the magic word

    def write_state(self, line: bytes) -> None:
        self._sink.write(line)

    def begin_items(self) -> None:
        """The first row group follows the state."""

    def write_items(self, batch: ItemBatch) -> None:
        arrow = _pyarrow()
        ids = batch.ids if self._shape.ids == "integers" else self._shape.id_texts(batch.ids)
        columns: list[Any] = [ids, batch.rows, batch.labels, batch.metadata, batch.pictures]
        if batch.codes is not None and batch.digests is not None:
            digests = arrow.array(batch.digests, mask=batch.digests == NO_DIGEST)
            columns += [[code.tobytes() for code in batch.codes], digests]
        if batch.features is not None:
            lost = np.isnan(batch.features[:, 0])
            ends = np.cumsum(np.where(lost, 0, self._shape.dim), dtype=np.int32)
            starts, values = arrow.array(np.insert(ends, 0, 0)), arrow.array(batch.features[~lost].ravel())
            columns += [arrow.ListArray.from_arrays(starts, values, mask=arrow.array(lost))]
        if batch.rescoring is not None:
            columns += [[code.tobytes() for code in batch.rescoring]]
        arrays = [arrow.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._writer.write_table(arrow.table(arrays, schema=self._schema), row_group_size=len(batch.ids))

    def finish(self, end: bytes) -> None:
        self._writer.add_key_value_metadata({END_KEY: end.decode()})
        self._writer.close()

    def close(self) -> None:
        try:
            self._writer.close()
        finally:
            self._writer.is_open = False  # after a failure it would try again when it is deleted
            self._sink.close()


class ParquetExportReader:
    """Read the state as lines, and the items by row groups that are not larger than expected."""

    def __init__(self, path: Path) -> None:
        self._path, self._module = path, _pyarrow("pyarrow.parquet")
        self._state = open_regular(path)

    @staticmethod
    def matches(path: Path, start: bytes) -> bool:
        """Return whether a file that starts so is one of these."""
        return start.startswith(PARQUET_MAGIC + f'{{"{EXPORT_KEY}": '.encode())

    def state_lines(self) -> Iterator[bytes]:
        self._state.seek(len(PARQUET_MAGIC))
        while True:
            line = self._state.readline(MAX_RECORD_BYTES + 1)
            if not line.endswith(b"\n"):
                raise BadState("export: expected lines of JSON before the first row group, got no such line")
            yield line
            if line == ITEMS_LINE:
                return

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        try:
            with parsing("export"), self._module.ParquetFile(self._path) as file:
                yield file
        except (OSError, _pyarrow().ArrowException) as error:
            if isinstance(error, StillhashError):
                raise
            raise shortage(error) or BadState(f"{self._path.name}: cannot be read as Parquet: {error}") from error

    def batches(self, shape: ExportShape) -> Iterator[ItemBatch]:
        with self._reading() as file:
            if not file.schema_arrow.equals(export_schema(shape)):
                raise BadState(f"{self._path.name}: expected the columns of an export, got {file.schema_arrow}")
            groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
            if any(not 0 <= group.total_byte_size <= MAX_GROUP_BYTES for group in groups):
                raise BadState(f"{self._path.name}: expected row groups of at most {MAX_GROUP_BYTES} bytes, got more")
            if file.metadata.num_rows != shape.items:
                raise BadState(f"{self._path.name}: expected {shape.items} rows, got {file.metadata.num_rows}")
            for batch in file.iter_batches(min(READ_ROWS, BATCH_ROWS), use_threads=False):
                batch.validate(full=True)
                yield _parse_batch(batch, shape)

    def end(self) -> bytes:
        with self._reading() as file:
            end: bytes = (file.metadata.metadata or {}).get(END_KEY.encode(), b"")
            return end

    def close(self) -> None:
        self._state.close()


def _parse_batch(batch: Any, shape: ExportShape) -> ItemBatch:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name, column in columns.items():
        if column.null_count and name not in (*NULLABLE_COLUMNS, *(NULLABLE_WITH_CODES if shape.fitted else ())):
            raise BadState(f"{name}: expected a value for each row, got null")
    rows = columns["row"].to_numpy(zero_copy_only=False).astype(np.int64)
    ids, labels, metadata, pictures = (columns[name].to_pylist() for name in ("id", "labels", "metadata", "picture"))
    names = ids if shape.ids == "integers" else shape.parse_ids(ids)
    features = None
    if shape.features:
        held = columns["features"].is_valid().to_numpy(zero_copy_only=False)
        flat = columns["features"].flatten()  # without those that are null
        lengths = columns["features"].value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        if flat.null_count or not np.array_equal(lengths, np.where(held, shape.dim, 0)):
            raise BadState(f"features: expected {shape.dim} numbers each, got others")
        features = np.full((len(rows), shape.dim), np.nan, np.float32)
        features[held] = flat.to_numpy(zero_copy_only=False).reshape(-1, shape.dim)
    if not shape.fitted:
        return ItemBatch(rows, names, labels, metadata, pictures, None, None, features)
    codes = np.frombuffer(b"".join(columns["code"].to_pylist()), np.uint8).reshape(len(rows), shape.code_bytes)
    digests = columns["feature_digest"].fill_null(NO_DIGEST).to_numpy(zero_copy_only=False)
    rescoring = None
    if shape.rescoring_bytes:
        data = b"".join(columns["rescoring"].to_pylist())
        rescoring = np.frombuffer(data, np.uint8).reshape(len(rows), shape.rescoring_bytes)
    return ItemBatch(rows, names, labels, metadata, pictures, codes, digests, features, rescoring)
