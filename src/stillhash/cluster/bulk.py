"""Turn a data set into a collection: fit on its first rows, encode and learn on all machines, publish in one commit.

Every step can be interrupted, and continues when it is started again. The hasher is fitted once and stored beside the
parts, since all codes must come from the same hash functions.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

import stillhash.collection as collections
from stillhash.cluster.datasets import encode_dataset, hash_functions, learn_dataset
from stillhash.cluster.jobs import (
    Manifest,
    ProgressCallback,
    collection_id,
    fingerprint,
    read_manifest,
    read_part,
    read_rescoring,
)
from stillhash.cluster.sources import Source, SourcePaths, count_columns, find_source, read_part_rows
from stillhash.collection import Collection
from stillhash.collection.settings import check_codes_see_labels, check_rescore_bits, new_hasher
from stillhash.collection.storage.lexical import check_new_field
from stillhash.collection.storage.schema import ADDITIVE_METHOD
from stillhash.collection.storage.segments import Segment
from stillhash.collection.transfer.bulk_load import bulk_load, is_loaded
from stillhash.collection.validation import ItemRows, check_filter_fields, check_path
from stillhash.errors import BadState, Conflict
from stillhash.files import read_sealed, write_sealed
from stillhash.hashers import DEFAULT_HASHER, Hasher, check_fixed_codes, load
from stillhash.numeric.rescoring import Rescorer
from stillhash.numeric.validation import Codes, check_integer, check_number

HASHER_NAME = "hasher.safetensors"  # a sealed file


def ingest(
    source: SourcePaths,
    path: str | Path,
    *,
    bits: int = collections.DEFAULT_BITS,
    method: str = DEFAULT_HASHER.name,
    codes_see_labels: bool = True,
    encoder: str | None = None,
    sample: int = 3000,
    learn: bool = True,
    rescore_bits: int | None = None,
    parts: str | Path | None = None,
    progress: ProgressCallback = lambda *_: None,
) -> Collection:
    """Create a collection at `path` from all rows of a source (sources.py); the folder `parts` holds work under way.

    codes_see_labels, rescore_bits : as for `stillhash.open`; other methods than Tally give no rescoring codes. sample :
    rows from the beginning that the hash functions are fitted on; codes hold the labels that it has, so it should have
    most of them. learn : whether to learn from labels, which needs a method that can be merged.
    """
    path = check_path(path)
    out = path.with_name(f"{path.name}.parts") if parts is None else check_path(parts)
    settings = {"bits": bits, "method": check_fixed_codes(method), "params": {}}
    settings["codes_see_labels"] = check_codes_see_labels(codes_see_labels, method)
    settings["rescore_bits"] = rescore_bits if method == ADDITIVE_METHOD else 0
    hasher = _fit_once(find_source(source, encoder), out, settings, check_integer(sample, "sample", 300))
    encode_dataset(source, hasher, out, encoder=encoder, progress=progress)
    learnt = 0
    if learn:
        hasher, learnt, _ = learn_dataset(
            source, hasher, codes=out, out=out / "learnt", encoder=encoder, progress=progress
        )
    return publish(out, path, hasher, learnt=learnt)


def publish(
    out: str | Path,
    path: str | Path,
    hasher: Hasher,
    *,
    learnt: int = 0,
    init_rows: int = 3000,
    learn_rows: int = 1000,
    keep_versions: int = 32,
    source_cap: float = 1000.0,
    filter_fields: Iterable[str] | None = None,
    lexical_field: str | None = None,
) -> Collection:
    """Create a collection from the parts that `encode_dataset` wrote to `out`: with all its items, or not at all.

    Its segments are hard links to the files in `out` where possible, and `out` is not needed any more. Its first
    version is what the hasher has learnt, from `learnt` rows; the other settings are those of `stillhash.open`. Calling
    it again opens the collection.
    """
    out, path = check_path(out), check_path(path)
    settings = {
        "init_rows": check_integer(init_rows, "init_rows", 1),
        "learn_rows": check_integer(learn_rows, "learn_rows", 1),
        "keep_versions": check_integer(keep_versions, "keep_versions", 2),
        "source_cap": check_number(source_cap, "source_cap", above=0),
        "filter_fields": check_filter_fields(filter_fields),
        "lexical_field": check_new_field(lexical_field),
    }
    manifest = read_manifest(out)
    if fingerprint(hash_functions(hasher).state()) != manifest.job["functions"]:
        raise Conflict(f"hasher: expected the hash functions that encoded {out.name}, got others")
    source = fingerprint(manifest.to_json() + hasher.state())
    if not is_loaded(path, source):
        stored = {**settings, "encoder": manifest.job.get("origin")}
        rows = check_integer(learnt, "learnt", 0)
        name = collection_id(manifest)
        bits, encoded = hasher.rescore_bits, manifest.job.get("rescore_bits", 0)
        if bits not in (0, encoded):
            raise Conflict(f"rescore_bits: expected {encoded}, with which {out.name} was encoded, got {bits}")
        batches = _batches(out, manifest, Rescorer(manifest.job["columns"], bits) if bits else None)
        bulk_load(path, hasher, batches, id=name, source=source, learnt=rows, settings=stored)
    return collections.open(path)


def _batches(
    out: Path, manifest: Manifest, rescorer: Rescorer | None
) -> Iterator[tuple[Segment, ItemRows, Codes | None]]:
    for number, (first, _) in enumerate(manifest.parts):
        try:
            segment, items = read_part(out, number, first, manifest.job["bits"])
            codes = None if rescorer is None else read_rescoring(out, number, segment.rows, rescorer.width)
        except BadState as error:
            place = f"part {number} of {len(manifest.parts)} in {out.name}"
            raise BadState(f"{place} is missing or damaged: {error}. Call encode_dataset to encode it.") from error
        yield segment, ItemRows(items.ids, list(map(json.dumps, items.labels)), items.metadata, items.pictures), codes


def _fit_once(source: Source, out: Path, settings: dict[str, Any], sample: int) -> Hasher:
    """Return the hasher of the job in this folder, or fit one on the first rows of the source."""
    file = out / HASHER_NAME
    if file.is_file():
        hasher = load(read_sealed(file))
        stored = {"bits": hasher.bits, "method": hasher.name, "codes_see_labels": hasher.codes_see_labels}
        stored["rescore_bits"] = hasher.rescore_bits
        for name, value in stored.items():
            if settings[name] not in (None, value):
                raise Conflict(f"{name}: expected {value}, as in {out.name}, got {settings[name]}")
        return hasher
    columns, parts = count_columns(source), source.parts(sample)
    settings = settings | {"rescore_bits": check_rescore_bits(settings["rescore_bits"], settings | {"dim": columns})}
    blocks = chain.from_iterable(read_part_rows(source.folder, source.encoder, part, columns) for part in parts)
    rows = chain.from_iterable(zip(block.features, block.labels, strict=True) for block in blocks)
    features, labels = zip(*islice(rows, sample), strict=True)
    hasher = new_hasher(settings).fit(np.stack(features), list(labels))
    out.mkdir(parents=True, exist_ok=True)
    write_sealed(file, [hasher.state()])
    return hasher
