"""A server for crash tests: serve a collection on a free port, and print the address."""

from __future__ import annotations

import sys

import stillhash
from stillhash.server import Settings
from stillhash.server.run import serve
from tests.collection.fixtures import BITS, DIM, INIT, LEARN

if __name__ == "__main__":
    collection = stillhash.open(sys.argv[1], DIM, BITS, init_rows=INIT, learn_rows=LEARN)
    serve({"c": collection}, Settings(port=0), lambda url: print(url, flush=True))
