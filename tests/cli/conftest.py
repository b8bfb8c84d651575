"""Settings of the machine's user have no part in tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


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
