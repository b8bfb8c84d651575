"""What an export holds, in any format: a header, records of the state, items, and a digest of all of it.

The header and the records are lines of JSON, the same bytes in every format. The first line is the header, the last
one `{"record": "items"}`. Bytes are written in base64. A reader refuses what it does not know.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from stillhash.collection.storage.exported_items import ItemBatch
from stillhash.collection.storage.schema import parsing
from stillhash.collection.types import Id
from stillhash.errors import BadState
from stillhash.numeric.codes import width
from stillhash.numeric.rescoring import Rescorer

EXPORT_FORMAT = 1
EXPORT_KEY = "stillhash_export"  # the first key of the header
MAX_RECORD_BYTES = 1 << 30  # of a line of the state
MAX_ITEM_BYTES = 1 << 29  # of an item, in any format
ITEMS_LINE = b'{"record": "items"}\n'
ID_KINDS = ("integers", "texts", "mixed")  # mixed: as JSON, `7` or `"7"`
NONE = type(None)
Kinds = dict[str, tuple[type, ...]]

HEADER_FIELDS: Kinds = {
    **{EXPORT_KEY: (int,), "settings": (dict,), "items": (int,), "fitted": (bool,), "features": (bool,), "ids": (str,)},
    **{"next_row": (int,), "version": (int,), "unlabelled": (int,)},
}
RECORD_FIELDS: dict[str, Kinds] = {
    "functions": {"data": (bytes,)},
    "learner": {"version": (int,), "data": (bytes,)},
    "version": {
        **{"version": (int,), "created": (str,), "kind": (str,), "rows": (int,), "tag": (str, NONE), "side": (str,)},
        **{"model": (bytes, NONE), "learner": (int, NONE), "notes": (dict,)},
    },
    "history": {"history": (dict,)},
    "label_agreement": {"data": (bytes,)},
    "alignment": {"encoder": (str,), "data": (bytes,)},
    "pending": {
        **{"row": (int,), "features": (bytes,), "labels": (list,), "code": (bytes, NONE), "own_features": (int,)},
    },
    "learnt_row": {"version": (int,), "position": (int,), "row": (int,), "labels": (list,)},
    "summed_row": {"row": (int,), "labels": (list,), "learnt": (int,), "version": (int,)},
    "removal": {"rescoring": (bytes,), "code": (bytes,), "labels": (list,), "learnt": (int,)},
    "other_summed_rows": {"rows": (int,)},
    "doubtful_label": {"row": (int,), "agreement": (float,), "predicted": (list,)},
    "voted_query": {"query": (bytes,)},
    "vote": {
        **{"version": (int,), "digest": (bytes,), "item": (int, str), "source": (str,), "vote": (float,)},
        **{"position": (int, NONE), "code": (bytes,), "labels": (list,)},
    },
    "items": {},
}
Record = dict[str, Any]


class ExportShape(NamedTuple):
    """What the items of an export have."""

    items: int
    dim: int
    bits: int
    fitted: bool  # codes, and digests of features
    features: bool  # while there are no codes, or where they are kept
    ids: str  # one of ID_KINDS
    rescoring_bytes: int  # of each rescoring code; 0 where there are none

    @classmethod
    def of(cls, header: "Record") -> "ExportShape":
        """Return what a header says of the items."""
        settings, rescoring_bytes = header["settings"], 0
        if header["fitted"] and settings.get("rescore_bits", 0):
            rescoring_bytes = Rescorer(settings["dim"], settings["rescore_bits"]).width
        sizes = header["items"], settings["dim"], settings["bits"]
        return cls(*sizes, header["fitted"], header["features"], header["ids"], rescoring_bytes)

    @property
    def code_bytes(self) -> int:
        return width(self.bits)

    def id_texts(self, ids: list[Id]) -> list[str]:
        """Return ids as texts, for a format whose columns have one type."""
        return [json.dumps(name) for name in ids] if self.ids == "mixed" else [str(name) for name in ids]

    def parse_ids(self, texts: list[str]) -> list[Id]:
        """Return the ids that `id_texts` wrote."""
        return [json.loads(text) for text in texts] if self.ids == "mixed" else [*texts]


class ExportWriter(Protocol):
    """Write a file: lines of the state, then items, then the line that ends it."""

    def write_state(self, line: bytes) -> None: ...
    def begin_items(self) -> None: ...
    def write_items(self, batch: ItemBatch) -> None: ...
    def finish(self, end: bytes) -> None: ...
    def close(self) -> None: ...


class ExportReader(Protocol):
    """Read such a file in the same order; a caller reads all of it."""

    def state_lines(self) -> Iterator[bytes]: ...
    def batches(self, shape: ExportShape) -> Iterator[ItemBatch]: ...
    def end(self) -> bytes: ...
    def close(self) -> None: ...


def header_line(header: Record) -> bytes:
    """Return the first line of an export."""
    return json.dumps({EXPORT_KEY: EXPORT_FORMAT, **header}).encode() + b"\n"


def parse_header(line: bytes) -> Record:
    """Return the header; BadState if it is of another version or has unknown members."""
    with parsing("header"):
        header = json.loads(line)
        if not isinstance(header, dict) or EXPORT_KEY not in header:
            raise BadState("header: expected that of an export, got something else")
        if header[EXPORT_KEY] != EXPORT_FORMAT:
            raise BadState(f"header: expected export format {EXPORT_FORMAT}, got {header[EXPORT_KEY]!r:.100}")
        _check_fields(header, HEADER_FIELDS, "header")
        if header["ids"] not in ID_KINDS or min(header["items"], header["next_row"]) < 0:
            raise BadState(f"header: expected ids that are {', '.join(ID_KINDS)}, and counts, got others")
        if header["features"] != (not header["fitted"] or bool(header["settings"].get("keep_features", False))):
            raise BadState("header: expected features if they are kept or items wait for hash functions, and else none")
        return header


def record_line(name: str, **values: Any) -> bytes:
    """Return a record as a line, bytes in base64."""
    line = json.dumps({"record": name, **values}, allow_nan=False, default=_base64).encode() + b"\n"
    if len(line) > MAX_RECORD_BYTES:
        raise BadState(f"export: expected at most {MAX_RECORD_BYTES} bytes of the record {name}, got {len(line)}")
    return line


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def parse_record(line: bytes) -> tuple[str, Record]:
    """Return the name of a record, and its values; BadState if it is unknown, or has others than expected."""
    with parsing("record"):
        values = json.loads(line)
        name = values.pop("record", None) if isinstance(values, dict) else None
        if not isinstance(name, str) or name not in RECORD_FIELDS:
            raise BadState(f"record: expected one of {', '.join(RECORD_FIELDS)}, got {name!r:.100}. Is it newer?")
        fields = RECORD_FIELDS[name]
        for key in values.keys() & fields.keys():
            if bytes in fields[key] and isinstance(values[key], str):
                values[key] = base64.b64decode(values[key], validate=True)
        _check_fields(values, fields, name)
        return name, values


def _check_fields(values: Record, fields: Kinds, name: str) -> None:
    if values.keys() != fields.keys():
        names = ", ".join(sorted(values.keys() ^ fields.keys()))
        raise BadState(f"{name}: expected {', '.join(fields)}, got more or less: {names:.200}. Is it newer?")
    for key, kinds in fields.items():
        if type(values[key]) not in kinds:
            raise BadState(f"{name}: {key}: expected {kinds[0].__name__}, got {values[key]!r:.100}")


class ExportDigest:
    """Digest all that an export holds, whatever its format and its batches."""

    def __init__(self) -> None:
        self._parts = [hashlib.blake2b(digest_size=32) for _ in range(8)]
        self._count, self.items = 7, 0  # an export without rescoring codes has no eighth part

    def add_line(self, line: bytes) -> None:
        """Add a line of the state."""
        self._parts[0].update(line)

    def add_items(self, batch: ItemBatch) -> None:
        """Add items."""
        sizes = [-1 if data is None else len(data) for data in batch.pictures]
        columns = zip(map(json.dumps, batch.ids), batch.labels, batch.metadata, sizes, strict=True)
        self._parts[1].update("".join(f"{name}\n{a}\n{b}\n{size}\n" for name, a, b, size in columns).encode())
        self._parts[2].update(b"".join(data for data in batch.pictures if data is not None))
        arrays: list[NDArray[Any] | None] = [batch.rows, batch.codes, batch.digests, batch.features, batch.rescoring]
        for part, array in zip(self._parts[3:], arrays, strict=True):
            if array is not None:
                part.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
        self._count = 7 if batch.rescoring is None else 8
        self.items += len(batch.ids)

    def end_line(self) -> bytes:
        """Return the last line of an export."""
        parts = b"".join(part.digest() for part in self._parts[: self._count])
        digest = hashlib.blake2b(parts, digest_size=32).hexdigest()
        return json.dumps({"record": "end", "items": self.items, "digest": digest}).encode() + b"\n"
