"""Encode a data set on a cluster, and learn from it: each part is a task, and an interrupted run continues.

Every row is encoded once, whatever fails meanwhile. Where codes see labels, labelled rows get codes that hold them, as
`Collection.add` would give them: one block of rows after the other, by the hasher as it is.

The statistics of a Tally add up, so tasks learn parts and these are merged: the result is that of one pass over all
rows on one machine, up to the last digits of float64; also with a half-life, where the statistics of earlier parts
decay by the rows that came after.
"""

import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
from numpy.typing import NDArray

from stillhash.cluster import jobs
from stillhash.cluster.jobs import PartItems, ProgressCallback, fingerprint
from stillhash.cluster.sources import SourcePart, SourcePaths, SourceRows, find_source, read_part_rows
from stillhash.collection.learning.encoder_alignment import identify
from stillhash.collection.storage.segments import CodedRows
from stillhash.collection.validation import check_ids, check_path
from stillhash.encoders import open_encoder
from stillhash.errors import BadState, InvalidInput
from stillhash.files import read_sealed, write_sealed
from stillhash.hashers import METHODS, Hasher, LinearHasher, Tally, check_fixed_codes, load
from stillhash.hashers.state import read_state
from stillhash.numeric.codes import feature_digests, from_tiles
from stillhash.numeric.labels import parse_labels
from stillhash.numeric.rescoring import Rescorer
from stillhash.numeric.validation import Codes, check_integer

LEARN_CHUNK_ROWS = 256  # at a time: products within such a chunk are float32, and few of them round little
MERGEABLE = [name for name, method in METHODS.items() if issubclass(method, Tally) and method.chunk_invariant]


class EncodingResult(NamedTuple):
    parts: int
    rows: int
    new_rows: int  # that this run encoded
    broken: dict[str, str]  # image files that cannot be read, and why
    seconds: float


class LearningResult(NamedTuple):
    hasher: Tally
    rows: int  # that had labels
    seconds: float


def encode_dataset(
    source: SourcePaths,
    hasher: Hasher,
    out: str | Path,
    *,
    encoder: str | None = None,
    rows_per_part: int = 131_072,
    max_tasks: int | None = None,
    progress: ProgressCallback = lambda *_: None,
) -> EncodingResult:
    """Encode all rows of a source, into part files in the folder `out`, which all machines see.

    source : a folder of .npy or Parquet files, one of them or a list; with an `encoder`, by its name, a folder of
        images (sources.py describes the formats).
    hasher : fitted, of a method with fixed codes; or its hash functions alone, for codes that hold no labels. With
        `rescore_bits` rows get rescoring codes too.
    rows_per_part : of a task; a process that dies costs no more than this.
    max_tasks : tasks under way; None for what the cluster has cores for.

    An interrupted run continues when it is called again. Conflict if the source, the hasher or the parts are not those
    that `out` was begun with.
    """
    out, began = check_path(out), time.perf_counter()
    if max_tasks is not None:
        check_integer(max_tasks, "max_tasks", 1)
    functions = hash_functions(hasher)
    state, columns = functions.state(), functions.n_features_in_
    job = {"functions": fingerprint(state), "bits": functions.bits, "columns": columns}
    shared = hasher.state() if hasher.codes_see_labels else state
    if hasher.codes_see_labels:
        job["hasher"] = fingerprint(shared)
    if hasher.rescore_bits:
        job["rescore_bits"] = hasher.rescore_bits
    if encoder is not None:
        opened = open_encoder(encoder)
        job["origin"] = identify(opened)._asdict()
        if opened.dim != columns:
            raise InvalidInput(f"encoder: expected {columns} features as the hasher, got {opened.dim} of {encoder}")
    files = find_source(source, encoder)
    parts = files.parts(rows_per_part)
    jobs.write_manifest(out, files, parts, job)
    write_sealed(out / jobs.FUNCTIONS_NAME, [state])
    rows, new_rows, broken = 0, 0, dict[str, str]()
    arguments = ((files.folder, encoder, part, out, hasher.rescore_bits) for part in parts)
    tasks = jobs.run_tasks(encode_part, shared, arguments, max_tasks)
    for done, (_, (part_rows, is_new, part_broken)) in enumerate(tasks, 1):
        rows, new_rows, broken = rows + part_rows, new_rows + part_rows * is_new, broken | part_broken
        progress(done, len(parts), rows, new_rows / max(1e-9, time.perf_counter() - began))
    jobs.remove_unfinished(out)
    return EncodingResult(len(parts), rows, new_rows, dict(sorted(broken.items())), time.perf_counter() - began)


