"""A small real cluster, to measure costs and to validate the model: shard processes behind ZeroMQ sockets, and a front.

Shards are processes with a ROUTER socket over an `Index`. The front has a DEALER socket for each; a dispatcher thread
sends all queries that wait for a shard as one batch, at most two under way to each, and callers merge the replies.
"""

import json
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import zmq

from stillhash.bench.timing import CODE_BITS, TOP_K
from stillhash.errors import Busy
from stillhash.numeric.validation import Codes, Floats
from stillhash.search import Hits, Index
from stillhash.search.merge import merge_top

BATCHES_IN_FLIGHT = 2  # to each shard
START_SECONDS = 60.0  # until a shard must have its codes
WAIT_SECONDS = 30.0  # of a query
PARENT_CHECK_MS = 2000
STOP = b"stop"

HarnessFrames = list[Any]


def pack_queries(number: int, weights: Floats) -> HarnessFrames:
    """Return a request: a JSON header and the weights."""
    return [json.dumps({"batch": number, "queries": len(weights), "k": TOP_K}).encode(), weights.tobytes()]


def unpack_queries(frames: HarnessFrames) -> tuple[dict[str, Any], Floats]:
    header = json.loads(bytes(frames[0]))
    return header, np.frombuffer(frames[1], np.float32).reshape(header["queries"], CODE_BITS)


def pack_hits(number: int, hits: Hits) -> HarnessFrames:
    """Return a reply: a JSON header, scores and ids."""
    header = json.dumps({"batch": number, "shape": hits.scores.shape}).encode()
    return [header, hits.scores.tobytes(), hits.ids.tobytes()]


def unpack_hits(frames: HarnessFrames) -> tuple[int, Hits]:
    header = json.loads(bytes(frames[0]))
    scores, ids = (np.frombuffer(part, kind) for part, kind in zip(frames[1:], (np.float32, np.int64), strict=True))
    return header["batch"], Hits(scores.reshape(header["shape"]), ids.reshape(header["shape"]))


def rows_of(hits: Hits, start: int, count: int) -> Hits:
    """Return the hits of some of the queries."""
    return Hits(hits.scores[start : start + count], hits.ids[start : start + count])


