"""Fuzz all targets in two processes: python -m tests.fuzz --seconds 60 [--only where,npy].

It prints a table, and exits with 1 if a case failed; the input is saved in tests/fuzz/corpus/TARGET, which the tests
run from then on. STILLHASH_SEED repeats a run, as far as the time allows the same number of cases.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.fuzz.engine import CASE_SECONDS, CORPUS, fuzz
from tests.fuzz.targets import TARGETS
from tests.support.seeds import SEED_VARIABLE, run_seed

PROCESSES = 2
ROOT = Path(__file__).parents[2]
COLUMNS = ("target", "cases", "cases/s", "accepted", "refused", "answers", "failures")
ROW = "{:14}{:>9}{:>10}{:>10}{:>10}{:>9}{:>10}"


def work(name: str, seconds: float, current: str) -> None:
    """Fuzz one target, and print the outcome as JSON."""
    outcome = fuzz(TARGETS[name], run_seed(), seconds=seconds, current=Path(current))
    failures = {failure: base64.b64encode(data).decode() for failure, data in outcome.failures.items()}
    print(json.dumps({**vars(outcome), "answers": len(outcome.answers), "failures": failures}))


def run_target(name: str, seconds: float) -> dict[str, Any]:
    """Fuzz one target in a process of its own; if that ends early, the last input is the failure."""
    with tempfile.NamedTemporaryFile(prefix="stillhash-fuzz-input-") as current:
        arguments = ["--work", name, "--seconds", str(seconds), "--input", current.name]
        command = [sys.executable, "-m", "tests.fuzz", *arguments]
        child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if child.returncode == 0:
            result: dict[str, Any] = json.loads(child.stdout.strip().rpartition("\n")[2])
            failures = {failure: base64.b64decode(data) for failure, data in result["failures"].items()}
            return {**result, "target": name, "failures": failures, "log": child.stderr}
        kind = f"more than {CASE_SECONDS} s" if child.returncode == -14 else f"exit code {child.returncode}"
        failures = {kind: Path(current.name).read_bytes()}
    counts = dict.fromkeys(("cases", "accepted", "refused", "answers", "seconds"), 0)
    return {**counts, "target": name, "failures": failures, "log": child.stderr}


def save(name: str, failure: str, data: bytes) -> Path:
    """Save the input of a failure in the corpus."""
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    kind = re.sub(r"[^a-z0-9]+", "-", failure.lower()).strip("-")
    path = folder / f"{kind}-{hashlib.sha256(data).hexdigest()[:8]}"
    path.write_bytes(data)
    return path


def main(names: list[str], seconds: float) -> int:
    """Fuzz these targets for so long in all, and return the exit code."""
    print(f"{SEED_VARIABLE}={run_seed()}")
    each = seconds * PROCESSES / len(names)
    with ThreadPoolExecutor(PROCESSES) as pool:
        results = list(pool.map(lambda name: run_target(name, each), names))
    print(ROW.format(*COLUMNS))
    for result in results:
        speed = result["cases"] / max(result["seconds"], 0.001)
        counts = [result[column] for column in ("accepted", "refused", "answers")]
        print(ROW.format(result["target"], result["cases"], f"{speed:.0f}", *counts, len(result["failures"])))
    for result in results:
        for failure, data in result["failures"].items():
            print(f"{result['target']}: {failure}: {save(result['target'], failure, data)}")
        if result["failures"]:
            print(result["log"][-6000:])
    return int(any(result["failures"] for result in results))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", default=",".join(TARGETS), help="targets, separated by commas")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--input", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.seconds, options.input)
    else:
        sys.exit(main(options.only.split(","), options.seconds))
