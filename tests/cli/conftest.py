"""Settings of the machine's user have no part in tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhash.cli.main import run

RunMain = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def no_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("STILLHASH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("settings")))
    monkeypatch.setenv("APPDATA", os.environ["XDG_CONFIG_HOME"])


@pytest.fixture
def settings_path() -> Path:
    """Where the settings file belongs; its folder exists."""
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "stillhash" / "config.toml"
    path.parent.mkdir()
    return path


@pytest.fixture
def run_main(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> RunMain:
    """Run the command as its script does, in this process: exit code, stdout, stderr."""

    def run_words(*words: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["stillhash", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            run()
        return int(end.value.code or 0), *capfd.readouterr()

    return run_words
