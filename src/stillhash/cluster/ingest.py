"""A dataset into a collection in one go: fit on its first rows, encode and learn on all machines, publish.

Every step can be interrupted and is gone on with by starting again. The hasher is fitted once and kept beside the
parts, since all codes must come from the same hash functions.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from stillhash.cluster.bulk import publish
from stillhash.cluster.encoding import Progress, encode_dataset, silent
from stillhash.cluster.learning import learn_dataset
from stillhash.cluster.sources import Source, count_columns, find_source, read_part_rows
from stillhash.collection import Collection
from stillhash.collection.storage.sealed_files import read_sealed, write_sealed
from stillhash.collection.types import check_path
from stillhash.errors import Conflict, InvalidInput
from stillhash.hashers import DEFAULT_HASHER, METHODS, Hasher, load
from stillhash.numeric.validation import check_integer

FITTED = "hasher.safetensors"  # a sealed file


def ingest(
    source: Any,
    path: str | Path,
    *,
    bits: int = 64,
    method: str = DEFAULT_HASHER.name,
    encoder: str | None = None,
    sample: int = 3000,
    learn: bool = True,
    parts: str | Path | None = None,
    progress: Progress = silent,
) -> Collection:
    """Makes a collection at `path` of all rows of a source (sources.py); `parts` holds what is under way.

    sample : rows from the beginning that the hash functions are fitted on. learn : whether labels are learnt from,
    which wants a method that can be merged.
    """
    path = check_path(path)
    out = path.with_name(f"{path.name}.parts") if parts is None else check_path(parts)
    hasher = _fitted(find_source(source, encoder), out, bits, method, check_integer(sample, "sample", 300))
    encode_dataset(source, hasher, out, encoder=encoder, progress=progress)
    learnt = 0
    if learn:
        told = learn_dataset(source, hasher, out=out / "learnt", encoder=encoder, progress=progress)
        hasher, learnt = told.hasher, told.rows
    return publish(out, path, hasher, learnt=learnt)


def _fitted(source: Source, out: Path, bits: int, method: str, sample: int) -> Hasher:
    """The hasher that work in this folder was begun with, or a new one."""
    file = out / FITTED
    if file.is_file():
        hasher = load(read_sealed(file))
        if hasher.bits != bits or hasher.name != method:
            raise Conflict(f"{out.name} was begun with {hasher.name} and {hasher.bits} bits; go on with those")
        return hasher
    if method not in METHODS or not METHODS[method].fixed_codes:
        raise InvalidInput(f"method is {method!r}; one whose codes never go stale is wanted")
    rows = list(islice(_first(source, sample), sample))
    features, labels = [x for x, _ in rows], [told for _, told in rows]
    hasher = METHODS[method](bits=bits).fit(np.stack(features), labels)
    out.mkdir(parents=True, exist_ok=True)
    write_sealed(file, [hasher.state()])
    return hasher


def _first(source: Source, count: int) -> Any:
    """Rows from the beginning, with their labels."""
    for part in source.parts(count):
        for rows in read_part_rows(source.folder, source.encoder, part, count_columns(source)):
            yield from zip(rows.features, rows.labels, strict=True)
