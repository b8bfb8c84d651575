"""Compare a learning collection with Chroma and LanceDB on the same rows.

Each contender runs in a process of its own, and they take turns with each chunk of rows and each query. Rows have ids,
labels and metadata; queries search all rows, or those that a filter on metadata leaves. stillhash learns from the
labels; the others store them. P@10 and nDCG@10 judge the hits by labels, as `experiments.metrics` does.
"""

import json
import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

import stillhash
from benchmarks.timing import TOP_K, Figures, Goal, Sections, proc_bytes, quantiles_ms, temporary_folder
from stillhash.errors import InvalidInput, MissingExtra
from stillhash.experiments.data import Dataset, open_dataset, simulate_features
from stillhash.experiments.metrics import evaluate_scores
from stillhash.experiments.passes import machine
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.numeric.validation import Floats, check_integer

MIN_PEER_ROWS = 4000  # a collection fits its hash functions on 3,000
WARM_UP = 5  # searches of each kind that are not timed
FILTERED_SEARCHES = 50  # searches of each filter
FILTERS = {"all": None, "3 %": 3, "50 %": 50}  # hits have a group below this
SYNTHETIC_NAME, SYNTHETIC_DIM, SYNTHETIC_LABELS = "synthetic rows", 512, 24
OURS = "stillhash, 64 bits"
PEER_COLUMNS = """: {name} | rows/s: {rows_per_second:,.0f} | disk MB: {disk_mb:,.0f} | memory MB: {memory_mb:,.0f} |
    search ms: {search:.2f} | 3 % ms: {few:.2f} | 50 % ms: {half:.2f} | P@10: {precision_10:.3f} |
    nDCG@10: {ndcg_10:.3f}"""
PEERS_PAGE = """# Beside Chroma and LanceDB

{headline}. Written by `python -m benchmarks peers {options} --markdown docs/peers.md`.

{table}

{about}; {versions}.

- Each database ran in a process of its own, with its settings as installed, and they took turns with each chunk and
  each query. Rows have text ids, labels and two fields of metadata, and were added in chunks of 1,000. Chroma searches
  an HNSW graph, which is approximate; LanceDB has no index and is exact.
- stillhash learnt from the labels of all rows while they were added, which is most of its time there; the others store
  labels and rank by cosine. It stores codes, ids, labels and metadata, not the vectors; the others can return vectors.
- Times are by the wall clock, so they grow with the load of the machine; compare them within the table only.
- memory MB: by how much resident memory grew, from before the database was opened until after the last search.
  Libraries were loaded before.
- search ms: p50 of single searches, each hit with its metadata; 3 % and 50 %: with a filter on metadata that leaves
  this share of the rows, {filtered} searches each.
- P@10: the share of the first ten hits that have a label in common with the query. nDCG@10: its gain is the Jaccard of
  the label sets. Both by {queries} queries that are not among the rows.
"""


def run(
    quick: bool,
    progress: ReportProgress,
    repeats: int = 300,
    rows: int = 20_000,
    data: str | None = None,
    folder: Path | None = None,
    markdown: Path | None = None,
) -> Figures:
    """Measure all contenders on so many rows and `repeats` queries of a feature folder, or on rows that are made up."""
    missing = sorted({package for _, package in PEERS.values() if find_spec(package) is None})
    if missing:
        raise MissingExtra(f"this command needs {' and '.join(missing)}: pip install 'stillhash[bench]'")
    check_integer(rows, "rows", MIN_PEER_ROWS)
    rows = MIN_PEER_ROWS if quick else rows
    here = machine()  # with the load before the bench
    progress("reading rows")
    dataset = open_dataset(data) if data else synthetic(rows, repeats)
    stream = dataset.stream[:rows]
    if len(stream) < rows:
        raise InvalidInput(f"rows: expected at most {len(stream)}, the rows of {dataset.name}, got {rows}")
    queries = dataset.queries[np.linspace(0, len(dataset.queries) - 1, repeats).astype(int)]
    with temporary_folder(folder) as temporary, ExitStack() as stack:
        write_rows(dataset, stream, queries, temporary)
        turns: dict[str, Callable[..., Any]] = {}
        for number, name in enumerate(PEERS):
            pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
            job = PeerJob(name, temporary, temporary / f"store {number}", rows, dataset.dim)
            pool.submit(start_peer, job).result()
            turns[name] = partial(call_in, pool)
        measured = measure(turns, rows, repeats, progress)
    for figures in measured:
        hits = np.array(figures.pop("hits"))
        figures |= judge_hits(hits, dataset.labels[queries], dataset.labels[stream])
    about = {"data": dataset.name, "rows_added": rows, "columns": dataset.dim, "queries": repeats}
    result = {**about, "rows": measured, "goals": goals(measured)}
    if markdown is not None:
        markdown.write_text(to_markdown(result, here), encoding="utf-8")
    return result


def call_in(pool: ProcessPoolExecutor, method: str, *args: Any) -> Any:
    """Call a method of the database in the process of this pool, and wait for it."""
    return pool.submit(call_peer, method, *args).result()


