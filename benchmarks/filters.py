"""Time searches with filters against the same search without one, and against filters answered by SQL alone.

Items have random codes and metadata: a number, an integer, a text of few values, and labels. Conditions match 0.01 %,
1 %, 10 % or 50 % of them. All contenders take turns in one process, and no filter comes twice, since a collection
remembers the latest ones. They are timed in CPU time: what a filter adds runs on one thread. Before that, each
condition must match as many items as NumPy counts. A new process opens the collection and searches with a filter on two
fields.
"""

import json
import statistics
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import stillhash
from benchmarks.fixtures import COLLECTION_FIT_ROWS, random_features
from benchmarks.timing import CODE_BITS, TOP_K, Contender, Figures, Sections, interleaved, temporary_folder
from stillhash.collection.filters.language import compile_filter
from stillhash.collection.storage.segments import SEGMENT_ROWS, CodedRows, read_segment, write_segment
from stillhash.collection.storage.store import Store
from stillhash.collection.transfer.bulk_load import Batches, bulk_load
from stillhash.collection.validation import ItemRows
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.hashers import Tally
from stillhash.numeric.validation import check_integer

FILTERED_DIM = 32
SHARES = {"0.01 %": 1e-4, "1 %": 0.01, "10 %": 0.1, "50 %": 0.5}  # of the items that match
NUMBERS = 100  # distinct integers beside a rare one
OTHER_KINDS = 200  # texts beside those of a known share
NEW_PROCESSES = 3
COLLECTION_ID = b"filters of bench"
LOADED_SETTINGS = {"init_rows": 3000, "learn_rows": 1000, "keep_versions": 32, "source_cap": 1000.0} | dict.fromkeys(
    ("encoder", "filter_fields")
)

# A program, since a function would load this module before the collection is opened.
FIRST_SEARCH_SCRIPT = """
import json, sys, time
import numpy as np
import stillhash

query = np.random.default_rng(1).standard_normal(int(sys.argv[2]), dtype=np.float32)
times = [time.perf_counter()]
collection = stillhash.open(sys.argv[1], read_only=True)
for where in json.loads(sys.argv[3]):
    collection.search(query, 10, where=where)
    times.append(time.perf_counter())
print(json.dumps(times))
"""


class RandomItems(NamedTuple):
    """The metadata of items."""

    price: NDArray[np.float64]  # in [0, 1)
    number: NDArray[np.int64]
    kind: NDArray[np.int64]  # of `kinds`
    labels: NDArray[np.bool_]  # (items, SHARES)


def make_items(count: int, seed: int = 0) -> RandomItems:
    rng = np.random.default_rng(seed)
    shares = np.array([*SHARES.values(), *[(1 - sum(SHARES.values())) / OTHER_KINDS] * OTHER_KINDS])
    kind = np.searchsorted(np.cumsum(shares)[:-1], rng.random(count), "right")
    labels = rng.random((count, len(SHARES)), dtype=np.float32) < np.array([*SHARES.values()], np.float32)
    number = rng.integers(NUMBERS, size=count)
    number[rng.random(count) < SHARES["0.01 %"]] = NUMBERS
    return RandomItems(rng.random(count), number, kind, labels)


def kind_names() -> list[str]:
    return [*SHARES, *(f"kind {n}" for n in range(OTHER_KINDS))]