def encode_part(
    state: bytes, folder: Path, encoder: str | None, part: SourcePart, out: Path, rescore_bits: int = 0
) -> tuple[int, bool, dict[str, str]]:
    """Encode a part, as a task, unless it is encoded; its rows, whether they are new, and its broken files."""
    hasher = load_encoder(state)
    functions = hash_functions(hasher)
    rescorer = Rescorer(hasher.n_features_in_, rescore_bits) if rescore_bits else None
    with suppress(BadState):  # missing, or damaged
        segment, items = jobs.read_part(out, part.number, part.first, hasher.bits)
        if rescorer is not None:
            jobs.read_rescoring(out, part.number, segment.rows, rescorer.width)
        return segment.rows, False, items.broken
    coded: list[CodedRows] = []
    rescoring: list[Codes] = []
    items = PartItems([], [], [], None if encoder is None else [], {})
    for rows in read_part_rows(folder, encoder, part, hasher.n_features_in_):
        numbers = part.first + len(items.ids) + np.arange(len(rows.features))
        coded.append(encode_rows(hasher, numbers, rows))
        if rescorer is not None:
            labelled = np.array(list(map(bool, rows.labels)), bool) & hasher.codes_see_labels
            codes = functions.rescoring_codes(rescorer, rows.features, coded[-1].codes, labelled, threads=1)
            rescoring.append(codes)
        items.ids.extend(numbers.tolist() if rows.ids is None else rows.ids)
        items.labels.extend(rows.labels)
        items.metadata.extend(rows.metadata)
        items.broken.update(rows.broken or {})
        if items.pictures is not None:
            items.pictures.extend(rows.pictures or [])
    check_ids(items.ids)
    if rescorer is not None:
        none = np.empty((0, rescorer.width), np.uint8)
        jobs.write_rescoring(out, part.number, np.concatenate([none, *rescoring]))
    jobs.write_part(out, part.number, CodedRows.join(coded, hasher.bits), items, hasher.bits)
    return len(items.ids), True, items.broken


def load_encoder(state: bytes) -> Hasher:
    """Return what encodes rows: a hasher whose codes see labels, or hash functions alone."""
    alone = read_state(state)[0]["method"] == LinearHasher.name
    return LinearHasher.load(state) if alone else load(state)


def encode_rows(hasher: Hasher, numbers: NDArray[np.int64], rows: SourceRows) -> CodedRows:
    """Encode a block of rows, with their labels where codes see labels."""
    labels = parse_labels(rows.labels, len(rows.labels)) if hasher.codes_see_labels else None
    return CodedRows(numbers, hasher.encode_checked(rows.features, labels, threads=1), feature_digests(rows.features))


def hash_functions(hasher: Hasher) -> LinearHasher:
    """Return the hash functions of a fitted hasher with fixed codes."""
    if hasher.name != LinearHasher.name:
        check_fixed_codes(hasher.name, "hasher")
    hasher.encode(np.empty((0, getattr(hasher, "n_features_in_", 1)), np.float32))  # refuses one that is not fitted
    return hasher.functions()


