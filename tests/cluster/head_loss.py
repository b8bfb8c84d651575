"""Kill the process at the head that knows the cluster (GCS) while readers search, in a cluster of its own; print JSON.

Arguments: a folder. Run as a process: the tests' own process is part of another cluster.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

from stillhash.cluster import ClusterIndex, ClusterReader, LocalCluster
from tests.cluster.conftest import command_line
from tests.cluster.search_load import DEADLINE, SEGMENTS, reference_index, search_load, wait_until


def main(folder: Path) -> None:
    reference, codes, weights = reference_index()
    with LocalCluster(1, cpus=2, fast_health_check=True) as cluster:  # whose other processes at the head end with it
        index = ClusterIndex(64, 2, storage=folder, threads=1, deadline=DEADLINE)
        for part in np.split(codes, SEGMENTS):
            index.add(part)
        index.drain(cluster.head)
        with ClusterReader(folder, deadline=DEADLINE) as reader, search_load(reader, reference, weights) as load:
            (gcs,) = (pid for pid in cluster.processes(cluster.head) if "gcs_server" in command_line(pid))
            os.kill(gcs, signal.SIGKILL)
            load.wait_for_answers(50)
            problems = wait_until(lambda: index.status()["problems"], "a problem") or index.status()["problems"]
            load.wait_for_answers(50)
            late = ClusterReader(folder, deadline=DEADLINE)  # one that starts without the head
            late.wait_ready(DEADLINE)
            same = late.search(weights, 9).ids.tobytes() == reference.search(weights, 9).ids.tobytes()
            late.close()
        index.add(codes[:10])  # writes need the storage only; after the load, whose answers they change
        reference.add(codes[:10])
        written = index.search(weights, 300).ids.tobytes() == reference.search(weights, 300).ids.tobytes()
        index.close()
    print(
        json.dumps(
            {"outcomes": load.outcomes, "problems": problems, "same": same, "written": written, "rows": len(index)}
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
