"""Bulk jobs: a manifest, fixed before the first task, the part files that tasks write, and the tasks themselves.

    manifest.json            the files of the source as they were, what is computed from them, and the parts
    functions.safetensors    the hash functions; a sealed file. Where codes see labels, the manifest names their hasher
    parts/00000000.tiles     the codes of part 0: a segment, as in a collection
    parts/00000000.items     its ids, labels, metadata and pictures: a sealed file
    parts/00000000.sums      what a hasher learnt from part 0: a sealed file

A part depends on the manifest alone, so its files have the same bytes whichever task writes them and however often. A
task writes complete files or none. It may die with its machine and is then run elsewhere; a run that was interrupted
continues when it is started again.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
import safetensors
import safetensors.numpy
from ray.exceptions import RayError, RayTaskError

from stillhash.cluster.sources import Source, SourceFile, SourcePart
from stillhash.collection.storage.segments import CodedRows, Segment, read_segment, write_segment
from stillhash.collection.types import Id
from stillhash.errors import BadState, Conflict, InvalidInput, StillhashError, StoreFailed, Unreachable
from stillhash.files import read_sealed, remove_unlisted, write_durably, write_sealed
from stillhash.hashers import LinearHasher
from stillhash.numeric.validation import Codes

MANIFEST_FORMAT = 1
MANIFEST_NAME = "manifest.json"
FUNCTIONS_NAME = "functions.safetensors"
TASK_RETRIES = 5  # of a task whose process or machine died
TASKS_PER_CORE = 2  # under way, for each core of the cluster

ProgressCallback = Callable[[int, int, int, float], None]  # parts done, parts, rows done, rows per second of this run


class Manifest(NamedTuple):
    """What a job computes, from which files, and the first and end row of each part."""

    job: dict[str, Any]
    files: list[SourceFile]
    parts: list[tuple[int, int]]

    def to_json(self) -> bytes:
        content = {"format": MANIFEST_FORMAT, **self.job, "files": self.files, "parts": self.parts}
        return json.dumps(content, indent=0).encode()


def write_manifest(out: Path, source: Source, parts: list[SourcePart], job: dict[str, Any]) -> None:
    """Write the manifest of a job to its folder; Conflict if the folder has another one."""
    encoder = {} if source.encoder is None else {"encoder": source.encoder}
    manifest = Manifest({**job, **encoder}, source.files, [(part.first, part.end) for part in parts])
    try:
        (out / "parts").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreFailed(f"out: cannot write to {str(out)!r}: {error.strerror or error}") from error
    if not (out / MANIFEST_NAME).exists():
        write_durably(out / MANIFEST_NAME, [manifest.to_json()])
    if (existing := read_manifest(out)) != manifest:
        raise Conflict(f"out: {str(out)!r} holds another job: {_difference(existing, manifest)}. Use another folder.")


def read_manifest(out: Path) -> Manifest:
    """Read the manifest of a job from its folder."""
    try:
        job = json.loads((out / MANIFEST_NAME).read_bytes())
        version = job.pop("format")
        files = [SourceFile(*file) for file in job.pop("files")]
        parts = [(int(first), int(end)) for first, end in job.pop("parts")]
    except FileNotFoundError:
        raise InvalidInput(f"out: expected a folder with {MANIFEST_NAME}, got {str(out)!r}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadState(f"{out.name}/{MANIFEST_NAME} cannot be read: {error}") from error
    if version != MANIFEST_FORMAT:
        raise BadState(f"{out.name}/{MANIFEST_NAME}: expected format version {MANIFEST_FORMAT}, got {version}")
    return Manifest(job, files, parts)


def check_encoded(out: Path, source: Source, parts: list[SourcePart], functions: str) -> str:
    """Return the fingerprint of the manifest of codes; Conflict if they are not of these rows and hash functions."""
    existing = read_manifest(out)
    expected = Manifest({**existing.job, "functions": functions}, source.files, [(p.first, p.end) for p in parts])
    if existing != expected:
        raise Conflict(f"codes: {str(out)!r} holds those of another job: {_difference(existing, expected)}")
    return fingerprint(existing.to_json())


def read_functions(out: Path) -> LinearHasher:
    """Read the hash functions that encoded the parts in this folder."""
    state = read_sealed(out / FUNCTIONS_NAME)
    if fingerprint(state) != read_manifest(out).job["functions"]:
        raise BadState(f"{out.name}/{FUNCTIONS_NAME}: expected the fingerprint in the manifest, got another")
    return LinearHasher.load(state)


def fingerprint(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _difference(old: Manifest, new: Manifest) -> str:
    """Describe the first difference."""
    for key in sorted(old.job.keys() | new.job.keys()):
        if old.job.get(key) != new.job.get(key):
            return f"{key}: expected {old.job.get(key)}, got {new.job.get(key)}"
    before, after = ({file.name: file for file in manifest.files} for manifest in (old, new))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            change = "added" if name not in before else "removed" if name not in after else "changed"
            return f"source: {name} was {change}"
    return f"parts: expected {len(old.parts)}, got {len(new.parts)}, or the source's files in another order"


def part_path(out: Path, number: int, suffix: str) -> Path:
    return out / "parts" / f"{number:08d}.{suffix}"


def remove_unfinished(out: Path) -> None:
    """Remove what tasks that died left behind."""
    remove_unlisted(out / "parts", {file.name for file in (out / "parts").glob("[0-9]*")})


class PartItems(NamedTuple):
    """The items of a part, one entry for each row."""

    ids: list[Id]
    labels: list[list[Any]]
    metadata: list[str | None]  # JSON
    pictures: list[bytes | None] | None
    broken: dict[str, str]  # image files that cannot be read, and why; they are not rows

    def to_bytes(self) -> bytes:
        items = {
            "ids": self.ids,
            "labels": self.labels if any(self.labels) else None,
            "metadata": None if all(one is None for one in self.metadata) else self.metadata,
            "broken": self.broken,
        }
        arrays = {"items": np.frombuffer(json.dumps(items).encode(), np.uint8)}
        if self.pictures is not None:
            sizes = [-1 if data is None else len(data) for data in self.pictures]
            joined = b"".join(data for data in self.pictures if data is not None)
            arrays |= {"sizes": np.array(sizes, np.int64), "pictures": np.frombuffer(joined, np.uint8)}
        return safetensors.numpy.save(arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> "PartItems":
        try:
            arrays = safetensors.numpy.load(data)
            items = json.loads(arrays["items"].tobytes())
            ids, pictures = items["ids"], None
            if "pictures" in arrays:
                sizes, joined = arrays["sizes"], arrays["pictures"].tobytes()
                ends = np.cumsum(np.maximum(sizes, 0)).tolist()
                ranges = zip(sizes.tolist(), ends, strict=True)
                pictures = [None if size < 0 else joined[end - size : end] for size, end in ranges]
            labels, metadata = items["labels"] or [[] for _ in ids], items["metadata"] or [None] * len(ids)
            return cls(ids, labels, metadata, pictures, items["broken"])
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
            raise BadState(f"the items of a part cannot be read: {error}") from error


def collection_id(manifest: Manifest) -> bytes:
    """Return the id of the collection that is published from the parts of this job."""
    return bytes.fromhex(fingerprint(manifest.to_json()))[:16]


def write_part(out: Path, number: int, rows: CodedRows, items: PartItems, bits: int) -> None:
    """Write the files of a part; each is complete or missing, and on disk when this returns."""
    write_sealed(part_path(out, number, "items"), [items.to_bytes()])
    write_segment(part_path(out, number, "tiles"), rows, bits, collection_id(read_manifest(out)), number + 1)


def write_rescoring(out: Path, number: int, codes: Codes) -> None:
    """Write the rescoring codes of a part."""
    write_sealed(part_path(out, number, "rescoring"), [codes.tobytes()])


def read_rescoring(out: Path, number: int, rows: int, width: int) -> Codes:
    """Return the rescoring codes (rows, width) of a part; BadState if they are missing, damaged or of other rows."""
    content = np.frombuffer(read_sealed(part_path(out, number, "rescoring")), np.uint8)
    if len(content) != rows * width:
        raise BadState(
            f"part {number} of {out.name}: expected rescoring codes of {rows} rows, got {len(content)} bytes"
        )
    return content.reshape(rows, width)


def read_part(out: Path, number: int, first: int, bits: int) -> tuple[Segment, PartItems]:
    """Read a part and verify the checksums of its files; BadState if one is missing, damaged or of another job."""
    segment = read_segment(part_path(out, number, "tiles"), bits)
    if segment.identity[:2] != (collection_id(read_manifest(out)), number + 1):
        raise BadState(f"part {number} of {out.name}: expected codes of this job and part, got others")
    items = PartItems.from_bytes(read_sealed(part_path(out, number, "items")))
    if len(items.ids) != segment.rows or (segment.rows and segment.first != first):
        raise BadState(f"part {number} of {out.name}: expected {segment.rows} items, got {len(items.ids)}")
    return segment, items


def remote_task(function: Callable[..., Any], returns: int = 1) -> Any:
    """Make a function a Ray task of one core, on any node."""
    return ray.remote(num_cpus=1, max_retries=TASK_RETRIES, num_returns=returns)(function)


def most_tasks() -> int:
    """Return how many tasks to have under way: a few for each core that the cluster has now."""
    return TASKS_PER_CORE * max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]


def run_tasks(
    function: Callable[..., Any], shared: Any, arguments: Iterable[tuple[Any, ...]], max_tasks: int | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield the results of function(shared, *arguments[n]) as they come, each with its n.

    At most `max_tasks` are under way, or a few for each core that the cluster has at the time. When one fails
    permanently, no more are started, and those under way end by themselves: to cancel a task that is about to end
    makes Ray 2.60 end this process (https://github.com/ray-project/ray/pull/54798 mends a case of it).
    """
    remote, queue = remote_task(function), enumerate(arguments)
    shared_ref = ray.put(shared)
    running: dict[Any, int] = {}
    while True:
        free = max(0, (max_tasks or most_tasks()) - len(running))
        for number, args in islice(queue, free):
            running[remote.remote(shared_ref, *args)] = number
        if not running:
            return
        done, _ = ray.wait(list(running))
        for ref in done:
            yield running.pop(ref), get_result(ref)


def get_result(ref: Any) -> Any:
    """Wait for the result of a task; raise its error as it would have been raised here."""
    try:
        return ray.get(ref)
    except RayError as error:
        cause: BaseException = error
        while isinstance(cause, RayTaskError) and cause.cause is not None:
            cause = cause.cause
        if isinstance(cause, StillhashError):
            raise cause from None
        if isinstance(error, RayTaskError):
            raise
        raise Unreachable(f"a task failed after {TASK_RETRIES} retries: {cause}") from error
