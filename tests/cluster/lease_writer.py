"""A writer that takes the lease whenever it can, and commits one row after another until it is ended.

    python -m tests.cluster.lease_writer STORAGE LOG SECONDS

A row's code is a number of its own. It is appended to the log once its commit is acknowledged.
"""

from __future__ import annotations

import os
import sys
from itertools import count
from pathlib import Path

import numpy as np

from stillhash.cluster.lease import WriterLease, fence
from stillhash.cluster.manifest import ClusterManifest, commit_manifest, first_manifest
from stillhash.cluster.placement import place
from stillhash.cluster.segment_files import write_segments
from stillhash.cluster.storage import Storage
from stillhash.errors import Conflict
from tests.cluster.manifests import BITS

TERM_COMMITS = 40  # after which the lease is released to others


def commit_row(storage: Storage, manifest: ClusterManifest, epoch: int, row: int) -> ClusterManifest:
    """Commit one row, and return the manifest."""
    codes, ids = np.array([[row]], "<u8").view(np.uint8), np.array([manifest.next_id])
    after = place(manifest, write_segments(storage, codes, ids, BITS, shards=1)).next(epoch)
    commit_manifest(storage, after)
    return after


def main(url: str, log: Path, seconds: float) -> None:
    storage, rows = Storage(url), count(os.getpid() << 32)
    with log.open("ab", buffering=0) as acknowledged:
        while True:
            with WriterLease(storage, str(os.getpid()), seconds) as lease:
                try:
                    epoch = lease.acquire(wait=600)
                    manifest = fence(storage, epoch, first_manifest(BITS, [0]))
                    for row in (next(rows) for _ in range(TERM_COMMITS)):
                        manifest = commit_row(storage, manifest, epoch, row)
                        acknowledged.write(b"%d\n" % row)
                except Conflict:
                    continue


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
