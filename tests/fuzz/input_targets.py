"""Targets of what users send: filters, bodies of requests, uploaded vectors and images, files to import."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from functools import cache
from typing import Any

import numpy as np

from stillhash.collection.filters.language import compile_filter
from stillhash.collection.learning.votes import check_votes
from stillhash.collection.validation import FeatureInput, check_items, check_query, check_rows
from stillhash.encoders import pixels
from stillhash.io import count_rows, read_blocks, read_chunks, read_queries
from stillhash.server.bodies import _parse_lines, _parse_rows
from stillhash.server.pages.queries import parse_vector
from stillhash.server.schemas import AddBody, FeedbackBody, LearnBody, SearchBody
from tests.collection.fixtures import BITS, DIM
from tests.collection.reference import Row, matches
from tests.encoders.sample_images import samples
from tests.fuzz.engine import Target
from tests.fuzz.file_targets import scratch, write
from tests.fuzz.mutations import Rng, mutate_bytes, mutate_json, mutate_json_lines

os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # the others reserve address space in advance, which is limited

MAX_LINE = 1 << 16
OPERATORS = ["$eq", "$ne", "$in", "$gt", "$gte", "$lt", "$lte", "$exists", "$and", "$or", "$not"]
WHERE_WORDS = [*OPERATORS, "labels", "n", "tone", "text", "deep", "deep.x", "cat", "7"]
BODY_WORDS = ["id", "ids", "features", "labels", "metadata", "query", "k", "vote", "source", "position", "where"]
FILTERS: list[dict[str, Any]] = [
    {"n": 3, "tone": {"$gte": 0.25, "$lt": 1}},
    {"$or": [{"labels": {"$in": ["cat", 7, 2.5]}}, {"$not": {"text": "b"}}]},
    {"deep.x": {"$exists": True}, "flag": {"$ne": False}, "n": {"$in": [1, 2.0, 2**60, "1", None, True]}},
    {"text": {"$gt": "a"}, "labels": {"$exists": False}},
    {"$and": [{"n": {"$ne": None}}, {}], "text": {"$lte": "ö"}},
]
ITEMS: list[Row] = [
    ([], None),
    (["cat"], {"n": 3, "tone": 0.5, "text": "b", "flag": True, "deep": {"x": 1}}),
    (["cat", 7], {"n": 3.0, "tone": 1, "text": "ö😀", "flag": False, "deep": {"x": None}}),
    ([2.5, "7"], {"n": 2**60, "tone": "0.5", "text": "", "flag": None, "deep": [1]}),
    (["7"], {"n": -(2**63), "tone": -0.0, "text": "a\ud800", "flag": 0, "": {"": 1}}),
    ([7], {"n": 1e300, "tone": 5e-324, "text": "1", "flag": "true", "deep": {"x": {"y": 2}}}),
    ([], {"n": 2**53 + 1, "tone": 0, "text": None, "deep.x": 1, "labels": "cat"}),
]


@cache
def item_collection() -> Any:
    """Return an open collection of the items, some in a segment and some not."""
    import stillhash

    rng = np.random.default_rng(0)
    collection = stillhash.open(scratch() / "items", DIM, 16, init=rng.standard_normal((300, DIM)))
    collection.warn_unknown_fields(False)
    X = rng.standard_normal((len(ITEMS), DIM))
    for some in (slice(0, 4), slice(4, None)):
        labels, metadata = (list(column) for column in zip(*ITEMS[some], strict=True))
        collection.add(list(range(len(ITEMS)))[some], X[some], labels, metadata, learn=False)
        if some.start == 0:
            collection.seal()
    return collection


def run_where(data: bytes) -> None:
    """Compare what columns, SQL and the reference select."""
    try:
        where = json.loads(data)
    except (ValueError, RecursionError):
        return
    condition = compile_filter(where)
    collection = item_collection()
    with collection._view.pinned(condition) as snapshot:
        columns = _rows(snapshot.allowed)
        sql = _rows(collection._store.items.matching(snapshot.connection, condition.sql))
    reference = [row for row, item in enumerate(ITEMS) if matches(where, item)]
    assert columns == sql == reference, f"columns {columns}, SQL {sql}, reference {reference}"


def _rows(bitmap: Any) -> list[int]:
    rows: list[int] = np.flatnonzero(np.unpackbits(bitmap, bitorder="little")).tolist()
    return rows


def run_ndjson(data: bytes) -> None:
    """Parse a stream of rows and one of votes, and validate what the collection gets."""
    lines = [(number, line) for number, line in enumerate(data.split(b"\n")) if line.strip()]
    votes = _parse_lines(data, MAX_LINE)
    if votes and isinstance(votes[0], dict) and "vote" in votes[0]:
        check_votes(votes, FeatureInput(DIM, BITS))
        return
    if lines:
        check_items(**_parse_rows(lines), pictures=None, dim=DIM)


def run_json_body(data: bytes) -> None:
    """Parse a body as each of the large requests, by its keys."""
    kind = LearnBody if b'"ids"' not in data else AddBody
    kind = SearchBody if b'"query"' in data else kind
    kind = FeedbackBody if b'"vote"' in data else kind
    _check_body(kind._parse(data, 10_000))


def run_raw_body(data: bytes) -> None:
    """Parse a line of JSON with raw rows after it."""
    kind = AddBody if b'"ids"' in data.partition(b"\n")[0] else SearchBody
    line, _, numbers = data.partition(b"\n")
    _check_body(kind._parse(line, 10_000, kind._raw_rows(numbers, DIM, None)))


def _check_body(body: Any) -> None:
    body.row_count()
    if isinstance(body, AddBody):
        check_items(body.ids, body.features, body.labels, body.metadata, None, DIM)
    elif isinstance(body, LearnBody):
        check_rows(body.features, body.labels, DIM)
    elif isinstance(body, SearchBody):
        check_query(body.query, DIM)
        if body.where is not None:
            compile_filter(body.where)


def run_vector(data: bytes) -> None:
    check_query(parse_vector(data, DIM), DIM)


def run_image(data: bytes) -> None:
    image, _ = pixels.decode(data, "image", target=(160, 160))
    pixels.thumbnail(image)


def run_image_header(data: bytes) -> None:
    """Read a header alone; a malformed one raises what the module documents."""
    header = pixels.read_header(data)
    assert len(header.size) == 2 and header.passes >= 0


def run_rows(suffix: str, data: bytes) -> None:
    """Read a file as each command does."""
    path = write(f"rows{suffix}", data)
    for chunk in read_chunks(path, DIM, 7, require_ids=True, first_id=0):
        check_items(chunk.ids, chunk.features, chunk.labels, chunk.metadata, None, DIM)
    read_queries(str(path), DIM)
    if suffix in (".npy", ".parquet"):
        for block in read_blocks(path, 0, min(10_000, count_rows(path))):
            check_rows(block.features, block.labels, DIM)


def features(rows: int = 5) -> list[list[float]]:
    return np.random.default_rng(1).standard_normal((rows, DIM)).round(3).tolist()  # type: ignore[no-any-return]


def records() -> list[dict[str, Any]]:
    details = [{"n": 1, "text": "a"}, None, {"deep": {"x": [1, None]}}, {}, {"flag": True}]
    labels = [["cat"], [], ["cat", "dog"], [7], None]
    rows = zip("abcde", features(), labels, details, strict=True)
    return [dict(zip(("id", "features", "labels", "metadata"), row, strict=True)) for row in rows]


def votes() -> list[dict[str, Any]]:
    rows = enumerate(features(), 1)
    return [{"query": row, "id": n, "vote": 1 - 2 * (n % 2), "source": "s", "position": n} for n, row in rows]


def json_lines(values: list[Any]) -> bytes:
    return b"\n".join(json.dumps(value).encode() for value in values)


def bodies() -> list[bytes]:
    rows = features()
    details = [{"n": 1}, None, None, {}, {"a": "b"}]
    values = [
        {"ids": list(range(5)), "features": rows, "labels": [["a"], [], ["b"], [], ["a"]], "metadata": details},
        {"features": rows, "labels": [["a"], [], ["b"], [], ["a"]]},
        {"query": rows[0], "k": 3, "where": FILTERS[0]},
        {"query": rows, "k": 3},
        {"query": rows[0], "id": "a", "vote": 1},
    ]
    return [json.dumps(value).encode() for value in values]


def raw_bodies() -> list[bytes]:
    heads: list[Any] = [{"ids": list(range(5))}, {"k": 3, "where": FILTERS[1]}]
    return [json.dumps(head).encode() + b"\n" + np.array(features(), "<f4").tobytes() for head in heads]


def saved(*arrays: Any, **named: Any) -> bytes:
    out = io.BytesIO()
    if named:
        np.savez(out, **named)
    else:
        np.save(out, *arrays)
    return out.getvalue()


def arrays() -> list[bytes]:
    return [saved(np.array(features(), kind)) for kind in ("<f4", "<f8", ">f4", "<f2")]


def archives() -> list[bytes]:
    X, ids, matrix = np.array(features(), np.float32), np.array(list("abcde")), np.eye(5, dtype=np.uint8)
    return [saved(features=X), saved(features=X, ids=ids, labels=ids), saved(features=X, labels=matrix)]


def tables() -> list[bytes]:
    numbered = ",".join(f"f{n}" for n in range(DIM))
    rows = [f'i{n},"a, b",{n},' + ",".join(map(str, row)) for n, row in enumerate(features())]
    other = [f'i{n},"{row}"' for n, row in enumerate(features())]
    return ["\n".join([f"id,labels,year,{numbered}", *rows]).encode(), "\n".join(["id,features", *other]).encode()]


def parquet_files() -> list[bytes]:
    import pyarrow
    import pyarrow.parquet

    out, labels = [], [["x"], [], ["y"], None, ["x"]]
    for columns in ({"id": list("abcde"), "labels": labels, "year": [1, 2, None, 4, 5]}, {"id": [1, 2, 3, 4, 5]}):
        file = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table({"features": features(), **columns}), file)
        out.append(file.getvalue())
    return out


def where_mutation(rng: Rng, data: bytes, pool: list[bytes]) -> bytes:
    return mutate_json(rng, data, pool, WHERE_WORDS)


def body_mutation(rng: Rng, data: bytes, pool: list[bytes]) -> bytes:
    return mutate_json(rng, data, pool, BODY_WORDS)


def line_mutation(rng: Rng, data: bytes, pool: list[bytes]) -> bytes:
    return mutate_json_lines(rng, data, pool, BODY_WORDS)


def mutate_archive(rng: Rng, data: bytes, pool: list[bytes]) -> bytes:
    """Mutate a member of an archive, whose checksum is then right, or the archive itself."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, data, pool)
    out = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(out, "w") as changed:
            chosen = rng.choice(archive.namelist())
            for name in archive.namelist():
                member = archive.read(name)
                changed.writestr(name, mutate_bytes(rng, member, pool) if name == chosen else member)
    except Exception:  # it is damaged already
        return mutate_bytes(rng, data, pool)
    return out.getvalue()


