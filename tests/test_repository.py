"""Workflows, forms and settings of the repository are valid, and name only what exists."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.linters import ROOT, check_schema, lint

yaml = pytest.importorskip("yaml", reason="pip install pyyaml: the workflows are YAML")

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(file for file in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if file.name != "config.yml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKE_TARGETS = frozenset(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def workflow(file: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    parsed["on"] = parsed.pop(True)  # YAML 1.1 reads `on` so
    return parsed


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in WORKFLOWS:
        for name, job in workflow(file)["jobs"].items():
            yield f"{file.name}: {name}", job


def commands(job: dict[str, Any]) -> list[str]:
    """Return all commands of a job, those of its matrix too."""
    included = job.get("strategy", {}).get("matrix", {}).get("include", [])
    steps = [step["run"] for step in job.get("steps", []) if "run" in step]
    return steps + [each.get("command", "") for each in included]


def test_there_is_a_workflow_for_every_task() -> None:
    assert [file.stem for file in WORKFLOWS] == ["docs", "nightly", "release", "test", "wheels"]


def test_make_targets_of_workflows_exist() -> None:
    targets = {target for _, job in jobs() for text in commands(job) for target in re.findall(r"\bmake ([\w-]+)", text)}
    assert {
        "test",
        "test-all",
        "portable-tests",
        "fuzz",
        "sanitize",
        "sanitize-threads",
        "faults",
        "docker",
        "docs",
        "test-lowest",
    } <= targets
    assert targets - MAKE_TARGETS == set()


def test_windows_runs_the_portable_tests() -> None:
    (portable,) = re.findall(r"^PORTABLE := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert f'-m "{portable}" --ignore=tests/cluster' in "".join(commands(dict(jobs())["test.yml: test"]))


def test_files_that_workflows_name_exist() -> None:
    named = set()
    for file in WORKFLOWS:
        named |= set(
            re.findall(r"(?<![\w/.-])(?:\./)?((?:deploy|tests|tools|src|\.github)/[\w./*-]+)", file.read_text())
        )
        triggers = workflow(file)["on"].values()
        named |= {path for each in triggers if isinstance(each, dict) for path in each.get("paths", [])}
    assert {"tools/release.py", ".github/workflows/wheels.yml", "pyproject.toml"} <= named
    assert [name for name in named if not [*ROOT.glob(name)]] == []


def test_python_versions_are_those_of_the_classifiers() -> None:
    prefix = "Programming Language :: Python :: "
    versions = [each.removeprefix(prefix) for each in PROJECT["classifiers"] if re.match(rf"{prefix}3\.\d+$", each)]
    matrix = workflow(ROOT / ".github" / "workflows" / "test.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == versions
    assert PROJECT["requires-python"] == f">={versions[0]}"


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_have_few_permissions_and_end(file: Path) -> None:
    parsed = workflow(file)
    assert parsed["permissions"] == {} and parsed["concurrency"]["group"]
    for name, job in parsed["jobs"].items():
        assert job["permissions"], name
        assert "uses" in job or job["timeout-minutes"] <= 120, name
        for step in job.get("steps", []):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, name


def test_actions_have_one_version_each() -> None:
    versions = defaultdict(set)
    for _, job in jobs():
        for step in job.get("steps", []):
            if "uses" in step:
                action, _, version = step["uses"].partition("@")
                versions[action].add(version)
    assert versions and all(len(each) == 1 and "" not in each for each in versions.values()), versions


def test_publishing_needs_no_stored_secret() -> None:
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert "secrets." not in release
    job = workflow(ROOT / ".github" / "workflows" / "release.yml")["jobs"]["pypi"]
    assert job["permissions"] == {"id-token": "write"} and job["environment"]["name"] == "pypi"


def test_workflows_pass_actionlint() -> None:
    lint("actionlint", "-no-color")


def test_workflows_pass_zizmor() -> None:
    lint("zizmor", "--offline", "--no-progress", "--quiet", "--persona", "pedantic", ".github")


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [".github/ISSUE_TEMPLATE/config.yml"]),
        ("dependabot", [".github/dependabot.yml"]),
        ("citation-file-format", ["CITATION.cff"]),
    ],
)
def test_settings_fit_their_schemas(schema: str, files: list[str | Path]) -> None:
    check_schema(f"vendor.{schema}", *files)


def test_forms_have_a_question_of_each_name_once() -> None:
    assert [file.stem for file in FORMS] == ["bug", "feature", "question"]
    for file in FORMS:
        names = [field["id"] for field in yaml.safe_load(file.read_text())["body"]]
        assert len(names) == len(set(names)) > 0


def test_dependabot_updates_everything_that_has_versions() -> None:
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]
    assert {each["package-ecosystem"] for each in updates} == {"pip", "github-actions", "docker", "docker-compose"}


def test_hooks_run_tools_of_the_dev_extra() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    tools = {re.match(r"\.venv/bin/(\S+)", hook["entry"])[1] for hook in hooks}  # type: ignore[index]
    packages = {re.split(r"[>=\[;]", each)[0] for each in PROJECT["optional-dependencies"]["dev"]}
    assert tools - {"python", "lint-imports"} <= packages and "import-linter" in packages
