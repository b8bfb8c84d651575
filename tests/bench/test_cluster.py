"""The bench of a cluster at quick sizes: no answer differs, whatever is killed. No time is judged here."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

pytest.importorskip("ray", reason="Ray is not installed: pip install 'stillhash[cluster]'")

from stillhash.bench import cluster

# In a process of its own: this one may be part of another cluster.
WORK = """
import json, pathlib, sys
from stillhash.bench import cluster
print(json.dumps(cluster.run(quick=True, folder=pathlib.Path(sys.argv[1]))))
"""


@pytest.mark.slow
@pytest.mark.cluster
def test_a_cluster_under_load_and_killed(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WORK, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)  # and nothing else on stdout
    assert list(tmp_path.iterdir()) == [] and result["same"]["different"] == 0 and result["same"]["with_ties"] > 0
    for fault in result["faults"].values():
        assert fault["wrong"] == fault["refused"] == 0 < fault["right"] and fault["actors"] > 0
    console = Console(file=io.StringIO(), width=130)
    cluster.show(result, console)
    assert isinstance(console.file, io.StringIO) and "kill -9 of an actor" in console.file.getvalue()
