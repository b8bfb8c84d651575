"""Run a bench once, at quick sizes, the way a user does."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from typing import Any

from rich.console import Console

from benchmarks import timing
from benchmarks.__main__ import run


def run_bench(name: str, *options: str) -> dict[str, Any]:
    """Return the JSON result of `python -m benchmarks NAME --quick`, run in this process."""
    out = io.StringIO()
    with redirect_stdout(out):
        run(name, ["--quick", "--json", *options])
    result: dict[str, Any] = json.loads(out.getvalue())  # and nothing else on stdout
    assert result["quick"] and result["machine"]["cpu"] and result["goals"]
    return result


def printed(bench: Any, result: dict[str, Any], width: int = 100) -> list[str]:
    """Return the lines that the command prints without --json."""
    out = io.StringIO()
    timing.print_bench(bench, result, Console(file=out, width=width))
    return out.getvalue().splitlines()
