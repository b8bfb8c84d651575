"""Exports as JSON lines: the header and the state, one item a line, and a last line with the digest."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stillhash.collection.export_formats.records import (
    EXPORT_KEY,
    ITEMS_LINE,
    MAX_ITEM_BYTES,
    MAX_RECORD_BYTES,
    ExportShape,
)
from stillhash.collection.storage.exported_items import BATCH_ROWS, MAX_BATCH_BYTES, ItemBatch
from stillhash.collection.storage.schema import parsing
from stillhash.collection.validation import JSON_ENCODER, json_text
from stillhash.errors import BadState
from stillhash.files.sealed_files import create_private, open_regular
from stillhash.numeric.feature_digests import NO_DIGEST
from stillhash.numeric.validation import Codes

HEADER_START = f'{{"{EXPORT_KEY}": '.encode()
END_START = b'{"record": "end"'
ITEM_FIELDS = {"id", "row", "labels", "metadata", "picture"}
CODE_FIELDS = {"code", "feature_digest"}


class JsonLinesExportWriter:
    """Write a line for each record and each item."""

    def __init__(self, path: Path, shape: ExportShape) -> None:
        self._file = create_private(path).open("wb")

    def write_state(self, line: bytes) -> None:
        self._file.write(line)

    def begin_items(self) -> None:
        """Nothing precedes the items."""

    def write_items(self, batch: ItemBatch) -> None:
        self._file.write("".join(map(_item_line, *_columns(batch))).encode())

    def finish(self, end: bytes) -> None:
        self._file.write(end)

    def close(self) -> None:
        self._file.close()


def _columns(batch: ItemBatch) -> Iterator[list[str]]:
    """Yield the values of each item as JSON: first the id; last, with their names, its code and its features."""
    yield list(map(json.dumps, batch.ids))
    yield list(map(str, batch.rows.tolist()))
    yield batch.labels
    yield [data or "null" for data in batch.metadata]
    yield ["null" if data is None else f'"{base64.b64encode(data).decode()}"' for data in batch.pictures]
    contents = [""] * len(batch.ids)
    if batch.codes is not None and batch.digests is not None:
        codes = [base64.b64encode(code).decode() for code in batch.codes]
        digests = ["null" if digest == NO_DIGEST else str(digest) for digest in batch.digests.tolist()]
        contents = [f', "code": "{a}", "feature_digest": {b}' for a, b in zip(codes, digests, strict=True)]
    if batch.features is not None:
        vectors = ["null" if row[0] != row[0] else json.dumps(row) for row in batch.features.tolist()]  # NaN: lost
        contents = [f'{content}, "features": {vector}' for content, vector in zip(contents, vectors, strict=True)]
    if batch.rescoring is not None:
        rescoring = [base64.b64encode(code).decode() for code in batch.rescoring]
        contents = [f'{content}, "rescoring": "{code}"' for content, code in zip(contents, rescoring, strict=True)]
    yield contents


def _item_line(name: str, row: str, labels: str, metadata: str, picture: str, content: str) -> str:
    return (
        f'{{"id": {name}, "row": {row}, "labels": {labels}, "metadata": {metadata}, "picture": {picture}{content}}}\n'
    )


class JsonLinesExportReader:
    """Read such lines, each within a limit."""

    def __init__(self, path: Path) -> None:
        self._file, self._last = open_regular(path), b""

    @staticmethod
    def matches(path: Path, start: bytes) -> bool:
        """Return whether a file that starts so is one of these."""
        return start.startswith(HEADER_START)

    def state_lines(self) -> Iterator[bytes]:
        while True:
            line = self._line(MAX_RECORD_BYTES)
            yield line
            if line == ITEMS_LINE:
                return

    def _line(self, most: int) -> bytes:
        line = self._file.readline(most + 1)
        if not line.endswith(b"\n"):
            raise BadState(f"export: expected lines of at most {most} bytes up to the last one, got another")
        return line

    def batches(self, shape: ExportShape) -> Iterator[ItemBatch]:
        lines: list[bytes] = []
        size = 0
        while not (line := self._line(MAX_ITEM_BYTES)).startswith(END_START):
            if lines and (len(lines) == BATCH_ROWS or size + len(line) > MAX_BATCH_BYTES):
                yield _parse_lines(lines, shape)
                lines, size = [], 0
            lines.append(line)
            size += len(line)
        if lines:
            yield _parse_lines(lines, shape)
        self._last = line

    def end(self) -> bytes:
        if self._file.read(1):
            raise BadState("export: expected nothing after the last line, got more")
        return self._last

    def close(self) -> None:
        self._file.close()


@parsing("item")
def _parse_lines(lines: list[bytes], shape: ExportShape) -> ItemBatch:
    items: list[dict[str, Any]] = [json.loads(line) for line in lines]
    fields = ITEM_FIELDS | (CODE_FIELDS if shape.fitted else set()) | ({"features"} if shape.features else set())
    fields |= {"rescoring"} if shape.rescoring_bytes else set()
    for item in items:
        if not isinstance(item, dict) or item.keys() != fields:
            raise BadState(f"item: expected {', '.join(sorted(fields))}, got {item!r:.200}")
    rows = np.array([item["row"] for item in items], np.int64)
    texts = (
        [JSON_ENCODER.encode(item["labels"]) for item in items],
        [None if item["metadata"] is None else json_text(item["metadata"]) for item in items],
    )
    pictures = [None if (data := item["picture"]) is None else base64.b64decode(data, validate=True) for item in items]
    ids = [item["id"] for item in items]
    features = None
    if shape.features:
        lost = [None] * shape.dim  # NaN
        features = np.array([item["features"] or lost for item in items], np.float64).astype(np.float32)
    if not shape.fitted:
        return ItemBatch(rows, ids, *texts, pictures, None, None, features)
    codes = _parse_codes(items, "code", shape.code_bytes)
    rescoring = _parse_codes(items, "rescoring", shape.rescoring_bytes) if shape.rescoring_bytes else None
    digests = np.array([NO_DIGEST if item["feature_digest"] is None else item["feature_digest"] for item in items])
    if digests.dtype != np.int64:
        raise BadState(f"item: feature_digest: expected 64-bit integers, got {digests.dtype}")
    return ItemBatch(rows, ids, *texts, pictures, codes, digests, features, rescoring)


def _parse_codes(items: list[dict[str, Any]], field: str, size: int) -> Codes:
    packed = [base64.b64decode(item[field], validate=True) for item in items]
    if {*map(len, packed)} != {size}:
        raise BadState(f"item: {field}: expected {size} bytes, got others")
    return np.frombuffer(b"".join(packed), np.uint8).reshape(len(items), size)
