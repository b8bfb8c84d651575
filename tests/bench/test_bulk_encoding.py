from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'stillhash[cluster]'")

# In a process of its own: this one may be connected to a cluster already.
QUICK = """
import json, sys
from pathlib import Path
from rich.console import Console
from stillhash.bench import bulk_encoding
result = bulk_encoding.run(quick=True, folder=Path(sys.argv[1]))
bulk_encoding.show(result, Console(stderr=True))
print(json.dumps(result["goals"]))
"""


@pytest.mark.slow
@pytest.mark.cluster
def test_nothing_is_lost_and_all_is_exact(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", QUICK, str(tmp_path)], capture_output=True, text=True, check=True)
    goals = json.loads(done.stdout.splitlines()[-1])
    assert len(goals) == 5 and all(one["met"] for one in goals), goals
    assert "Driver killed at" in done.stderr