def random_codes(codes: int, seed: int) -> Codes:
    """Make the codes of one shard."""
    return np.random.default_rng(seed).integers(0, 256, (codes, CODE_BITS // 8), dtype=np.uint8)


def serve_shard(ready: Any, codes: int, first: int, seed: int, threads: int) -> None:
    """Serve a shard of random codes until a message to stop; then reply with the CPU seconds used since the start.

    A shard without codes replies at once with fixed hits: what is measured then is the messages alone.
    """
    index = Index(CODE_BITS, threads=threads)
    if codes:
        index.add(random_codes(codes, seed), np.arange(first, first + codes))
    empty = Hits(np.zeros((1024, TOP_K), np.float32), np.zeros((1024, TOP_K), np.int64))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        ready.send(socket.bind_to_random_port("tcp://127.0.0.1"))
        own, whole = time.thread_time(), time.process_time()
        while True:
            while not socket.poll(PARENT_CHECK_MS):
                parent = multiprocessing.parent_process()
                if parent is not None and not parent.is_alive():
                    return  # it was killed
            requests: list[HarnessFrames] = [socket.recv_multipart(copy=False)]
            while socket.poll(0):
                requests.append(socket.recv_multipart(copy=False))
            if bytes(requests[-1][1]) == STOP:
                used = (time.thread_time() - own, time.process_time() - whole)
                socket.send_multipart([requests[-1][0], json.dumps(used).encode()])
                return
            batches = [unpack_queries(frames[1:]) for frames in requests]
            weights = np.concatenate([each for _, each in batches])
            hits = index.search(weights, TOP_K) if codes else rows_of(empty, 0, len(weights))
            start = 0
            for frames, (header, each) in zip(requests, batches, strict=True):
                part = rows_of(hits, start, len(each))
                socket.send_multipart([frames[0], *pack_hits(header["batch"], part)], copy=False)
                start += len(each)


@contextmanager
def shard_processes(shards: int, codes: int, threads: int = 1) -> Iterator[list[int]]:
    """Start processes that share `codes` random codes; yield their ports."""
    spawn = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    try:
        for number in range(shards):
            here, there = spawn.Pipe()
            part = codes // shards
            process = spawn.Process(target=serve_shard, args=(there, part, number * part, number, threads), daemon=True)
            process.start()
            processes.append(process)
            pipes.append(here)
        ports = []
        for here in pipes:
            if not here.poll(START_SECONDS):
                raise Busy(f"a shard did not start within {START_SECONDS:g} s")
            ports.append(here.recv())
        yield ports
    finally:
        for process in processes:
            process.kill()
            process.join()


class HarnessQuery:
    """A query under way: the hits of each shard, and an event for its caller."""

    def __init__(self, weights: Floats, shards: int) -> None:
        self.weights, self.left = weights, shards
        self.sources: list[Hits] = []
        self.done = threading.Event()


class HarnessFront:
    """The front: `search` may be called by many threads; one dispatcher thread owns the sockets."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.shards = len(ports)
        self.waiting: list[deque[HarnessQuery]] = [deque() for _ in ports]
        self.under_way: list[dict[int, list[HarnessQuery]]] = [{} for _ in ports]
        self.incoming: deque[HarnessQuery] = deque()
        self.wake_read, self.wake_write = os.pipe()
        self.awake, self.closing, self.number = False, False, 0
        self.context = zmq.Context()
        self.sockets = [self.context.socket(zmq.DEALER) for _ in ports]
        for socket, port in zip(self.sockets, ports, strict=True):
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(f"tcp://127.0.0.1:{port}")
        self.thread = threading.Thread(target=self._dispatch, daemon=True)
        self.thread.start()

    def search(self, weights: Floats) -> Hits:
        """Return the hits of one query."""
        query = HarnessQuery(weights[None], self.shards)
        self.incoming.append(query)
        if not self.awake:
            self.awake = True
            os.write(self.wake_write, b"w")
        if not query.done.wait(WAIT_SECONDS):
            raise Busy(f"no answer within {WAIT_SECONDS:g} s")
        return merge_top(query.sources, TOP_K)

    def close(self) -> None:
        """Stop the dispatcher."""
        self.closing = True
        os.write(self.wake_write, b"w")
        self.thread.join()
        self.context.destroy(linger=0)
        os.close(self.wake_read)
        os.close(self.wake_write)

    def _dispatch(self) -> None:
        poller = zmq.Poller()
        poller.register(self.wake_read, zmq.POLLIN)
        for socket in self.sockets:
            poller.register(socket, zmq.POLLIN)
        places = {socket: place for place, socket in enumerate(self.sockets)}
        while not self.closing:
            for ready, _ in poller.poll():
                if ready == self.wake_read:
                    os.read(self.wake_read, 4096)
                    self.awake = False
                else:
                    self._receive(places[ready])
            while self.incoming:
                query = self.incoming.popleft()
                for queue in self.waiting:
                    queue.append(query)
            for place in range(self.shards):
                if self.waiting[place] and len(self.under_way[place]) < BATCHES_IN_FLIGHT:
                    self._send(place)

    def _send(self, place: int) -> None:
        batch = list(self.waiting[place])
        self.waiting[place].clear()
        self.number += 1
        self.under_way[place][self.number] = batch
        weights = np.concatenate([query.weights for query in batch])
        self.sockets[place].send_multipart(pack_queries(self.number, weights), copy=False)

    def _receive(self, place: int) -> None:
        number, hits = unpack_hits(self.sockets[place].recv_multipart(copy=False))
        for row, query in enumerate(self.under_way[place].pop(number)):
            query.sources.append(rows_of(hits, row, 1))
            query.left -= 1
            if not query.left:
                query.done.set()
