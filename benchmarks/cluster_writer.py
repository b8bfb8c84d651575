"""The writer of an index on a cluster as a process that can be killed: it adds rows, and prints those acknowledged.

Its arguments are the storage, the address of the Ray cluster, shards, replicas and the seconds of its lease. Its
commands: `write FIRST` adds rows one by one, with ids from FIRST; `stop` ends that; `ids FIRST` prints the ids from
FIRST on that the index has; `drain NODE` moves the shards off a node. The shards are detached: they go on when the
writer is killed.
"""

import sys
import threading

import numpy as np

from benchmarks.child import commands, print_line
from benchmarks.timing import CODE_BITS
from stillhash.cluster import ClusterIndex
from stillhash.numeric.validation import Codes, Floats

WRITE_SECONDS = 0.05  # between two rows


def marked_code(number: int) -> Codes:
    """Return the code (1, 8) of an added row, which holds its id. Its first bit is 0: see `weigh_first_bit`."""
    return np.concatenate([np.zeros(1, np.uint8), np.array([number], ">u8").view(np.uint8)[1:]])[None]


def weigh_first_bit(weights: Floats) -> Floats:
    """Return queries whose best hits all have the first bit set, so that rows of a writer are never among them."""
    weights = weights.copy()
    weights[:, 0] = np.ceil(2 * np.abs(weights).sum(axis=1))
    return weights


def add_rows(index: ClusterIndex, first: int, stopped: threading.Event) -> None:
    number = first
    while not stopped.wait(WRITE_SECONDS):
        index.add(marked_code(number), [number])
        print_line(acknowledged=number)
        number += 1


def main(storage: str, address: str, shards: str, replicas: str, lease_seconds: str) -> None:
    options = {"storage": storage, "lease_seconds": float(lease_seconds), "threads": 1}
    with ClusterIndex(CODE_BITS, int(shards), int(replicas), address, detached=True, **options) as index:  # type: ignore[arg-type]
        print_line(ready=True)
        stopped, thread = threading.Event(), threading.Thread()
        for command, *arguments in commands():
            if command == "write":
                thread = threading.Thread(target=add_rows, args=(index, int(arguments[0]), stopped), daemon=True)
                thread.start()
            elif command == "stop":
                stopped.set()
                thread.join()
                print_line(stopped=True)
            elif command == "ids":
                ids = index.ids()
                print_line(ids=ids[ids >= int(arguments[0])].tolist())
            elif command == "drain":
                print_line(drained=index.drain(arguments[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
