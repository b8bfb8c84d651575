"""Manifests: what an index consists of, one numbered file for each commit.

    stillhash-manifest <format> <number> <epoch> <bytes of the body> <BLAKE2b of the numbers and the body>
    {"bits": ..., "next_id": ..., "shards": [...], "segments": [[...], ...], ...}

A commit is the exclusive creation of the next number, so that of two writers one fails. The largest number is current;
numbers begin at 1, so 0 stands for no manifest at all. A manifest never changes.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from stillhash.cluster.storage import Storage
from stillhash.errors import BadState, Conflict, InvalidInput, NotFound, StoreFailed

CLUSTER_FORMAT = 1
CLUSTER_SEGMENT_ROWS = 131_072 * 8  # the most of one segment
UNPLACED = -1  # the shard of an entry that has none yet
MANIFEST_MAGIC = re.compile(rb"stillhash-manifest (\d{1,9}) ")
MANIFEST_HEAD = re.compile(rb"stillhash-manifest (\d{1,9}) (\d{1,20}) (\d{1,20}) (\d{1,12}) ([0-9a-f]{32})\n")
MANIFEST_HEAD_BYTES = 160  # at most
LATEST_ATTEMPTS = 5  # the latest manifest may be collected while it is being opened
ITEM_SUFFIXES = (".items", ".columns", ".rescoring")
OWN_SEGMENT = re.compile(r"segments/[0-9a-f]{32}\.seg")


class SegmentEntry(NamedTuple):
    """A segment, the shard that holds it, and which of its rows are deleted."""

    name: str  # in the storage, or a path or URL if it is not owned
    rows: int
    checksum: str  # the last eight bytes of the file, in hexadecimal digits
    first: int  # id; ids ascend inside
    last: int
    shard: int
    owned: bool  # written by the index, which deletes it
    deleted: int = 0
    deletions: str = ""  # a bitmap file, or "inline:" and the deleted rows (deletions.py)
    items: bool = False  # whether .items, .columns and .rescoring are beside it
    items_checksum: str = ""  # of the .items file, as Storage.put_file returns it; "" is not compared
    columns_checksum: str = ""  # of the .columns file; "" where there is none
    rescoring_checksum: str = ""  # of the .rescoring file; "" where there is none

    @property
    def live(self) -> int:
        """Rows that are not deleted."""
        return self.rows - self.deleted

    @property
    def consecutive(self) -> bool:
        """Whether the ids of the rows are first, first + 1, and so on."""
        return self.last - self.first == self.rows - 1

    def files(self) -> list[str]:
        """Return the names of the files of the storage that belong to this segment."""
        names = [self.deletions] if self.deletions and ":" not in self.deletions else []
        if self.owned:
            names += [self.name, *(self.name + suffix for suffix in ITEM_SUFFIXES if self.items)]
        return names


class PatchEntry(NamedTuple):
    """A file of changes to items of segments, to be applied after those before it."""

    name: str
    checksum: str  # as Storage.put_file returned it
    rows: int
    first: int  # id
    last: int


class ClusterManifest(NamedTuple):
    """Everything that an index consists of after one commit."""

    number: int
    epoch: int  # of the writer's lease
    bits: int
    next_id: int
    shards: tuple[int, ...]
    segments: tuple[SegmentEntry, ...] = ()
    catalog: str = ""
    patches: tuple[PatchEntry, ...] = ()
    source: str = ""  # JSON of the publisher
    leaving: tuple[int, ...] = ()  # those of the shards that get no more segments, and are removed once they have none

    @property
    def staying(self) -> tuple[int, ...]:
        """The shards that are not being removed."""
        return tuple(shard for shard in self.shards if shard not in self.leaving)

    @property
    def rows(self) -> int:
        """Rows that are not deleted."""
        return sum(entry.live for entry in self.segments)

    def of_shard(self, shard: int) -> tuple[SegmentEntry, ...]:
        return tuple(entry for entry in self.segments if entry.shard == shard)

    def shard_rows(self) -> dict[int, int]:
        """Return the rows of each shard that are not deleted."""
        rows = dict.fromkeys(self.shards, 0)
        for entry in self.segments:
            rows[entry.shard] += entry.live
        return rows

    def next(self, epoch: int) -> "ClusterManifest":
        """Return the manifest under the next number, as a writer with this epoch commits it."""
        return self._replace(number=self.number + 1, epoch=epoch)

    def files(self) -> set[str]:
        """Return the names of all files of the storage that belong to this manifest."""
        names = {patch.name for patch in self.patches}
        if self.catalog:
            names.add(self.catalog)
        for entry in self.segments:
            names.update(entry.files())
        return names


def first_manifest(bits: int, shards: Iterable[int], epoch: int = 0) -> ClusterManifest:
    """Return the manifest of an empty index, the first to commit."""
    return ClusterManifest(1, epoch, bits, 0, tuple(shards))


def manifest_name(number: int) -> str:
    return f"manifests/{number:020d}"


def latest_number(storage: Storage) -> int:
    """Return the largest number of a manifest; 0 if there is none."""
    return max(manifest_numbers(storage), default=0)


def manifest_numbers(storage: Storage) -> list[int]:
    """Return the numbers of all manifests, ascending."""
    return _numbers(storage, "manifests")


def _numbers(storage: Storage, folder: str) -> list[int]:
    names = [name.rpartition("/")[2] for name in storage.list(folder)]
    return [int(name) for name in names if name.isdecimal()]


def read_manifest(storage: Storage, number: int) -> ClusterManifest:
    """Read a manifest; NotFound if there is none of this number, or no longer."""
    return unpack_manifest(storage.read(manifest_name(number)), number)


def read_latest(storage: Storage) -> ClusterManifest:
    """Read the current manifest; NotFound if there is none."""
    for attempt in range(LATEST_ATTEMPTS):
        if not (number := latest_number(storage)):
            break
        try:
            return read_manifest(storage, number)
        except NotFound:
            if attempt == LATEST_ATTEMPTS - 1:
                raise
    raise NotFound(f"{storage.url}: there is no index; no manifest was committed yet")


def commit_manifest(storage: Storage, manifest: ClusterManifest) -> None:
    """Make a manifest the current one; Conflict if another writer has committed this number, or has a later epoch.

    After Conflict it is not committed. After StoreFailed it may be or not; the same call again settles that, unless
    other writers have committed so much since that the number was collected. Before a number is collected that is
    recorded (`record_collection`), so a number that could be created and is not recorded was never used before.
    """
    number, data = manifest.number, pack_manifest(manifest)
    if number > 1:
        _check_predecessor(storage, manifest)
    if not storage.create(manifest_name(number), data):
        _check_ours(storage, manifest, data)
    if number < (first := first_uncollected(storage)):
        raise StoreFailed(f"manifest {number}: whether it was committed cannot be known: {first} is the oldest left")


def first_uncollected(storage: Storage) -> int:
    """Return the number below which manifests may have been collected."""
    return max(_numbers(storage, "collected"), default=0)


def record_collection(storage: Storage, number: int) -> None:
    """Record, before any of them is deleted, that the manifests below this number are collected."""
    storage.create(f"collected/{number:020d}", b"")
    for earlier in _numbers(storage, "collected")[:-1]:
        storage.delete(f"collected/{earlier:020d}")


def _check_predecessor(storage: Storage, manifest: ClusterManifest) -> None:
    previous = manifest_name(manifest.number - 1)
    try:
        _, _, epoch, _, _ = _parse_head(storage.read_start(previous, MANIFEST_HEAD_BYTES), previous)
    except NotFound as error:
        raise Conflict(f"manifest {manifest.number}: expected to follow {manifest.number - 1}, got none") from error
    if epoch > manifest.epoch:
        raise Conflict(f"epoch: expected {epoch} or later, got {manifest.epoch}: another writer has taken over")


def _check_ours(storage: Storage, manifest: ClusterManifest, data: bytes) -> None:
    """Raise Conflict unless the manifest that exists is this one: the reply to an earlier attempt may be lost."""
    try:
        stored = storage.read(manifest_name(manifest.number))
    except NotFound:
        stored = b""
    if stored != data:
        raise Conflict(f"manifest {manifest.number}: another writer has committed this number")


def pack_manifest(manifest: ClusterManifest) -> bytes:
    """Serialise a manifest."""
    for entry in manifest.segments:
        if entry.shard not in manifest.shards:
            raise InvalidInput(f"shard: expected one of {manifest.shards}, got {entry.shard} for {entry.name}")
    fields = {
        "bits": manifest.bits,
        "next_id": manifest.next_id,
        "shards": manifest.shards,
        "segments": [_without_defaults(entry) for entry in manifest.segments],
        "catalog": manifest.catalog,
        "patches": manifest.patches,
        "source": manifest.source,
        **({"leaving": manifest.leaving} if manifest.leaving else {}),
    }
    body = json.dumps(fields, separators=(",", ":")).encode()
    numbers = CLUSTER_FORMAT, manifest.number, manifest.epoch, len(body)
    return b"stillhash-manifest %d %d %d %d %s\n" % (*numbers, _digest(numbers, body)) + body


def unpack_manifest(data: bytes, number: int) -> ClusterManifest:
    """Read what `pack_manifest` returned; BadState if it is damaged, of another format or of another number."""
    name = manifest_name(number)
    *numbers, digest = _parse_head(data, name)
    body = data[data.index(b"\n") + 1 :]
    if len(body) != numbers[3] or _digest(tuple(numbers), body) != digest or numbers[1] != number:
        raise BadState(f"{name}: damaged: expected manifest {number} with its checksum, got other content")
    try:
        fields = json.loads(body)
        fields["shards"], fields["leaving"] = tuple(fields["shards"]), tuple(fields.get("leaving", ()))
        fields["segments"] = tuple([SegmentEntry(*entry) for entry in fields["segments"]])
        fields["patches"] = tuple([PatchEntry(*entry) for entry in fields["patches"]])
        manifest = ClusterManifest(number, numbers[2], **fields)
    except (ValueError, KeyError, TypeError) as error:
        raise BadState(f"{name}: expected the fields of format {CLUSTER_FORMAT}, got others: {error}") from error
    for entry in manifest.segments:
        if entry.owned and OWN_SEGMENT.fullmatch(entry.name) is None:
            raise BadState(f"{name}: expected the name of a segment, got {entry.name!r:.100}")
    return manifest


def _parse_head(data: bytes, name: str) -> tuple[int, int, int, int, bytes]:
    """Return format, number, epoch, bytes of the body, and its digest."""
    magic = MANIFEST_MAGIC.match(data)
    if magic is not None and int(magic[1]) != CLUSTER_FORMAT:
        raise BadState(f"{name}: expected format {CLUSTER_FORMAT}, got {int(magic[1])}")
    match = MANIFEST_HEAD.match(data[:MANIFEST_HEAD_BYTES])
    if match is None:
        raise BadState(f"{name}: damaged: expected a manifest, got {data[:40]!r}")
    return int(match[1]), int(match[2]), int(match[3]), int(match[4]), match[5]


def _digest(numbers: tuple[int, ...], body: bytes) -> bytes:
    return hashlib.blake2b(b"%d %d %d %d\n" % numbers + body, digest_size=16).hexdigest().encode()


def _without_defaults(entry: SegmentEntry) -> Sequence[Any]:
    if entry.items_checksum:
        return entry if entry.rescoring_checksum else entry[:12]
    return entry[:10] if entry.deleted or entry.items else entry[:7]