def vectors() -> list[bytes]:
    row = features()[0]
    texts = [json.dumps(row).encode(), b"1 2 3 4,5;6 7 8"]
    return [*(saved(np.array(row, kind)) for kind in ("<f4", ">f8", "<i8")), *texts]


HEADER_ERRORS = (ValueError, IndexError, struct.error)
INPUT_TARGETS = [
    Target("where", run_where, lambda: [json.dumps(where).encode() for where in FILTERS], where_mutation),
    Target("ndjson", run_ndjson, lambda: [json_lines(records()), json_lines(votes())], line_mutation),
    Target("json-body", run_json_body, bodies, body_mutation),
    Target("raw-body", run_raw_body, raw_bodies, line_mutation),
    Target("vector", run_vector, vectors),
    Target("image", run_image, lambda: list(samples().values()), memory=1500 << 20),
    Target(
        "image-header",
        run_image_header,
        lambda: list(samples().values()),
        refusals=HEADER_ERRORS,
    ),
    Target("npy", lambda data: run_rows(".npy", data), arrays),
    Target("npz", lambda data: run_rows(".npz", data), archives, mutate_archive),
    Target("csv", lambda data: run_rows(".csv", data), tables),
    Target("jsonl", lambda data: run_rows(".jsonl", data), lambda: [json_lines(records())], line_mutation),
    Target("parquet", lambda data: run_rows(".parquet", data), parquet_files),
]