def learn_dataset(
    source: SourcePaths,
    hasher: Hasher,
    *,
    codes: str | Path | None = None,
    out: str | Path | None = None,
    encoder: str | None = None,
    rows_per_part: int = 131_072,
    progress: ProgressCallback = lambda *_: None,
) -> LearningResult:
    """Learn from all labelled rows of a source, and count the others; the given hasher stays as it is.

    source, encoder, rows_per_part : as for `encode_dataset`.
    codes : the folder that `encode_dataset` wrote, of the same source and parts, whose codes are learnt; None learns
        the codes that this hasher gives the rows.
    out : a folder for the statistics of parts, so that an interrupted run continues when it is called again.
    """
    began = time.perf_counter()
    if hasher.name not in MERGEABLE:
        raise InvalidInput(f"hasher: expected a method that can be merged ({', '.join(MERGEABLE)}), got {hasher!r}")
    state, job = hasher.state(), {"hasher": fingerprint(hasher.state())}
    folder, stored = (None if path is None else check_path(path) for path in (out, codes))
    files = find_source(source, encoder)
    parts = files.parts(rows_per_part)
    if stored is not None:
        job["codes"] = jobs.check_encoded(stored, files, parts, fingerprint(hasher.functions().state()))
    if folder is not None:
        jobs.write_manifest(folder, files, parts, job)
    learn, merges = jobs.remote_task(learn_part, returns=2), OrderedMerges()
    state_ref, queue, rows_done, parts_done = ray.put(state), iter(parts), 0, 0
    running: dict[Any, SourcePart] = {}
    while True:
        for part in islice(queue, max(0, jobs.most_tasks() - len(running))):
            learnt_part = learn.remote(state_ref, files.folder, encoder, part, folder, stored)
            merges.add(learnt_part)
            running[learnt_part[1]] = part
        if not running:
            break
        (done,), _ = ray.wait(list(running))
        jobs.get_result(done)
        part = running.pop(done)
        rows_done, parts_done = rows_done + part.end - part.first, parts_done + 1
        progress(parts_done, len(parts), rows_done, rows_done / max(1e-9, time.perf_counter() - began))
    learnt, rows = jobs.get_result(merges.result())
    if not rows:
        raise InvalidInput(f"source: expected rows with labels, got none in {source!r}")
    if folder is not None:
        jobs.remove_unfinished(folder)
    total, rows = merge_learnt(state, 0, learnt, rows)
    return LearningResult(Tally.load(total), rows, time.perf_counter() - began)


def learn_part(
    state: bytes, folder: Path, encoder: str | None, part: SourcePart, out: Path | None, stored: Path | None
) -> tuple[bytes, int]:
    """Learn from a part alone, by its stored codes or its own, as a task; the hasher's state and the labelled rows."""
    file = None if out is None else jobs.part_path(out, part.number, "sums")
    if file is not None:
        with suppress(BadState):  # missing, or damaged
            content = read_sealed(file)
            return content[8:], int.from_bytes(content[:8], "little")
    fitted, hasher, labelled, first = Tally.load(state), Tally.load(state).without_rows(), 0, 0
    if stored is not None:
        segment, _ = jobs.read_part(stored, part.number, part.first, hasher.bits)
        part_codes = from_tiles(segment.tiles, segment.rows)
    for rows in read_part_rows(folder, encoder, part, hasher.n_features_in_):
        end = first + len(rows.labels)
        codes = encode_rows(fitted, np.arange(first, end), rows).codes if stored is None else part_codes[first:end]
        for chunk in (slice(s, s + LEARN_CHUNK_ROWS) for s in range(0, len(rows.labels), LEARN_CHUNK_ROWS)):
            hasher.partial_fit(rows.features[chunk], rows.labels[chunk], codes[chunk])
        labelled += sum(map(bool, rows.labels))
        first = end
    learnt = hasher.state()
    if file is not None:
        write_sealed(file, [labelled.to_bytes(8, "little") + learnt])
    return learnt, labelled


class OrderedMerges:
    """Merge what parts have learnt, neighbours first, so that labels come in the order of the rows: a tree of tasks."""

    def __init__(self) -> None:
        self._merge = jobs.remote_task(merge_learnt, returns=2)
        self._trees: list[tuple[int, Any]] = []  # each with its depth, which falls from the first to the last

    def add(self, learnt: Any) -> None:
        """Add the result of the next part."""
        depth = 0
        while self._trees and self._trees[-1][0] == depth:
            learnt, depth = self._merge.remote(*self._trees.pop()[1], *learnt), depth + 1
        self._trees.append((depth, learnt))

    def result(self) -> list[Any]:
        """Return the result of all parts."""
        learnt = self._trees.pop()[1]
        while self._trees:
            learnt = self._merge.remote(*self._trees.pop()[1], *learnt)
        return list(learnt)


def merge_learnt(earlier: bytes, rows: int, later: bytes, more: int) -> tuple[bytes, int]:
    """Merge what two hashers learnt, as a task: the first from rows that came before those of the second."""
    hasher = Tally.load(earlier)
    if hasher.half_life is not None:
        hasher.stats_.decay(0.5 ** (more / hasher.half_life))
    return hasher.merge(Tally.load(later)).state(), rows + more
