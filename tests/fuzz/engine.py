"""Run a target on mutated input: each case is accepted or refused with an error of ours, within limits.

A target is a function of bytes. A case fails if it raises anything but the errors that the target documents, takes more
than `CASE_SECONDS`, or needs more memory than the target allows. Input that gets a new answer, accepted or a message
that was not there before, is mutated further.
"""

from __future__ import annotations

import faulthandler
import random
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stillhash.errors import StillhashError
from tests.fuzz.mutations import Rng, mutate_bytes

CASE_SECONDS = 10
MEMORY = 512 << 20  # of a case, on top of what the process has
MAX_POOL = 300
MAX_INPUT = 1 << 20  # bytes: mutations may not grow it without end
SHRINK_SECONDS = 3
CORPUS = Path(__file__).parent / "corpus"

Mutate = Callable[[Rng, bytes, list[bytes]], bytes]


@dataclass(frozen=True)
class Target:
    """Something that reads bytes of unknown origin."""

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]  # valid input
    mutate: Mutate = mutate_bytes
    fix: Callable[[bytes], bytes] | None = None  # makes checksums right again, so that what is behind them is reached
    refusals: tuple[type[Exception], ...] = (StillhashError,)
    memory: int = MEMORY


@dataclass
class Outcome:
    """What became of the cases of a target."""

    cases: int = 0
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    answers: set[str] = field(default_factory=set)  # distinct ones
    failures: dict[str, bytes] = field(default_factory=dict)  # by what and where, the first input


def run_case(target: Target, data: bytes) -> str | None:
    """Return None if the input is accepted, or why it is refused; any other exception is a failure."""
    try:
        target.run(data)
    except target.refusals as error:
        cause = error.__cause__ or error.__context__
        if isinstance(cause, MemoryError) and "allocate" in str(cause):  # Python's parser has one for deep nesting
            raise MemoryError("sizes must be compared before so much is allocated") from error
        return f"{type(error).__name__}: {without_values(str(error))}"
    return None


def without_values(message: str) -> str:
    """Return a message without the values of this input, so that messages of one origin are the same."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|[^ ]*\d[^ ]*|got .*", "#", message[:200])[:60]


def failure_of(error: BaseException) -> str:
    """Return the kind of an exception, and the last place of ours that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    last = ([frame for frame in frames if "/stillhash/" in frame.filename] or frames)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"


def next_case(target: Target, rng: Rng, pool: list[bytes]) -> bytes:
    """Return the next input: a mutation of one in the pool."""
    data = target.mutate(rng, rng.choice(pool), pool)[:MAX_INPUT]
    return target.fix(data) if target.fix is not None and rng.random() < 0.8 else data


def limit_memory(extra: int) -> None:
    """Limit the address space to what is in use and so much more."""
    used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + extra, resource.RLIM_INFINITY))


def fuzz(
    target: Target, seed: str, *, cases: int | None = None, seconds: float | None = None, current: Path | None = None
) -> Outcome:
    """Run so many cases, or for so long. Before each case its input is written to `current`, for one that is the last.

    A case that takes too long ends the process, with a traceback.
    """
    rng, pool, outcome = random.Random(f"{seed} {target.name}"), target.seeds(), Outcome()
    for data in pool:
        if (refusal := run_case(target, data)) is not None:
            raise AssertionError(f"{target.name}: expected valid seeds, got one that is refused: {refusal}")
    start = time.monotonic()
    if current is not None:
        limit_memory(target.memory)
        faulthandler.register(signal.SIGALRM, chain=True)
    while outcome.cases != cases and (seconds is None or time.monotonic() - start < seconds):
        data = next_case(target, rng, pool)
        if current is not None:
            current.write_bytes(data)
            signal.alarm(CASE_SECONDS)
        outcome.cases += 1
        try:
            refusal = run_case(target, data)
        except Exception as error:
            signal.alarm(0)
            failure = failure_of(error)
            if failure not in outcome.failures:
                traceback.print_exception(error, limit=-4, file=sys.stderr)
                outcome.failures[failure] = shrink(target, data, failure)
            continue
        finally:
            if current is not None:
                signal.alarm(0)
        outcome.accepted += refusal is None
        outcome.refused += refusal is not None
        if (refusal or "accepted") not in outcome.answers:
            outcome.answers.add(refusal or "accepted")
            if len(pool) < MAX_POOL and len(data) < MAX_INPUT // 4:
                pool.append(data)
    outcome.seconds = time.monotonic() - start
    return outcome


def shrink(target: Target, data: bytes, failure: str) -> bytes:
    """Return shorter input with the same failure, as far as it is found soon."""

    def fails(candidate: bytes) -> bool:
        try:
            run_case(target, candidate)
        except Exception as error:
            return failure_of(error) == failure
        return False

    step, end = len(data) // 2, time.monotonic() + SHRINK_SECONDS
    while step and time.monotonic() < end:
        at = 0
        while at < len(data) and time.monotonic() < end:
            candidate = data[:at] + data[at + step :]
            candidate = target.fix(candidate) if target.fix else candidate
            if len(candidate) < len(data) and fails(candidate):
                data = candidate
            else:
                at += step
        step //= 2
    return data
