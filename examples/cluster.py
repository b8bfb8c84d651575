"""Search one collection on three shards, get the very same answers, and survive the loss of a shard.

The collection is created and learns in this process, as always. A publisher brings its codes and items to shards on a
small Ray cluster, which this program starts on this machine, and a front searches them there, without the collection's
folder: all answers are compared with those of the collection, scores and ties included. The process of one shard is
killed; the next search waits until Ray has started it again, and answers the same. Then labels of more rows are
learnt: fronts get the new model, and the shards need not know.

    pip install 'stillhash[cluster]'            # Linux
    python examples/cluster.py
"""

import argparse
import json
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import stillhash
from stillhash import Answer
from stillhash.cluster import ClusterIndex, FrontCollection, LocalCluster, Publisher

ITEMS, LATE, QUERIES = 30_000, 2000, 100
SHARDS = 3


def run(folder: Path) -> dict[str, Any]:
    """Compare shards with one process, before and after a loss and after learning; count answers that differ."""
    rng = np.random.default_rng(0)
    kinds = rng.random((ITEMS + LATE + QUERIES, 8)) < 0.3
    features = kinds @ rng.normal(size=(8, 32)) + rng.normal(size=(len(kinds), 32))
    stored, late, queries = np.split(features, [ITEMS, ITEMS + LATE])

    with (
        stillhash.open(folder / "items", dim=32, bits=64, init_rows=1000) as collection,
        LocalCluster(nodes=2),  # three nodes with the head, all on this machine
        ClusterIndex(64, SHARDS, storage=folder / "shards") as shards,
        Publisher(collection, shards) as publisher,
    ):
        collection.add(range(ITEMS), stored, kinds[:ITEMS])
        expected = collection.search(queries, k=10)
        publisher.publish()
        with FrontCollection(folder / "shards", deadline=60) as front:  # seconds to wait for a shard that is lost
            different = {"on shards": count_different(front.search(queries, k=10), expected)}

            victim = shards.status()["actors"][0]
            os.kill(victim["pid"], signal.SIGKILL)
            start = time.perf_counter()
            different["after a loss"] = count_different(front.search(queries, k=10), expected)
            seconds = time.perf_counter() - start

            collection.learn(late, kinds[ITEMS : ITEMS + LATE])
            publisher.publish()
            front.refresh()
            expected = collection.search(queries, k=10)
            different["after learning"] = count_different(front.search(queries, k=10), expected)
        rows = [shard["rows"] for shard in shards.status()["shards"]]
    return {"rows": rows, "lost_rows": victim["rows"], "recovery_s": round(seconds, 1), "different": different}


def count_different(answers: list[Answer], expected: list[Answer]) -> int:
    """Return how many answers are not equal in every hit, its score and its place."""
    return sum(one != other for one, other in zip(answers, expected, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a new folder for the collection; a temporary one without")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    options = parser.parse_args()
    if options.out and options.out.exists():
        parser.error(f"--out: expected a new folder, got {options.out}, which exists")
    with tempfile.TemporaryDirectory() as temporary:
        result = run(options.out or Path(temporary) / "cluster")
    if options.json:
        print(json.dumps(result))
        return
    print(f"{ITEMS:,} items on {SHARDS} shards: {', '.join(f'{rows:,}' for rows in result['rows'])}")
    print(f"answers that differ from those of one process, of {QUERIES}:")
    for when, count in result["different"].items():
        print(f"  {when:14} {count}")
    print(f"a shard of {result['lost_rows']:,} items was killed; the next search took {result['recovery_s']} s")


if __name__ == "__main__":
    main()