def segments(items: RandomItems, folder: Path, progress: ReportProgress) -> Batches:
    """Yield segments of random codes, as large as a collection seals them, with their items."""
    names, rng = [json.dumps(name) for name in kind_names()], np.random.default_rng(1)
    subsets = np.ndindex(*[2] * len(SHARES))
    sets = [json.dumps(sorted(name for name, has in zip(SHARES, s, strict=True) if has)) for s in subsets]
    for place, first in enumerate(range(0, len(items.price), SEGMENT_ROWS), 1):
        progress(f"{first:,} of {len(items.price):,} items")
        price, number, kind, labels = (array[first : first + SEGMENT_ROWS] for array in items)
        rows = zip(price.tolist(), number.tolist(), kind.tolist(), strict=True)
        metadata: list[str | None] = [f'{{"price": {p!r}, "number": {n}, "kind": {names[k]}}}' for p, n, k in rows]
        texts = [sets[number] for number in (labels @ (1 << np.arange(len(SHARES))[::-1])).tolist()]
        codes = rng.integers(0, 256, (len(price), CODE_BITS // 8), dtype=np.uint8)
        numbers = np.arange(first, first + len(price))
        path = folder / f"{first:012d}.tiles"
        write_segment(path, CodedRows.without_digests(numbers, codes), CODE_BITS, COLLECTION_ID, place)
        yield read_segment(path, CODE_BITS), ItemRows([*numbers.tolist()], texts, metadata, None), None
        path.unlink()


def conditions(items: RandomItems) -> dict[tuple[str, str], tuple[dict[str, Any], int]]:
    """Return conditions by their name and share, and how many items meet each."""
    price, number, kind, labels = items
    half = labels[:, list(SHARES).index("50 %")]
    cases: dict[tuple[str, str], tuple[dict[str, Any], Any]] = {}
    for place, (name, share) in enumerate(SHARES.items()):
        low, wide = 0.3, min(2 * share, 0.7)
        several = list(range(round(share * NUMBERS))) or [NUMBERS]
        inside = (price >= low) & (price < low + share)
        cases["equal", name] = {"kind": name}, kind == place
        cases["range", name] = {"price": {"$gte": low, "$lt": low + share}}, inside
        cases["$in", name] = {"number": {"$in": several}}, np.isin(number, several)
        cases["label", name] = {"labels": name}, labels[:, place]
        combined = {"price": {"$lt": wide}, "labels": "50 %", "kind": {"$ne": "0.01 %"}, "number": {"$gte": 0}}
        cases["combined", name] = combined, (price < wide) & half & (kind != 0)
    return {case: (where, int(np.count_nonzero(mask))) for case, (where, mask) in cases.items()}


def run(
    quick: bool, progress: ReportProgress, repeats: int = 40, items: int = 1_000_000, folder: Path | None = None
) -> Figures:
    """Time filters of a collection of `items`."""
    check_integer(items, "items", 1000)
    columns = make_items(20_000 if quick else items)
    count = len(columns.price)
    with temporary_folder(folder) as temporary:
        path = temporary / "c"
        hasher = Tally(CODE_BITS).fit(random_features(COLLECTION_FIT_ROWS, FILTERED_DIM, seed=0))
        batches = segments(columns, temporary, progress)
        bulk_load(path, hasher, batches, id=COLLECTION_ID, source="bench", learnt=0, settings=LOADED_SETTINGS)
        progress("opening in new processes")
        first_ms = statistics.median(first_search_ms(path) for _ in range(NEW_PROCESSES))
        cases = conditions(columns)
        with stillhash.open(path, read_only=True) as collection, closing(Store(path, writer=False)) as store:
            progress(f"{len(cases)} conditions on {count:,} items")
            wrong = sum(abs(collection.count(where) - expected) for where, expected in cases.values())
            rows, plain_ms, sql_ms, repeated = time_cases(collection, store, cases, repeats)
            about = collection.stats()["filter_columns"]
    limit = 3 if count <= 1_000_000 else 25
    worst = max(row["extra_ms"] for row in rows)
    goals = [
        ("a filter beyond the search without one, the worst, ms", f"<= {limit}", worst),
        ("first search with a filter in a new process, ms", "<= 1200", first_ms),
        ("items too many or too few", "<= 0", wrong),
    ]
    figures = {"plain_ms": plain_ms, "sql_ms": sql_ms, "repeated_ms": repeated, "first_ms": first_ms}
    sizes = {"items": count, "bits": CODE_BITS, "column_bytes_per_item": about["bytes"] / count}
    return {**sizes, **figures, "rows": rows, "goals": goals}


def time_cases(
    collection: stillhash.Collection, store: Store, cases: dict[Any, Any], repeats: int
) -> tuple[list[Figures], float, float, float]:
    """Return what each condition takes beyond a search without one; the search, SQL and a repeated filter, in ms."""
    query = random_features(1, FILTERED_DIM, seed=1)[0]

    def search(where: dict[str, Any] | None, turn: int) -> None:
        new = where and where | {"$not": {"price": {"$lt": -1 - turn}}}  # which is true, and new in each round
        collection.search(query, TOP_K, where=new)

    def by_sql(_: int) -> None:
        with store.reading() as connection:
            store.items.matching(connection, compile_filter({"kind": "1 %"}).sql)

    contenders: dict[str, Contender] = {"plain": partial(search, None)}
    contenders |= {" ".join(case): partial(search, where) for case, (where, _) in cases.items()}
    contenders["repeated"] = lambda _: collection.search(query, TOP_K, where={"kind": "1 %"})
    times = interleaved(contenders, repeats)
    sql = interleaved({"sql": by_sql}, 1)["sql"]
    plain = np.array(times["plain"])
    rows = []
    for case, share in cases:
        extra = np.quantile(np.array(times[f"{case} {share}"]) - plain, [0.5, 0.9]).tolist()
        ms = 1e3 * statistics.median(times[f"{case} {share}"])
        rows.append(
            {"name": case, "share": share, "ms": ms, "extra_ms": 1e3 * extra[0], "extra_p90_ms": 1e3 * extra[1]}
        )
    repeated = 1e3 * float(np.median(np.array(times["repeated"]) - plain))
    return rows, 1e3 * float(np.median(plain)), 1e3 * sql[0], repeated


def first_search_ms(path: Path) -> float:
    """Time opening a collection and its first search, with a filter on two fields, in a new process."""
    where = json.dumps([{"price": {"$lt": 0.5}, "kind": "10 %"}])
    command = [sys.executable, "-c", FIRST_SEARCH_SCRIPT, str(path), str(FILTERED_DIM), where]
    start, end = json.loads(subprocess.check_output(command))
    return 1e3 * float(end - start)


def tables(result: Figures) -> Sections:
    title = (
        f"Searches of {result['items']:,} items, b = {result['bits']}, with a filter: CPU ms, and beyond one without"
    )
    columns = """condition: {name} | matches: {share} | ms: {ms:.2f} | beyond: {extra_ms:.2f} |
        beyond, p90: {extra_p90_ms:.2f}"""
    about = """no filter: {plain_ms:.2f} | by SQL: {sql_ms:.0f} | again, beyond: {repeated_ms:.2f} |
        new process: {first_ms:.0f} | bytes an item: {column_bytes_per_item:.1f}"""
    about_title = "A search without a filter, a filter by SQL alone, one used before, the first search: ms"
    return [format_table(title, columns, result["rows"]), format_table(about_title, about, [result])]
