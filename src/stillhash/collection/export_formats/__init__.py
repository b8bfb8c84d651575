"""The formats of exports: JSON lines, Parquet and npz. Each holds the same records and items, and their digest."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stillhash.collection.export_formats.jsonl import JsonLinesExportReader, JsonLinesExportWriter
from stillhash.collection.export_formats.npz import NpzExportReader, NpzExportWriter
from stillhash.collection.export_formats.parquet import ParquetExportReader, ParquetExportWriter
from stillhash.collection.export_formats.records import ExportReader, ExportShape, ExportWriter
from stillhash.errors import BadState, InvalidInput

WRITERS: dict[str, Callable[[Path, ExportShape], ExportWriter]] = {
    "jsonl": JsonLinesExportWriter,
    "parquet": ParquetExportWriter,
    "npz": NpzExportWriter,
}
READERS: dict[str, Any] = {"jsonl": JsonLinesExportReader, "parquet": ParquetExportReader, "npz": NpzExportReader}


def check_export_format(name: Any, path: Path) -> str:
    """Return the name of a format: this one, or that of the suffix of a file."""
    chosen = path.suffix.removeprefix(".").lower() if name is None else name
    if not isinstance(chosen, str) or chosen not in WRITERS:
        raise InvalidInput(f"format: expected one of {', '.join(WRITERS)}, or a file that ends so, got {chosen!r}")
    return chosen


def export_format(path: Path) -> str | None:
    """Return the format of an export; None if the file is none."""
    with path.open("rb") as file:
        start = file.read(64)
    return next((name for name, reader in READERS.items() if reader.matches(path, start)), None)


def open_export(path: Path) -> ExportReader:
    """Open an export to read it; BadState if the file is none."""
    name = export_format(path)
    if name is None:
        raise BadState(f"{path.name}: expected a file that `export` wrote, got another one")
    reader: ExportReader = READERS[name](path)
    return reader
