"""Codes of a data set, made by a cluster: a part is a task, and every row is encoded once, whatever dies meanwhile."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stillhash.cluster.manifest import fix, planned, read_plan, tidy
from stillhash.cluster.part_files import CODES, ITEMS, Items, read_part, write_part
from stillhash.cluster.sources import SourcePart, find_source, read_part_rows
from stillhash.cluster.tasks import each
from stillhash.collection.encoder_alignment import identify
from stillhash.collection.storage.sealed_files import read_sealed, write_sealed
from stillhash.collection.types import Id, check_ids, check_path
from stillhash.encoders import open_encoder
from stillhash.errors import BadState, InvalidInput
from stillhash.hashers import METHODS, Hasher, LinearHasher
from stillhash.numeric.codes import width
from stillhash.numeric.validation import check_integer

FUNCTIONS = "functions.safetensors"

Progress = Callable[[int, int, int, float], None]  # parts done, parts, rows done, rows per second of this run


class Encoded(NamedTuple):
    """What became of a data set."""

    parts: int
    rows: int
    made: int  # rows that this run encoded; the others were there
    broken: dict[str, str]  # files that are no images, and why
    seconds: float


def silent(parts_done: int, parts: int, rows: int, rows_per_second: float) -> None:
    """Progress that nobody hears."""


def encode_dataset(
    source: Any,
    hasher: Hasher,
    out: str | Path,
    *,
    encoder: str | None = None,
    rows_per_part: int = 131_072,
    at_once: int | None = None,
    progress: Progress = silent,
) -> Encoded:
    """Encodes all rows of a source, into parts in the folder `out`, which all machines see.

    source : a folder of .npy or Parquet files, one of them or a list; with an `encoder`, by its name, a folder of
        images (sources.py says what may lie there).
    hasher : fitted, and one whose codes never change; or its hash functions alone.
    rows_per_part : of a task; a process that dies costs no more than this.
    at_once : tasks under way; None for what the cluster has cores for.

    Calling it again after it was interrupted, anywhere, goes on with what is missing. Conflict if the source, the
    hash functions or the parts are not those that `out` was begun with.
    """
    out, began = check_path(out), time.perf_counter()
    if at_once is not None:
        check_integer(at_once, "at_once", 1)
    functions = still_functions(hasher)
    state = functions.state()
    about = {
        "functions": hashlib.sha256(state).hexdigest(),
        "bits": functions.bits,
        "columns": functions.n_features_in_,
    }
    if encoder is not None:
        opened = open_encoder(encoder)
        about["origin"] = identify(opened)._asdict()
        if opened.dim != functions.n_features_in_:
            raise InvalidInput(f"encoder {encoder} makes {opened.dim} features, the hasher wants {about['columns']}")
    found = find_source(source, encoder)
    parts = found.parts(rows_per_part)
    plan = planned(found, parts, about)
    fix(plan, out)
    write_sealed(out / FUNCTIONS, [state])
    broken: dict[str, str] = {}
    rows = made = 0
    work = ((str(found.folder), encoder, part, str(out)) for part in parts)
    for done, (_, (here, new, bad)) in enumerate(each(encode_part, state, work, at_once), 1):
        rows, made, broken = rows + here, made + (here if new else 0), broken | bad
        progress(done, len(parts), rows, made / max(1e-9, time.perf_counter() - began))
    tidy(plan, out, (CODES, ITEMS))
    return Encoded(len(parts), rows, made, dict(sorted(broken.items())), time.perf_counter() - began)


def encode_part(
    state: bytes, folder: str, encoder: str | None, part: SourcePart, out: str
) -> tuple[int, bool, dict[str, str]]:
    """A task: rows of a part, whether they are new, and its broken files."""
    functions = LinearHasher.load(state)
    try:
        segment, items = read_part(Path(out), part.number, part.first, functions.bits)
        return segment.rows, False, items.broken
    except BadState:
        pass  # it is not there, or not whole
    codes, ids = [np.empty((0, width(functions.bits)), np.uint8)], list[Id]()
    items, at = Items(ids, [], [], None if encoder is None else [], {}), part.first
    for rows in read_part_rows(Path(folder), encoder, part, functions.n_features_in_):
        codes.append(functions.encode_checked(rows.features))
        ids += range(at, at + len(rows.features)) if rows.ids is None else rows.ids
        items.labels.extend(rows.labels)
        items.metadata.extend(rows.metadata)
        items.broken.update(rows.broken or {})
        if items.pictures is not None:
            items.pictures.extend(rows.pictures or [])
        at += len(rows.features)
    check_ids(ids)
    write_part(Path(out), part.number, part.first, np.concatenate(codes), items, functions.bits)
    return len(ids), True, items.broken


def still_functions(hasher: Hasher) -> LinearHasher:
    """The hash functions of a hasher whose codes never change."""
    if not (hasher.fixed_codes or hasher.name == LinearHasher.name):
        still = ", ".join(name for name, known in METHODS.items() if known.fixed_codes)
        raise InvalidInput(f"hasher is {hasher!r}, whose codes go stale; they never do with {still}")
    hasher.encode(np.empty((0, getattr(hasher, "n_features_in_", 1)), np.float32))  # refuses one that is not fitted
    return hasher.functions()


def functions_in(out: Path) -> LinearHasher:
    """The hash functions that made the parts in this folder."""
    state, about = read_sealed(out / FUNCTIONS), read_plan(out).about
    if hashlib.sha256(state).hexdigest() != about["functions"]:
        raise BadState(f"{out.name}/{FUNCTIONS} is not what made the codes: its fingerprint differs")
    return LinearHasher.load(state)
