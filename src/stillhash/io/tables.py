"""Tables: CSV and Parquet, in which columns have names."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from datetime import date, time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from stillhash.errors import InvalidInput, MissingExtra
from stillhash.io.rows import Row, labels_of, lines_of, metadata_of, number_or_text, parsed, word


def csv_table(path: Path) -> Iterator[Row]:
    """A header, then a row a line: id, labels as 'cat|dog', f0 f1 ... or features, metadata in all other columns."""
    csv.field_size_limit(2**31 - 1)  # features of thousands of dimensions are long cells
    done, start = 0.0, 1

    def text() -> Iterator[str]:
        nonlocal done
        for _, line, done in lines_of(path):  # noqa: B007
            yield line

    reader = csv.reader(text(), strict=True, skipinitialspace=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        columns = Columns(header, path)
        for cells in reader:
            where, start = f"{path.name}, line {start + 1}", reader.line_num
            if not cells:
                continue
            if len(cells) != len(header):
                raise InvalidInput(f"{where}: there are {len(cells)} cells; the header has {len(header)}")
            told = dict(zip(header, cells, strict=True))
            id_ = word(told["id"].strip()) if told.get("id", "").strip() else None
            labels = labels_of(told["labels"], where) if "labels" in told else None
            yield Row(
                where.removeprefix(f"{path.name}, "),
                done,
                id_,
                columns.features(told, where),
                labels,
                columns.metadata({k: number_or_text(v) for k, v in told.items() if v != ""}, where),
            )
    except csv.Error as error:
        raise InvalidInput(f"{path.name}, line {reader.line_num}: it is not CSV: {error}") from None


class Columns:
    """Which columns of a table hold what."""

    def __init__(self, header: list[str], path: Path) -> None:
        numbered = [name for name in header if re.fullmatch(r"f\d+", name, re.ASCII)]
        self.numbered = [f"f{number}" for number in range(len(numbered))]
        if len(set(header)) != len(header):
            twice = next(name for name in header if header.count(name) > 1)
            raise InvalidInput(f"{path.name}: there are two columns {twice!r}; names that differ are wanted")
        if set(numbered) != set(self.numbered):
            missing = next(name for name in self.numbered if name not in numbered)
            raise InvalidInput(f"{path.name}: there is no column {missing}; features are in f0, f1, ... without a gap")
        if bool(numbered) == ("features" in header):
            found = "both" if numbered else f"the columns {', '.join(header) or 'none'}"
            raise InvalidInput(f"{path.name}: there are {found}; columns f0, f1, ... or one column features are wanted")
        self.others = [name for name in header if name not in ("id", "features", "labels", *numbered)]

    def features(self, told: dict[str, str], where: str) -> Any:
        if not self.numbered:
            return parsed(told["features"], f"{where}: features")
        cells = [told[name] for name in self.numbered]
        try:
            return np.array(cells, np.float64)
        except ValueError:
            name = next(name for name in self.numbered if not _is_number(told[name]))
            raise InvalidInput(f"{where}: {name} is {told[name]!r}; a number is wanted") from None

    def metadata(self, told: dict[str, Any], where: str) -> dict[str, Any] | None:
        """All other columns as one object; a column of that name is one already."""
        if not self.others:
            return None
        whole = metadata_of(told.get("metadata"), where) or {}
        return whole | {name: told[name] for name in self.others if name in told and name != "metadata"} or None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def parquet(path: Path) -> Iterator[Row]:
    """Columns as in CSV; features and labels may be lists, and metadata a struct."""
    try:
        room = import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise MissingExtra(f"{path.name}: Parquet needs pyarrow: pip install 'stillhash[parquet]'") from None
    arrow = import_module("pyarrow")
    wrong: tuple[type[Exception], ...] = (arrow.ArrowException,)
    try:
        with room.ParquetFile(path) as file:
            columns, number = Columns(file.schema_arrow.names, path), 0
            for batch in file.iter_batches(batch_size=1000):
                plain = [name for name in batch.schema.names if name in ("id", "labels", *columns.others)]
                others = batch.select(plain).to_pylist() if plain else [{}] * len(batch)
                for told, features in zip(others, _vectors(batch, columns, arrow.types), strict=True):
                    where = f"{path.name}, row {number}"
                    present = {k: _plain(v) for k, v in told.items() if v is not None}
                    labels = labels_of(told["labels"], where) if "labels" in told else None
                    metadata = columns.metadata(present, where)
                    done = (number + 1) / file.metadata.num_rows
                    yield Row(f"row {number}", done, told.get("id"), features, labels, metadata)
                    number += 1
    except wrong as error:
        raise InvalidInput(f"{path.name}: it cannot be read as Parquet: {error}") from None


def _vectors(batch: Any, columns: Columns, types: Any) -> Iterator[Any]:
    if columns.numbered:
        yield from np.stack([batch.column(n).to_numpy(zero_copy_only=False) for n in columns.numbered], axis=1)
        return
    kind = batch.schema.field("features").type
    nested = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    for one in batch.column("features"):
        yield one.values.to_numpy(zero_copy_only=False) if nested and one.is_valid else one.as_py()


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, (date, time)) else value