def measure(turns: dict[str, Callable[..., Any]], rows: int, queries: int, progress: ReportProgress) -> list[Figures]:
    """Let the databases take turns, in shuffled order, with each chunk and each query."""
    shuffle, order = random.Random(0).shuffle, list(turns)
    seconds: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in ("add", *FILTERS)} for name in turns}
    hits: dict[str, list[list[int]]] = {name: [] for name in turns}
    misfiltered = dict.fromkeys(turns, 0)
    for at in range(0, rows, PEER_CHUNK):
        progress(f"{at:,} of {rows:,} rows")
        shuffle(order)
        for name in order:
            seconds[name]["add"].append(turns[name]("add_chunk", at))
    for kind, below in FILTERS.items():
        count = queries if below is None else min(queries, FILTERED_SEARCHES)
        for number in range(-WARM_UP, count):
            progress(f"searches of {kind}: {max(number, 0):,} of {count:,}")
            shuffle(order)
            for name in order:
                taken, hit_rows = turns[name]("search", number % count, below)
                if number < 0:
                    continue
                seconds[name][kind].append(taken)
                if below is None:
                    hits[name].append(hit_rows + [-1] * (TOP_K - len(hit_rows)))
                else:
                    misfiltered[name] += sum(row % GROUPS >= below for row in hit_rows)
    return [
        {
            "name": name,
            "rows_per_second": rows / sum(seconds[name]["add"]),
            **{kind: quantiles_ms(seconds[name][kind]) for kind in FILTERS},
            "hits": hits[name],
            "misfiltered": misfiltered[name],
            **turns[name]("close"),
        }
        for name in turns
    ]


def synthetic(rows: int, queries: int) -> Dataset:
    """Make rows of one to four labels each up."""
    rng = np.random.default_rng(0)
    labels = np.zeros((rows + queries, SYNTHETIC_LABELS), np.uint8)
    for row, count in zip(labels, rng.integers(1, 5, len(labels)), strict=True):
        row[rng.integers(SYNTHETIC_LABELS, size=count)] = 1
    features = simulate_features(labels, SYNTHETIC_DIM, 1.0, 0)
    return Dataset(SYNTHETIC_NAME, (features,), 1.0, labels, np.arange(queries))


def write_rows(dataset: Dataset, stream: NDArray[np.int64], queries: NDArray[np.int64], folder: Path) -> None:
    """Write the files that `PeerJob` names; a contender reads them a chunk at a time."""
    with (folder / "features.f32").open("wb") as file:
        for at in range(0, len(stream), PEER_CHUNK):
            dataset.read(stream[at : at + PEER_CHUNK]).tofile(file)
    np.save(folder / "labels.npy", dataset.labels[stream])
    np.save(folder / "queries.npy", dataset.read(queries))


def judge_hits(hits: NDArray[np.int64], query_labels: NDArray[np.uint8], item_labels: NDArray[np.uint8]) -> Figures:
    """Return P@10 and nDCG@10 of hits (m, k), by their place."""

    def scores(some: slice) -> Floats:
        places = np.zeros((len(hits[some]), len(item_labels) + 1), np.float32)  # the last column is for missing hits
        np.put_along_axis(places, hits[some], np.arange(TOP_K, 0, -1, dtype=np.float32)[None], axis=1)
        return places[:, :-1]

    quality = evaluate_scores(scores, query_labels, item_labels)
    return {"precision_10": quality.precision_10, "ndcg_10": quality.ndcg_10}


def goals(measured: list[Figures]) -> list[Goal]:
    """Compare the shorter codes with the better of the others, by each figure."""
    ours = next(m for m in measured if m["name"] == OURS)
    others = [m for m in measured if not m["name"].startswith("stillhash")]
    times: list[Goal] = []
    for name in FILTERS:
        fastest = min(m[name]["p50_ms"] for m in others)
        times.append((f"search of {name}, p50, ours / the fastest", "<= 1", ours[name]["p50_ms"] / fastest))
    return [
        ("hits that the filter leaves out", "<= 0", sum(m["misfiltered"] for m in measured)),
        *times,
        ("P@10, ours - the better", ">= 0", ours["precision_10"] - max(m["precision_10"] for m in others)),
        ("nDCG@10, ours - the better", ">= 0", ours["ndcg_10"] - max(m["ndcg_10"] for m in others)),
    ]


def table_rows(result: Figures) -> list[Figures]:
    keys = dict(zip(("search", "few", "half"), FILTERS, strict=True))
    return [
        r
        | {key: r[name]["p50_ms"] for key, name in keys.items()}
        | {"disk_mb": r["disk_bytes"] / 1e6, "memory_mb": r["memory_bytes"] / 1e6}
        for r in result["rows"]
    ]


def tables(result: Figures) -> Sections:
    return [format_table(headline(result), PEER_COLUMNS, table_rows(result)), versions(result), ""]


def headline(result: Figures) -> str:
    return "{data}: {rows_added:,} rows of {columns:,} dimensions, {queries:,} queries, k = 10".format_map(result)


def versions(result: Figures) -> str:
    return ", ".join(sorted({f"{PEERS[r['name']][1]} {r['version']}" for r in result["rows"]}))


def to_markdown(result: Figures, here: dict[str, Any]) -> str:
    """Return the result, of this machine, as docs/peers.md shows it."""
    table = format_table(None, PEER_COLUMNS, table_rows(result))
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    source = "" if result["data"] == SYNTHETIC_NAME else f"--data {result['data']} "
    return PEERS_PAGE.format(
        headline=headline(result),
        table="\n".join(f"| {' | '.join(map(str, line))} |" for line in lines),
        about="{cpu}, {cores} cores, lanes {lanes}, numpy {numpy}, load {load:.1f} at the start".format_map(here),
        versions=versions(result),
        options=f"{source}--rows {result['rows_added']} --repeats {result['queries']}",
        filtered=min(FILTERED_SEARCHES, result["queries"]),
        queries=result["queries"],
    )


# ---- the databases ----


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
