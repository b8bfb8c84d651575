"""One real cluster for all tests of the package: a head and three small nodes, on loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'stillhash[cluster]'")

from stillhash.cluster.local import LocalCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Return the nodes; a test that removes one adds another."""
    before = descendants()
    with LocalCluster(3, cpus=4, fast_health_check=True) as nodes:
        yield nodes
    left = {pid for pid in descendants() - before if "ray" in command_line(pid)}  # other tests start processes too
    assert not left, f"processes of the cluster are left: {left}"


def command_line(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def descendants() -> set[int]:
    """Return the processes that this one started, and theirs."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(folder.name)] = int(fields[1])
    pids, children = set[int](), {os.getpid()}
    while children:
        children = {pid for pid, parent in parents.items() if parent in children} - pids
        pids |= children
    return pids
