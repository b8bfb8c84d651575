"""All places agree on the version, the changelog has its form, and a release is refused where they do not."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path

import pytest

import stillhash
from tests.support.linters import ROOT
from tools.release import changelog_problems, changelog_sections, package_version, release_problems

CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SMALL = """# Changelog

## [Unreleased]

## [0.3.0] - 2026-12-01

### Added

- A verb.

### Fixed

- A bug.

## [0.2.0] - 2026-11-16

### Added

- All.

[Unreleased]: https://example.org/3
[0.3.0]: https://example.org/2
[0.2.0]: https://example.org/1
"""


def test_the_version_has_one_place() -> None:
    setting = PYPROJECT["tool"]["scikit-build"]["metadata"]["version"]
    assert "version" in PYPROJECT["project"]["dynamic"] and "version" not in PYPROJECT["project"]
    assert setting["input"] == "src/stillhash/version.py"
    assert stillhash.__version__ == package_version()


def test_all_places_agree_on_the_version() -> None:
    version = package_version()
    citation = dict(re.findall(r'^(version|date-released): "?([\d.-]+)"?$', (ROOT / "CITATION.cff").read_text(), re.M))
    assert citation["version"] == version
    assert citation["date-released"] == changelog_sections(CHANGELOG)[version][0]
    assert re.findall(r"^ARG VERSION=(.+)$", (ROOT / "Dockerfile").read_text(), re.M) == [version] * 2
    assert f"image: stillhash:{version}\n" in (ROOT / "compose.yaml").read_text()
    assert f"| {version.rpartition('.')[0]}, the latest" in (ROOT / "SECURITY.md").read_text()
    assert f"[{version}]: {PYPROJECT['project']['urls']['Source']}/releases/tag/v{version}\n" in CHANGELOG


def test_the_server_says_the_same_version() -> None:
    server = pytest.importorskip("stillhash.server", reason="needs the extra server")
    settings = server.Settings(collections_folder=ROOT)  # not opened before the application starts
    assert server.create_app({}, settings).version == package_version()


def test_the_changelog_has_its_form() -> None:
    assert changelog_problems(CHANGELOG) == []
    assert all(date.fromisoformat(day) for day, _ in changelog_sections(CHANGELOG).values() if day is not None)


def test_a_small_changelog_is_read() -> None:
    sections = changelog_sections(SMALL)
    assert [*sections] == ["Unreleased", "0.3.0", "0.2.0"]
    assert sections["0.3.0"] == ("2026-12-01", "### Added\n\n- A verb.\n\n### Fixed\n\n- A bug.")
    assert sections["0.2.0"][1] == "### Added\n\n- All."
    assert changelog_problems(SMALL) == release_problems("v0.3.0", "0.3.0", SMALL) == []


PLATFORMS = ("manylinux_2_28", "musllinux_1_2")
WHEELS = [f"stillhash-9.9.9-cp312-abi3-{libc}_{machine}.whl" for libc in PLATFORMS for machine in ("x86_64", "aarch64")]
OTHER_SYSTEMS = ("macosx_11_0_arm64", "macosx_11_0_x86_64", "win_amd64", "win_arm64")
WHEELS += [f"stillhash-9.9.9-cp312-abi3-{system}.whl" for system in OTHER_SYSTEMS]


@pytest.mark.skipif(sys.platform == "win32", reason="the script is for POSIX shells")
@pytest.mark.parametrize("missing", [None, *range(9)])
def test_a_release_has_a_wheel_for_each_platform(missing: int | None, tmp_path: Path) -> None:
    files = [*WHEELS, "stillhash-9.9.9.tar.gz"]
    for number, name in enumerate(files):
        if number != missing:
            folder = tmp_path / "artifacts" / f"artifact-{number % 3}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
    command = [ROOT / "tools" / "collect-release.sh", tmp_path / "artifacts", tmp_path / "dist"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode == 0) == (missing is None), result.stderr
    if missing is None:
        assert sorted(file.name for file in (tmp_path / "dist").iterdir()) == sorted(files)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("## [Unreleased]\n", ""),
        ("## [0.3.0] - 2026-12-01", "## 0.3.0"),
        ("## [0.3.0] - 2026-12-01", "## [0.3.0]"),
        ("## [0.3.0] - 2026-12-01", "## [0.1.0] - 2026-12-01"),
        ("2026-12-01", "2026-11-01"),
        ("### Fixed", "### Repaired"),
        ("- A verb.\n", ""),
        ("### Fixed\n\n- A bug.", "### Fixed\n\n- A bug.\n\n### Changed\n\n- This."),
        ("[0.3.0]: https://example.org/2\n", ""),
    ],
)
def test_a_changelog_without_its_form_is_noticed(before: str, after: str) -> None:
    assert SMALL.count(before) >= 1
    assert changelog_problems(SMALL.replace(before, after)) != []


@pytest.mark.parametrize(
    ("tag", "version", "text"),
    [
        ("v0.3.1", "0.3.0", SMALL),
        ("0.3.0", "0.3.0", SMALL),
        ("v0.4.0", "0.4.0", SMALL),
        ("v0.3.0", "0.3.0", SMALL.replace("## [Unreleased]", "## [Unreleased]\n\n### Added\n\n- More.")),
    ],
)
def test_a_release_that_does_not_agree_is_refused(tag: str, version: str, text: str) -> None:
    assert len(release_problems(tag, version, text)) == 1
