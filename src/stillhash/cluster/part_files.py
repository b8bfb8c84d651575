"""What lies on disk of a part that is encoded: its codes as a segment, and beside them what its rows are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from stillhash.cluster.manifest import name
from stillhash.collection.storage.sealed_files import read_sealed, write_sealed
from stillhash.collection.storage.segments import Segment, read_segment, write_segment
from stillhash.collection.types import Id
from stillhash.errors import BadState
from stillhash.numeric.validation import Codes

CODES, ITEMS = "tiles", "items"


class Items(NamedTuple):
    """One entry for each row of a part."""

    ids: list[Id]
    labels: list[list[Any]]
    metadata: list[str | None]  # JSON
    pictures: list[bytes | None] | None
    broken: dict[str, str]  # files that are no images, and why; they are no rows

    def as_bytes(self) -> bytes:
        told = {
            "ids": self.ids,
            "labels": self.labels if any(self.labels) else None,
            "metadata": None if all(one is None for one in self.metadata) else self.metadata,
            "broken": self.broken,
        }
        arrays = {"told": np.frombuffer(json.dumps(told).encode(), np.uint8)}
        if self.pictures is not None:
            sizes = [-1 if data is None else len(data) for data in self.pictures]
            joined = b"".join(data for data in self.pictures if data is not None)
            arrays |= {"sizes": np.array(sizes, np.int64), "pictures": np.frombuffer(joined, np.uint8)}
        return safetensors.numpy.save(arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> Items:
        try:
            arrays = safetensors.numpy.load(data)
            told = json.loads(arrays["told"].tobytes())
            ids, pictures = told["ids"], None
            if "pictures" in arrays:
                sizes, joined = arrays["sizes"], arrays["pictures"].tobytes()
                ends = np.cumsum(np.maximum(sizes, 0)).tolist()
                each = zip(sizes.tolist(), ends, strict=True)
                pictures = [None if size < 0 else joined[end - size : end] for size, end in each]
            labels, metadata = told["labels"] or [[] for _ in ids], told["metadata"] or [None] * len(ids)
            return cls(ids, labels, metadata, pictures, told["broken"])
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
            raise BadState(f"the items of a part cannot be read: {error}") from error


def write_part(out: Path, number: int, first: int, codes: Codes, items: Items, bits: int) -> None:
    """Each file is whole or not there; they are on disk when this returns."""
    write_sealed(out / "parts" / name(number, ITEMS), [items.as_bytes()])
    write_segment(out / "parts" / name(number, CODES), codes, np.arange(first, first + len(codes)), bits)


def read_part(out: Path, number: int, first: int, bits: int) -> tuple[Segment, Items]:
    """A part, once both files are held against their checksums; BadState if it is not there, or not whole."""
    segment = read_segment(out / "parts" / name(number, CODES), bits)
    items = Items.from_bytes(read_sealed(out / "parts" / name(number, ITEMS)))
    if len(items.ids) != segment.rows or (segment.rows and segment.first != first):
        raise BadState(f"part {number} of {out.name} has {segment.rows} codes for {len(items.ids)} items")
    return segment, items
