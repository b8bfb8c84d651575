"""Try all faults, and print what came of them as the tables of docs/guarantees.md.

STILLHASH_FAULTS is how many are tried of each kind, and STILLHASH_FAULT_SECONDS how long a server is loaded in each
phase. It ends with 1 if something was lost, was not reported as it should be, or ended a process.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.faults.injection import missing
from tests.faults.scenarios import (
    DISK,
    LIBRARY_FAULTS,
    SERVER_FAULTS,
    Outcome,
    Workshop,
    clock_jumps,
    killed_reader,
    run_library,
)
from tests.support.seeds import run_seed

FAULTS = int(os.environ.get("STILLHASH_FAULTS", "40"))
SECONDS = float(os.environ.get("STILLHASH_FAULT_SECONDS", "5"))


def library_rows(workshop: Workshop, wrong: list[str]) -> None:
    print("| fails | in | tried | reported as | wrong |\n|---|---|---|---|---|")

    def show(name: str, where: str, outcome: Outcome) -> None:
        tried = f"{outcome.tried:,}" + (f" of {outcome.calls:,}" if outcome.calls > outcome.tried else "")
        print(f"| {name} | {where} | {tried} | {counts(outcome)} | {len(outcome.wrong)} |", flush=True)
        wrong.extend(outcome.wrong)

    for name, (where, module, kind) in LIBRARY_FAULTS.items():
        show(name, where, run_library(workshop, module, kind, FAULTS, run_seed(), by_disk=module == DISK))
    show("a reader is killed, in a search or a transaction", "collection", killed_reader(workshop, max(2, FAULTS // 4)))
    show("the clock jumps back by years", "collection", clock_jumps(workshop))


def server_rows(workshop: Workshop, wrong: list[str]) -> None:
    print("\n| fails in a server | answers meanwhile | requests/s before, during, after | p50 ms | p99 ms | wrong |")
    print("|---|---|---|---|---|---|")
    for name, scenario in SERVER_FAULTS.items():
        outcome = scenario(workshop, SECONDS)
        phases = outcome.phases.values()
        rates = ", ".join(f"{phase.rate:,.0f}" for phase in phases)
        p50, p99 = (", ".join(f"{phase.quantile(share):.0f}" for phase in phases) for share in (0.5, 0.99))
        print(f"| {name} | {counts(outcome)} | {rates} | {p50} | {p99} | {len(outcome.wrong)} |", flush=True)
        wrong.extend(outcome.wrong)


def counts(outcome: Outcome) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in outcome.reported.most_common()) or "nothing"


def main() -> int:
    if reason := missing():
        print(reason, file=sys.stderr)
        return 2
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        workshop = Workshop(Path(folder))
        library_rows(workshop, wrong)
        server_rows(workshop, wrong)
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
