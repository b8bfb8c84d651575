"""Targets of a collection's files: sealed files, segments, columns, the WAL, `store.db`, and states of models."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import stillhash
from stillhash import METHODS, hashers
from stillhash.collection.storage.columns import ColumnFile, column_arrays
from stillhash.collection.storage.segments import read_segment
from stillhash.collection.storage.verify_pages import PAGE_SIZE
from stillhash.collection.storage.wal import FRAME_SIZE, WAL_HEADER, read_wal, wal_sums
from stillhash.errors import StillhashError
from stillhash.files import (
    BLOCK_SIZE,
    block_checksums,
    check_sealed,
    content_size,
    pack_checksums,
    pack_file_checksums,
    read_sealed,
)
from tests.collection.fixtures import BITS, DIM, begin, some_rows
from tests.fuzz.engine import Target
from tests.fuzz.mutations import EXTREME_VALUES, Rng, mutate_bytes, mutate_value, to_json
from tests.support.toys import toy

STATE_WORDS = ["format", "method", "params", "extra", "bits", "F32", "F64", "I64", "U8", "shape", "dtype"]


@cache
def scratch() -> Path:
    """Return a folder of this process, removed at its end."""
    path = Path(tempfile.mkdtemp(prefix="stillhash-fuzz-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def write(name: str, data: bytes) -> Path:
    path = scratch() / name
    path.write_bytes(data)
    return path


@cache
def templates() -> tuple[Path, Path]:
    """Return a small collection, closed, and as a crash leaves it: with pages in the WAL."""
    path = scratch() / "template"
    collection, _ = begin(path, 320)
    collection.seal()
    collection.delete([3, 4, 9])
    collection.upsert([f"t{r}" for r in range(40)], *some_rows(40, seed=1))
    collection.learn(*some_rows(50, seed=2)[:2])
    collection.tag(1, "early")
    crashed = Path(shutil.copytree(path, scratch() / "crashed"))
    collection.close()
    return path, crashed


def files(pattern: str) -> list[bytes]:
    return [file.read_bytes() for folder in templates() for file in sorted(folder.glob(pattern))]


def reseal(data: bytes) -> bytes:
    """Return the bytes as a sealed file: what is content by the size gets checksums that are right."""
    blocks = max(0, -(-(len(data) - 8) // (BLOCK_SIZE + 8)))
    content = data[: max(0, len(data) - 8 - 8 * blocks)]
    return content + pack_checksums(block_checksums(content).reshape(-1, 2))


def run_sealed(data: bytes) -> None:
    path = write("a.sealed", data)
    check_sealed(path)
    assert read_sealed(path) == data[: content_size(path)]


def run_segment(data: bytes) -> None:
    segment = read_segment(write("a.tiles", data), BITS)
    numbers = segment.row_numbers()
    assert len(numbers) == segment.rows
    if len(segment.digests):
        segment.rows_with(int(segment.digests[0]))
    segment.coded_rows()


def run_columns(data: bytes) -> None:
    """Read all columns; `FilterColumns` takes BadState, OSError and ValueError for a file of no use."""
    (segment,) = (templates()[0] / "segments").glob("*.tiles")
    path = scratch() / "columns"
    path.mkdir(exist_ok=True)
    copy = path / segment.name
    if not copy.exists():
        shutil.copyfile(segment, copy)
    copy.with_suffix(".columns").write_bytes(data)
    rows = read_segment(copy, BITS, check=False)
    for block in ColumnFile(copy, (rows.rows, rows.first, rows.first + rows.rows - 1)).blocks:
        for name in block.names():
            if (column := block.column(name)) is not None:
                column_arrays(column)


def reseal_wal(data: bytes) -> bytes:
    """Return the log with checksums that are right, frame by frame, and the salt of its header."""
    log = np.frombuffer(data, np.uint8).copy()
    if len(log) < WAL_HEADER:
        return data
    log[24:32] = wal_sums(log[None, :WAL_HEADER], np.zeros((1, 8), np.uint8), log)[0]
    before = log[24:32]
    for at in range(WAL_HEADER, len(log) - FRAME_SIZE + 1, FRAME_SIZE):
        frame = log[at : at + FRAME_SIZE]
        frame[8:16] = log[16:24]
        frame[16:24] = before = wal_sums(frame[None], before[None], log)[0]
    return log.tobytes()


def run_wal(data: bytes) -> None:
    path = scratch() / "wal"
    path.mkdir(exist_ok=True)
    (path / "store.db-wal").write_bytes(data)
    wal = read_wal(path)
    assert len(wal.page_numbers) == len(wal.frames)


def run_store(data: bytes) -> None:
    """Open a collection with this `store.db`, whose checksums are right, and read all there is."""
    path = scratch() / "store"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(templates()[0], path)
    (path / "store.db").write_bytes(data)
    (path / "store.sums").write_bytes(pack_file_checksums(path / "store.db"))
    query = toy(2, DIM, 4, seed=9).X
    with stillhash.open(path, read_only=True) as collection:
        collection.warn_unknown_fields(False)
        readers: list[Any] = [
            lambda: collection.search(query, 5),
            lambda: collection.search(query, 5, where={"n": {"$gt": 3}, "labels": "a"}),
            lambda: collection.search(query, 5, version=1),
            lambda: collection.get([1, "t1", 3]),
            collection.stats,
            collection.versions,
            collection.verify,
        ]
        errors = []
        for read in readers:
            try:
                read()
            except StillhashError as error:
                errors.append(error)
        if errors:
            raise errors[0]


def mutate_pages(rng: Rng, data: bytes, pool: list[bytes]) -> bytes:
    """Mutate within pages: a file of another length is refused at once."""
    pages = bytearray(data)
    for _ in range(rng.choice([1, 2, 8])):
        at = rng.randrange(max(1, len(pages) // PAGE_SIZE)) * PAGE_SIZE
        page = mutate_bytes(rng, bytes(pages[at : at + PAGE_SIZE]), pool)
        pages[at : at + PAGE_SIZE] = page[:PAGE_SIZE].ljust(PAGE_SIZE, b"\0")
    return bytes(pages)


@cache
def states() -> list[bytes]:
    X, Y = toy(120, DIM, 4)
    return [method(bits=BITS).fit(X, Y).partial_fit(X, Y).state() for method in METHODS.values()]


def run_state(data: bytes) -> None:
    """Load a state and use it."""
    hasher = hashers.load(data)
    if hasher.n_features_in_ > 10_000:
        return
    X = np.ones((2, hasher.n_features_in_), np.float32)
    hasher.encode(X)
    hasher.weigh(X)


def mutate_state(rng: Rng, data: bytes, pool: list[bytes]) -> bytes:
    """Change the header of a safetensors file by its structure, or the bytes of its arrays."""
    size = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + size])
        about = json.loads(header["__metadata__"]["stillhash"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return mutate_bytes(rng, data, pool)
    arrays = data[8 + size :]
    match rng.randrange(5):
        case 0:
            return mutate_bytes(rng, data, pool)
        case 1:
            changed = mutate_bytes(rng, arrays, pool)  # of the same length, else it is refused at once
            return data[: 8 + size] + changed[: len(arrays)].ljust(len(arrays), b"\xff")
        case 2:
            header = mutate_value(rng, header, STATE_WORDS)
        case 3 if isinstance(about, dict) and about:
            key = rng.choice(list(about))
            about = {**about, key: rng.choice([*EXTREME_VALUES, mutate_value(rng, about[key], STATE_WORDS)])}
            header["__metadata__"]["stillhash"] = to_json(about).decode()
        case _:
            about = mutate_value(rng, about, STATE_WORDS)
            header["__metadata__"]["stillhash"] = to_json(about).decode()
    text = to_json(header)
    text = text.ljust(-(-len(text) // 8) * 8)
    return len(text).to_bytes(8, "little") + text + arrays


@cache
def index_files() -> list[bytes]:
    """Return files of indexes with listed ids, removed rows, several blocks, and text ids."""
    numbers, texts = stillhash.Index(BITS + 3), stillhash.NamedIndex(BITS)
    numbers.add(np.zeros((300, 1 + BITS // 8), np.uint8))
    numbers.add(np.ones((20, 1 + BITS // 8), np.uint8), np.arange(1000, 400, -30))
    numbers.remove([3, 5, 999])
    texts.add(np.zeros((40, BITS // 8), np.uint8), [f"é{r}" for r in range(40)])
    texts.remove(["é3"])
    path = scratch() / "seed.index"
    files = []
    for index in (numbers, texts):
        index.save(path)
        files.append(path.read_bytes())
    return files


def run_index(data: bytes) -> None:
    """Load an index of either kind of ids, search it, change it and save it."""
    path = write("a.index", data)
    named = len(data) > 28 and data[28] == 1
    index: Any = (stillhash.NamedIndex if named else stillhash.Index).load(path)
    weights = np.ones((1, index.bits), np.float32)
    index.search(weights, 5)
    index.search(weights, 5, allowed=["é1"] if named else np.ones(2000, bool))
    index.range_search(weights, index.bits - 2.0)
    index.merge()
    index.remove(index.ids()[:2])
    index.add(np.zeros((2, -(-index.bits // 8)), np.uint8), *([["x", "y"]] if named else []))
    index.save(scratch() / "b.index")


FILE_TARGETS = [
    Target("sealed", run_sealed, lambda: files("segments/*"), fix=reseal),
    Target("segment", run_segment, lambda: files("segments/*.tiles"), fix=reseal),
    Target("columns", run_columns, lambda: files("segments/*.columns")[:1], fix=reseal, refusals=(OSError, ValueError)),
    Target("wal", run_wal, lambda: files("store.db-wal"), fix=reseal_wal),
    Target("store", run_store, lambda: files("store.db")[:1], mutate_pages),
    Target("state", run_state, states, mutate_state),
    Target("index", run_index, index_files, fix=reseal),
]
