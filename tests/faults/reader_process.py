"""A process to be killed: it searches a collection again and again, or stays in one read transaction."""

from __future__ import annotations

import sys
import time

import stillhash
from tests.collection.fixtures import some_rows

if __name__ == "__main__":
    path, what = sys.argv[1:]
    with stillhash.open(path, read_only=True) as collection:
        if what == "hold":
            with collection._store.reading() as connection:
                connection.execute("SELECT count(*) FROM items").fetchone()
                print("ready", flush=True)
                time.sleep(600)
        query, announced = some_rows(8).X, False
        while True:
            collection.search(query, 100, where={"odd": True})
            if not announced:
                print("ready", flush=True)
                announced = True
