"""Endpoints: where replicas and aggregators listen, one small file for each on the storage."""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from stillhash.cluster.storage import Storage
from stillhash.errors import StillhashError

ENDPOINTS = "endpoints"  # a folder of the storage
REFRESH_SECONDS, MIN_REFRESH_SECONDS = 2.0, 0.1  # between two looks at the endpoints, and after a connection was lost


class Endpoint(NamedTuple):
    """Where a replica of a shard, or an aggregator, listens."""

    name: str
    kind: str  # "shard" or "aggregator"
    shard: int | None
    address: str
    pid: int
    node: str  # of Ray

    def to_json(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Endpoint":
        fields = json.loads(data)
        return cls(**{name: fields[name] for name in cls._fields})

    @property
    def file(self) -> str:
        """The name of its file on the storage."""
        return f"{ENDPOINTS}/{self.name}.json"


def read_endpoints(storage: Storage) -> list[Endpoint]:
    """Read where all replicas listen; files that cannot be read, such as those removed meanwhile, are left out."""
    endpoints = []
    for name in storage.list(ENDPOINTS):
        try:
            endpoints.append(Endpoint.from_json(storage.read(name)))
        except (StillhashError, ValueError, KeyError, TypeError):
            continue
    return endpoints


class EndpointWatch:
    """Reads the endpoints on the storage again and again in a thread, and passes them on."""

    def __init__(self, storage: Storage, use: Callable[[list[Endpoint]], None]) -> None:
        self._storage, self._use = storage, use
        self._stopped, self._hurry = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="stillhash-endpoints", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Look at the endpoints soon."""
        self._hurry.set()

    def stop(self) -> None:
        self._stopped.set()
        self._hurry.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._hurry.clear()
            with suppress(StillhashError):  # the storage is away; known replicas go on answering
                self._use(read_endpoints(self._storage))
            if not self._stopped.wait(MIN_REFRESH_SECONDS):
                self._hurry.wait(REFRESH_SECONDS)
