"""A front in a process of its own: serve what is published to a storage on a free port, and print the address."""

from __future__ import annotations

import sys

from stillhash.cli.front import serve_front
from stillhash.server import Keys, Settings

if __name__ == "__main__":
    storage, deadline, keys = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    settings = Settings(port=0, keys=Keys(read=keys))
    serve_front(storage, "c", settings, lambda url: print(url, flush=True), deadline=deadline)
