"""Input that once failed, and a short run of every target from a fixed seed; `make fuzz` runs them for longer."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stillhash.errors import BadState, InvalidInput
from tests.fuzz.engine import CORPUS, Outcome, Target, fuzz, run_case
from tests.fuzz.mutations import mutate_json, to_json
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
CASES = {"store": 6, "wal": 20, "sealed": 20, "segment": 30}  # of a short run; 100 of the others
SEED = "1"
# Damage that has right checksums: to be removed when storage refuses it.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # extreme statistics overflow, and are answered


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_failed_once_is_accepted_or_refused(path: Path) -> None:
    run_case(TARGETS[path.parent.name], path.read_bytes())


@pytest.mark.medium
@pytest.mark.parametrize("name", TARGETS)
def test_a_short_run_has_no_failure(name: str) -> None:
    outcome = fuzz(TARGETS[name], SEED, cases=CASES.get(name, 100))
    assert not outcome.failures
    assert outcome.refused or name == "wal"  # a log ends where it is damaged, and is never refused
    assert outcome.accepted + outcome.refused == outcome.cases


def read_pair(data: bytes) -> None:
    """Read two digits after a letter; with a mistake, that of "q"."""
    if data[:1] not in (b"a", b"q"):
        raise InvalidInput("pair: expected a letter")
    if data[:1] == b"q":
        raise KeyError(data[0])
    int(data[1:3] or b"0")


def outcome_of(run: object, seeds: list[bytes], cases: int = 2000) -> Outcome:
    return fuzz(Target("pair", run, lambda: list(seeds), refusals=(ValueError,)), SEED, cases=cases)  # type: ignore[arg-type]


def test_an_error_of_another_kind_is_reported_once_with_short_input() -> None:
    outcome = outcome_of(read_pair, [b"a12 and more", b"a90"])
    (failure,) = outcome.failures
    assert failure.startswith("KeyError at test_corpus.py:")
    assert outcome.failures[failure] == b"q"
    assert outcome.accepted and outcome.refused


def test_a_seed_repeats_a_run() -> None:
    cases: list[list[bytes]] = [[], []]
    for seen in cases:
        outcome_of(seen.append, [b"a12", b"a90"], cases=50)
    assert cases[0] == cases[1]


def test_invalid_seeds_are_a_mistake_of_the_target() -> None:
    with pytest.raises(AssertionError, match="valid seeds"):
        outcome_of(read_pair, [b"b"])


def test_an_allocation_that_fails_is_no_refusal() -> None:
    def allocate(data: bytes) -> None:
        try:
            raise MemoryError("Unable to allocate 1 TiB")
        except MemoryError:
            raise BadState("too large") from None

    with pytest.raises(MemoryError):
        run_case(Target("large", allocate, list), b"")


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("__import__('time').sleep(60)", -14),
        ("__import__('os').kill(__import__('os').getpid(), 11)", -11),
        ("bytearray(600 << 20)", 3),
        ("None", 0),
    ],
)
def test_limits_end_a_case(tmp_path: Path, statement: str, expected: int) -> None:
    """A case that takes too long or crashes ends the process, and one that needs too much memory fails."""
    script = f"""
import sys
from pathlib import Path
from tests.fuzz import engine
engine.CASE_SECONDS = 1
calls = []
def run(data):
    calls.append(data)
    if len(calls) > 1:  # the first is the seed
        {statement}
outcome = engine.fuzz(engine.Target("t", run, lambda: [b"seed"]), "1", cases=2, current=Path(sys.argv[1]))
sys.exit(3 if [name for name in outcome.failures if name.startswith("MemoryError")] else 0)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "current")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    start = time.monotonic()
    child = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False, timeout=60)
    assert child.returncode == expected, child.stderr
    assert (tmp_path / "current").read_bytes() and time.monotonic() - start < 60


def test_deep_json_is_written_as_text() -> None:
    rng = random.Random(0)
    texts = [mutate_json(rng, b'{"a": [1, {"b": 2}]}', [b"x"], ["a"]) for _ in range(3000)]
    assert max(text.count(b"[") for text in texts) > 2000 and len(set(texts)) > 500
    assert to_json({"a": [None, "\ud800"]}) == b'{"a": [null, "\\ud800"]}'
