"""The bench of the server at quick sizes: no errors, nothing lost. No time is judged here."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from stillhash.bench import serve


def test_a_server_under_load_and_killed(tmp_path: Path) -> None:
    result = serve.run(quick=True, folder=tmp_path)
    assert list(tmp_path.iterdir()) == [] and json.loads(json.dumps(result)) == result
    assert result["load"]["errors"] == 0, result["load"]["first_error"]
    assert result["load"]["searches"] > 0 and result["load"]["versions"] > 0
    assert result["killed"]["acknowledged"] > 0 and result["killed"]["lost"] == 0
    console = Console(file=io.StringIO(), width=100)
    serve.show(result, console)
    assert isinstance(console.file, io.StringIO) and "searches/s" in console.file.getvalue()
