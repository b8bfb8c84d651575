"""What a controller reads and writes on the storage: endpoints of replicas, and nodes that are drained."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq

from stillhash.cluster.endpoints import ENDPOINTS, Endpoint
from stillhash.cluster.messages import pack, unpack
from stillhash.cluster.storage import Storage
from stillhash.errors import NotFound, StillhashError

STATUS_REPLY_SECONDS = 0.5
PLACEMENT_FILE = "control/placement.json"


def ask_status(storage: Storage, name: str) -> dict[str, Any] | None:
    """Request the status of a replica by a message to its endpoint; None if it does not reply."""
    with suppress(StillhashError, ValueError, KeyError, zmq.ZMQError):
        endpoint = Endpoint.from_json(storage.read(f"{ENDPOINTS}/{name}.json"))
        dealer: Any = zmq.Context.instance().socket(zmq.DEALER)
        with dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(endpoint.address)
            header = {"call": "status", "to": name, "number": -1, "seconds": STATUS_REPLY_SECONDS}
            dealer.send_multipart([b"status", *pack(header)])
            if dealer.poll(int(1000 * STATUS_REPLY_SECONDS)):
                return dict(unpack(dealer.recv_multipart()[1:]).header["status"])
    return None


def delete_endpoint(storage: Storage, name: str) -> None:
    """Withdraw an endpoint, so that readers disconnect; `delete_endpoints` tries again if the storage is away."""
    with suppress(StillhashError):
        storage.delete(f"{ENDPOINTS}/{name}.json")


def delete_endpoints(storage: Storage, key: str, exists: Callable[[str], bool]) -> None:
    """Withdraw endpoints whose names begin with this key and of which no actor exists."""
    with suppress(StillhashError):
        for file in storage.list(ENDPOINTS):
            name = file.rpartition("/")[2].removesuffix(".json")
            if name.startswith(f"{key}.") and not exists(name):
                delete_endpoint(storage, name)


def read_drained(storage: Storage) -> set[str]:
    """Return the nodes that were drained, also by an earlier controller."""
    try:
        return set(map(str, json.loads(storage.read(PLACEMENT_FILE))["drained"]))
    except NotFound:
        return set()


def write_drained(storage: Storage, nodes: set[str]) -> None:
    storage.replace(PLACEMENT_FILE, json.dumps({"drained": sorted(nodes)}).encode())
