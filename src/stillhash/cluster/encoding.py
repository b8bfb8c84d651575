"""Encode a data set on a cluster: each part is a task, and every row is encoded once, whatever fails meanwhile."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stillhash.cluster.part_files import (
    CODES_SUFFIX,
    ITEMS_SUFFIX,
    PartItems,
    read_manifest,
    read_part,
    remove_unfinished,
    write_manifest,
    write_part,
)
from stillhash.cluster.sources import SourcePart, SourcePaths, find_source, read_part_rows
from stillhash.cluster.tasks import ProgressCallback, no_progress, run_tasks
from stillhash.collection.encoder_alignment import identify
from stillhash.collection.storage.sealed_files import read_sealed, write_sealed
from stillhash.collection.validation import check_ids, check_path
from stillhash.encoders import open_encoder
from stillhash.errors import BadState, InvalidInput
from stillhash.hashers import Hasher, LinearHasher, check_fixed_codes
from stillhash.numeric.codes import width
from stillhash.numeric.validation import check_integer

FUNCTIONS_NAME = "functions.safetensors"


class EncodingResult(NamedTuple):
    parts: int
    rows: int
    new_rows: int  # that this run encoded
    broken: dict[str, str]  # image files that cannot be read, and why
    seconds: float


def encode_dataset(
    source: SourcePaths,
    hasher: Hasher,
    out: str | Path,
    *,
    encoder: str | None = None,
    rows_per_part: int = 131_072,
    max_tasks: int | None = None,
    progress: ProgressCallback = no_progress,
) -> EncodingResult:
    """Encode all rows of a source, into part files in the folder `out`, which all machines see.

    source : a folder of .npy or Parquet files, one of them or a list; with an `encoder`, by its name, a folder of
        images (sources.py describes the formats).
    hasher : fitted, of a method with fixed codes; or its hash functions alone.
    rows_per_part : of a task; a process that dies costs no more than this.
    max_tasks : tasks under way; None for what the cluster has cores for.

    An interrupted run continues when it is called again. Conflict if the source, the hash functions or the parts are
    not those that `out` was begun with.
    """
    out, began = check_path(out), time.perf_counter()
    if max_tasks is not None:
        check_integer(max_tasks, "max_tasks", 1)
    functions = hash_functions(hasher)
    state, columns = functions.state(), functions.n_features_in_
    job = {"functions": hashlib.sha256(state).hexdigest(), "bits": functions.bits, "columns": columns}
    if encoder is not None:
        opened = open_encoder(encoder)
        job["origin"] = identify(opened)._asdict()
        if opened.dim != columns:
            raise InvalidInput(f"encoder: expected {columns} features as the hasher, got {opened.dim} of {encoder}")
    files = find_source(source, encoder)
    parts = files.parts(rows_per_part)
    manifest = write_manifest(out, files, parts, job)
    write_sealed(out / FUNCTIONS_NAME, [state])
    rows, new_rows, broken = 0, 0, dict[str, str]()
    tasks = run_tasks(encode_part, state, ((str(files.folder), encoder, part, str(out)) for part in parts), max_tasks)
    for done, (_, (part_rows, is_new, part_broken)) in enumerate(tasks, 1):
        rows, new_rows, broken = rows + part_rows, new_rows + part_rows * is_new, broken | part_broken
        progress(done, len(parts), rows, new_rows / max(1e-9, time.perf_counter() - began))
    remove_unfinished(out, manifest, (CODES_SUFFIX, ITEMS_SUFFIX))
    return EncodingResult(len(parts), rows, new_rows, dict(sorted(broken.items())), time.perf_counter() - began)


def encode_part(
    state: bytes, folder: str, encoder: str | None, part: SourcePart, out: str
) -> tuple[int, bool, dict[str, str]]:
    """Encode a part, as a task, unless it is encoded; its rows, whether they are new, and its broken files."""
    functions = LinearHasher.load(state)
    try:
        segment, items = read_part(Path(out), part.number, part.first, functions.bits)
        return segment.rows, False, items.broken
    except BadState:
        pass  # missing, or damaged
    codes = [np.empty((0, width(functions.bits)), np.uint8)]
    items = PartItems([], [], [], None if encoder is None else [], {})
    for rows in read_part_rows(Path(folder), encoder, part, functions.n_features_in_):
        codes.append(functions.encode_checked(rows.features))
        first = part.first + len(items.ids)
        items.ids.extend(range(first, first + len(rows.features)) if rows.ids is None else rows.ids)
        items.labels.extend(rows.labels)
        items.metadata.extend(rows.metadata)
        items.broken.update(rows.broken or {})
        if items.pictures is not None:
            items.pictures.extend(rows.pictures or [])
    check_ids(items.ids)
    write_part(Path(out), part.number, part.first, np.concatenate(codes), items, functions.bits)
    return len(items.ids), True, items.broken


def hash_functions(hasher: Hasher) -> LinearHasher:
    """Return the hash functions of a fitted hasher with fixed codes."""
    if hasher.name != LinearHasher.name:
        check_fixed_codes(hasher.name, "hasher")
    hasher.encode(np.empty((0, getattr(hasher, "n_features_in_", 1)), np.float32))  # refuses one that is not fitted
    return hasher.functions()


def read_functions(out: Path) -> LinearHasher:
    """Read the hash functions that encoded the parts in this folder."""
    state, job = read_sealed(out / FUNCTIONS_NAME), read_manifest(out).job
    if hashlib.sha256(state).hexdigest() != job["functions"]:
        raise BadState(f"{out.name}/{FUNCTIONS_NAME}: expected the fingerprint in the manifest, got another")
    return LinearHasher.load(state)
