"""The vector databases of `bench peers`, each measured in a process of its own, so that its memory is its own too."""

import json
import os
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

import stillhash
from benchmarks.timing import TOP_K, Figures, proc_bytes
from stillhash.numeric.validation import Floats

PEER_CHUNK = 1000  # rows of an `add`
GROUPS = 100  # values of the field `group`, equally frequent


class PeerJob(NamedTuple):
    """One database to measure, and the files that its rows are in."""

    name: str  # a key of PEERS
    source: Path  # has features.f32 (rows, dim), labels.npy (rows, labels) and queries.npy (m, dim)
    store: Path  # for what the database writes
    rows: int
    dim: int


class Peer(Protocol):
    """A vector database in a folder."""

    def __init__(self, folder: Path, dim: int) -> None: ...
    def add(self, ids: list[str], X: Floats, labels: list[list[str]], metadata: list[dict[str, Any]]) -> None: ...
    def search(self, query: Floats, below: int | None) -> Sequence[str]:
        """Return the ids of the first hits, which come with their metadata, in a group below this."""
        ...

    def close(self) -> None: ...


class Stillhash:
    """A collection that learns from the labels of its rows."""

    bits = 64

    def __init__(self, folder: Path, dim: int) -> None:
        self.collection = stillhash.open(folder, dim, self.bits)

    def add(self, ids: list[str], X: Floats, labels: list[list[str]], metadata: list[dict[str, Any]]) -> None:
        self.collection.add(ids, X, labels, metadata)

    def search(self, query: Floats, below: int | None) -> Sequence[str]:
        where = None if below is None else {"group": {"$lt": below}}
        return [str(hit.id) for hit in self.collection.search(query, TOP_K, where=where).hits]

    def close(self) -> None:
        self.collection.close()


class Stillhash256(Stillhash):
    """The same with longer codes, which hold labels."""

    bits = 256


class Chroma:
    """Chroma as it is installed, by cosine: HNSW beside SQLite."""

    def __init__(self, folder: Path, dim: int) -> None:
        chromadb = import_module("chromadb")
        self.client = chromadb.PersistentClient(str(folder), chromadb.Settings(anonymized_telemetry=False))
        cosine = {"hnsw": {"space": "cosine"}}
        self.rows = self.client.create_collection("rows", configuration=cosine, embedding_function=None)

    def add(self, ids: list[str], X: Floats, labels: list[list[str]], metadata: list[dict[str, Any]]) -> None:
        fields = [about | {"labels": json.dumps(some)} for about, some in zip(metadata, labels, strict=True)]
        self.rows.add(ids=ids, embeddings=X, metadatas=fields)

    def search(self, query: Floats, below: int | None) -> Sequence[str]:
        where = None if below is None else {"group": {"$lt": below}}
        include = ["metadatas", "distances"]
        hits = self.rows.query(query_embeddings=query[None], n_results=TOP_K, where=where, include=include)
        ids: list[str] = hits["ids"][0]
        return ids

    def close(self) -> None:
        del self.rows, self.client


class LanceDB:
    """LanceDB by cosine, without an index: exact."""

    def __init__(self, folder: Path, dim: int) -> None:
        self.arrow, self.dim = import_module("pyarrow"), dim
        vector = self.arrow.list_(self.arrow.float32(), dim)
        fields = {"id": self.arrow.string(), "vector": vector, "labels": self.arrow.string()}
        fields |= {"group": self.arrow.int32(), "title": self.arrow.string()}
        self.schema = self.arrow.schema(list(fields.items()))
        self.table = import_module("lancedb").connect(str(folder)).create_table("rows", schema=self.schema)

    def add(self, ids: list[str], X: Floats, labels: list[list[str]], metadata: list[dict[str, Any]]) -> None:
        vectors = self.arrow.FixedSizeListArray.from_arrays(self.arrow.array(X.ravel()), self.dim)
        fields = {name: [about[name] for about in metadata] for name in ("group", "title")}
        columns = {"id": ids, "vector": vectors, "labels": list(map(json.dumps, labels)), **fields}
        self.table.add(self.arrow.table(columns, schema=self.schema))

    def search(self, query: Floats, below: int | None) -> Sequence[str]:
        chosen = self.table.search(query).distance_type("cosine").limit(TOP_K)
        if below is not None:
            chosen = chosen.where(f"`group` < {below}", prefilter=True)
        hits = chosen.select(["id", "labels", "group", "title", "_distance"]).to_list()
        return [hit["id"] for hit in hits]

    def close(self) -> None:
        del self.table


PEERS: dict[str, tuple[type[Peer], str]] = {  # with the package that each needs
    "stillhash, 64 bits": (Stillhash, "stillhash"),
    "stillhash, 256 bits": (Stillhash256, "stillhash"),
    "Chroma, HNSW": (Chroma, "chromadb"),
    "LanceDB, no index": (LanceDB, "lancedb"),
}


class MeasuredPeer:
    """A database that is timed from inside its process, a part at a time, so that several can take turns."""

    def __init__(self, job: PeerJob) -> None:
        kind, package = PEERS[job.name]
        self.version: str = import_module(package).__version__
        self.job, self.labels = job, np.load(job.source / "labels.npy")
        self.queries = np.load(job.source / "queries.npy")
        self.before = resident_bytes()
        self.peer = kind(job.store, job.dim)

    def add_chunk(self, at: int) -> float:
        """Add the rows from here on; return the seconds that it took, without reading them."""
        count, dim = min(PEER_CHUNK, self.job.rows - at), self.job.dim
        X = np.fromfile(self.job.source / "features.f32", np.float32, count * dim, offset=at * dim * 4)
        labels = [[f"label {c}" for c in np.flatnonzero(row)] for row in self.labels[at : at + count]]
        ids, metadata = [str(r) for r in range(at, at + count)], [describe(r) for r in range(at, at + count)]
        start = time.perf_counter()
        self.peer.add(ids, X.reshape(count, dim), labels, metadata)
        return time.perf_counter() - start

    def search(self, number: int, below: int | None) -> tuple[float, list[int]]:
        """Search by one query; return the seconds that it took, and the rows of the hits."""
        start = time.perf_counter()
        ids = self.peer.search(self.queries[number], below)
        return time.perf_counter() - start, list(map(int, ids))

    def close(self) -> Figures:
        """Close the database and return its sizes."""
        memory = resident_bytes() - self.before
        self.peer.close()
        disk = sum(path.stat().st_size for path in self.job.store.rglob("*") if path.is_file())
        return {"version": self.version, "memory_bytes": memory, "disk_bytes": disk}


_measured: list[MeasuredPeer] = []  # the one of this process


def start_peer(job: PeerJob) -> None:
    """Open the database of this process."""
    os.dup2(2, 1)  # stdout is for the result of the bench, whatever a library prints
    _measured.append(MeasuredPeer(job))


def call_peer(method: str, *args: Any) -> Any:
    """Call a method of the database of this process."""
    return getattr(_measured[0], method)(*args)


def describe(row: int) -> dict[str, Any]:
    """Return the metadata of a row."""
    return {"group": row % GROUPS, "title": f"photo {row}"}


def resident_bytes() -> int:
    return proc_bytes(Path("/proc/self/status").read_text(encoding="utf-8"))["VmRSS"]
