"""What a controller keeps on the storage: endpoints that it withdraws, and nodes that are drained."""

import json
from collections.abc import Callable
from contextlib import suppress

from stillhash.cluster.connections import ENDPOINTS
from stillhash.cluster.storage import Storage
from stillhash.errors import NotFound, StillhashError

PLACEMENT_FILE = "control/placement.json"


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
