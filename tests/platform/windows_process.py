"""Use a collection as Windows would: python -m tests.platform.windows_process FOLDER. Prints what it saw, as JSON.

The modules that Windows lacks cannot be imported, and files in use cannot be removed, renamed or replaced.
"""

import gc
import json
import sys
from pathlib import Path

import numpy as np

from tests.support.windows_stand_in import install, used_files

ROWS, DIM = 400, 16
MISSING_MODULES = ("fcntl", "resource", "pwd", "grp", "uvloop", "termios")


def main(folder: Path) -> dict[str, object]:
    """Insert, seal, search, compact, forget, snapshot, export and reopen; return what a test compares."""
    install()
    for name in MISSING_MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    import stillhash

    path, X = folder / "c", np.random.default_rng(1).standard_normal((ROWS, DIM)).astype(np.float32)
    fields = [{"part": number % 4} for number in range(ROWS)]
    seen: dict[str, object] = {}
    with stillhash.open(path, dim=DIM, bits=32, keep_features=True) as collection:
        collection.add(range(ROWS), X, [f"class {number % 3}" for number in range(ROWS)], fields)
        collection.fit()
        collection.seal()
        collection.search(X[0], 3, where={"part": 0})
        collection.delete(range(10))
        collection.compact()  # this process has the segment and its columns mapped
        seen["after compact"] = sorted(file.suffix for file in (path / "segments").iterdir())
        collection.search(X[20], 3, where={"part": 0})
        with collection._view.pinned() as snapshot:  # what a search holds that runs meanwhile, in another thread
            searched = snapshot.index
        report = collection.forget([11])
        seen["remains while searched"] = len(report.remains)
        seen["verify while searched"] = len(collection.verify())
        collection.search(X[20], 3)
        del searched, snapshot
        seen["remains"] = collection.forget([12]).remains
        seen["segments"] = len(list((path / "segments").iterdir()))
        seen["verify"] = collection.verify()
        collection.snapshot(folder / "copy")
        collection.export(folder / "c.jsonl")
        collection.export(folder / "c.jsonl", overwrite=True)
        collection.repair()
        seen["items"] = collection.count()
        nearest = [hit.id for hit in collection.search(X[20], 5).hits]
    gc.collect()
    seen["open after close"] = sorted(name for name in used_files() if name.startswith(str(folder)))
    for other in (path, folder / "copy"):
        with stillhash.open(other) as collection:
            collection.add(["new"], X[:1], ["class 1"])
            seen[f"same in {other.name}"] = [hit.id for hit in collection.search(X[20], 5).hits] == nearest
    with stillhash.import_export(folder / "c.jsonl", folder / "imported") as collection:
        seen["imported"] = collection.count()
    return seen


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]).resolve())))
