"""Variables of the machine's user have no part in tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from stillhash.cli.main import run

RunMain = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("STILLHASH_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def run_main(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> RunMain:
    """Run the command as its script does, in this process: exit code, stdout, stderr."""

    def run_words(*words: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["stillhash", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            run()
        return int(end.value.code or 0), *capfd.readouterr()

    return run_words
