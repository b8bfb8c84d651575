"""A front in a process of its own: serve what is published to a storage on a free port, and print the address."""

from __future__ import annotations

import sys

from stillhash.cli.front import serve_front
from stillhash.server import Settings

if __name__ == "__main__":
    storage, deadline = sys.argv[1], float(sys.argv[2])
    serve_front(storage, "c", Settings(port=0), lambda url: print(url, flush=True), deadline=deadline)
