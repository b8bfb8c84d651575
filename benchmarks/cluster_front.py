"""A front of an index on a cluster as a process that can be killed: clients send it queries over TCP.

Its arguments are the storage and the deadline of a search. A query is the bytes of its weights; the answer is the
bytes of its hits, or an error as text, which is shorter or longer than any hits.
"""

import os
import sys
import threading
from multiprocessing.connection import Connection, Listener

import numpy as np

from benchmarks.child import commands, print_line
from benchmarks.timing import CODE_BITS, TOP_K, hit_bytes
from stillhash.cluster import ClusterReader
from stillhash.errors import StillhashError

ANSWER_BYTES = TOP_K * (4 + 8)
QUERY_BYTES = 4 * CODE_BITS


def answer_client(reader: ClusterReader, connection: Connection) -> None:
    """Answer the queries of one client until it goes."""
    with connection:
        while True:
            try:
                weights = np.frombuffer(connection.recv_bytes(QUERY_BYTES), np.float32)
                connection.send_bytes(answer_query(reader, weights))
            except (EOFError, OSError):
                return


def answer_query(reader: ClusterReader, weights: np.ndarray) -> bytes:
    try:
        return hit_bytes(reader.search(weights, TOP_K))[0]
    except StillhashError as error:
        text = f"{type(error).__name__}: {error}".encode()
        return text if len(text) != ANSWER_BYTES else text + b"."


def main(storage: str, deadline: str) -> None:
    reader = ClusterReader(storage, deadline=float(deadline))
    reader.wait_ready()
    with Listener(("127.0.0.1", 0), backlog=128) as listener:
        print_line(port=listener.address[1])
        threading.Thread(target=accept_clients, args=(reader, listener), daemon=True).start()
        for _ in commands():  # until the input ends
            pass
        os._exit(0)  # clients may still wait


def accept_clients(reader: ClusterReader, listener: Listener) -> None:
    while True:
        threading.Thread(target=answer_client, args=(reader, listener.accept()), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
