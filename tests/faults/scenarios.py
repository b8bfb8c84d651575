"""All faults, each tried on a library process, on a real server, or on a reader: what came of it.

`python -m tests.faults` runs them at length and prints the table of docs/guarantees.md; the tests run them briefly.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import stillhash
from tests.collection import disk
from tests.collection.fixtures import begin, some_rows
from tests.faults.injection import LARGE, MEMORY, THREAD, Injection, build
from tests.faults.server_load import ROOT, Phase, Server, serving

HOUR, DAYS = 3600.0, 86_400.0 * 400
SPARE_HANDLES = 4  # of a server whose limit of them is lowered
IDLE_CONNECTIONS = 2  # that take some of them
BUSY_SHARE = 0.5  # of a core: a server that waits for a file handle takes less
EACH = 40  # so many large allocations of a server, one fails


@dataclass
class Outcome:
    """What came of the faults of one kind."""

    tried: int
    calls: int = 0  # that could have failed, where they are counted
    reported: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    phases: dict[str, Phase] = field(default_factory=dict)  # of a server: before, during and after the fault


@dataclass
class Workshop:
    """The libraries to preload, built once, and a folder for each scenario."""

    folder: Path
    system: Path = field(init=False)
    failing_disk: Path = field(init=False)

    def __post_init__(self) -> None:
        self.system = build("faults.cpp", self.folder / "faults.so")
        self.failing_disk = self.folder / "disk.so"
        disk.build(self.failing_disk)
        collection, _ = begin(self.folder / "template")
        collection.close()

    def new_folder(self) -> Path:
        folder = self.folder / f"run {len(list(self.folder.iterdir()))}"
        folder.mkdir()
        folder.chmod(0o777)
        return folder

    def collection(self) -> Path:
        """Return a copy of a small collection."""
        return Path(shutil.copytree(self.folder / "template", self.new_folder() / "c"))

    def injection(self) -> Injection:
        return Injection(self.system, self.new_folder() / "control")


def run_library(workshop: Workshop, module: str, kind: str, most: int, seed: str, by_disk: bool = False) -> Outcome:
    """Try faults in processes of their own, by a module that prints JSON."""
    injection, folder = workshop.injection(), [] if module.endswith("index_process") else [str(workshop.new_folder())]
    environment = disk.preloaded(workshop.failing_disk) if by_disk else injection.environment
    command = [sys.executable, "-m", module, *folder, str(most), seed, kind]
    process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    if process.returncode:
        return Outcome(0, wrong=[f"{kind}: ended with {process.returncode}: {process.stderr[-3000:]}"])
    result = json.loads(process.stdout)[kind]
    wrong = [f"{kind} {at}:\n{text}" for at, text in result["wrong"].items()]
    return Outcome(result["tried"], result["calls"], Counter(result["errors"]), wrong)


def run_server(
    workshop: Workshop,
    seconds: float,
    start: Callable[[Server, Injection], None],
    stop: Callable[[Server, Injection], None],
    by_disk: bool = False,
) -> Outcome:
    """Load a server before, during and after a fault."""
    path, injection, phases = workshop.collection(), workshop.injection(), {}
    environment = disk.preloaded(workshop.failing_disk) if by_disk else injection.environment
    with serving(path, environment, "--rate", "100000", disk=by_disk) as server:
        phases["before"] = server.load(seconds)
        start(server, injection)
        phases["during"] = server.load(2 * seconds)
        stop(server, injection)
        server.load(1.5)  # asyncio accepts again after a second
        phases["after"] = server.load(seconds)
        wrong = [text for phase in phases.values() for text in phase.wrong] + server.missing()
    for name in ("before", "after"):
        if set(phases[name].outcomes) != {"200"}:
            wrong.append(f"{name} the fault: {dict(phases[name].outcomes)}")
    with stillhash.open(path) as collection:
        wrong += collection.verify()
        ids = sorted(server.acknowledged)
        if not ids or None in collection.get(ids):
            wrong.append(f"of {len(ids)} acknowledged items some are lost")
    return Outcome(sum(phases["during"].outcomes.values()), 0, phases["during"].outcomes, wrong, phases)


def server_system(kind: int, workshop: Workshop, seconds: float) -> Outcome:
    """Let each EACH-th large allocation fail, or all threads."""
    course, at = ("each", EACH) if kind == MEMORY else ("from then", 1)
    return run_server(
        workshop,
        seconds,
        lambda _, injection: injection.fail(kind, course, at, LARGE),  # type: ignore[arg-type]
        lambda _, injection: void(injection.stop()),
    )


def server_clock(workshop: Workshop, seconds: float) -> Outcome:
    """Let the clock jump back, and ahead again."""
    return run_server(
        workshop,
        seconds,
        lambda _, injection: injection.set_clock(-DAYS),
        lambda _, injection: injection.set_clock(-HOUR),
    )


def server_disk(kind: str, workshop: Workshop, seconds: float) -> Outcome:
    """Let the disk fail, and work again."""
    return run_server(
        workshop, seconds, lambda s, _: s.control_disk(kind), lambda s, _: s.control_disk(""), by_disk=True
    )


def server_handles(workshop: Workshop, seconds: float) -> Outcome:
    """Lower the limit of file handles to a few more than are open, and take those by idle connections."""
    with ExitStack() as idle:
        limits: list[tuple[int, int]] = []
        shares: list[float] = []

        def lower(server: Server, _: Injection) -> None:
            pid = server.process.pid
            limits.append(resource.prlimit(pid, resource.RLIMIT_NOFILE))
            used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + SPARE_HANDLES, limits[0][1]))
            address = urlsplit(server.url)
            for _number in range(IDLE_CONNECTIONS):
                idle.enter_context(socket.create_connection((address.hostname, address.port)))

        def restore(server: Server, _: Injection) -> None:
            address, began, busy = urlsplit(server.url), time.monotonic(), server.cpu_seconds()
            for _number in range(4 * SPARE_HANDLES):  # more than it can accept
                idle.enter_context(socket.create_connection((address.hostname, address.port)))
            time.sleep(1)
            shares.append((server.cpu_seconds() - busy) / (time.monotonic() - began))
            idle.close()
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limits[0])

        outcome = run_server(workshop, seconds, lower, restore)
    if shares[0] > BUSY_SHARE:
        outcome.wrong.append(f"the server took {shares[0]:.0%} of a core while it could accept nothing")
    return outcome


def killed_reader(workshop: Workshop, kills: int) -> Outcome:
    """Kill readers in searches, and in a transaction; the writer goes on, and empties its log again."""
    path, outcome = workshop.collection(), Outcome(kills)
    with stillhash.open(path) as collection:
        for number in range(kills):
            what = ("search", "hold")[number % 2]
            command = [sys.executable, "-m", "tests.faults.reader_process", str(path), what]
            with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as reader:
                assert reader.stdout is not None and reader.stdout.readline() == b"ready\n"
                collection.add([f"{number} during"], some_rows(1, seed=number).X)
                collection.compact()
                in_log = (path / "store.db-wal").stat().st_size
                reader.send_signal(signal.SIGKILL)
            collection.add([f"{number} after"], some_rows(1, seed=number).X)
            collection.compact()
            emptied = (path / "store.db-wal").stat().st_size == 0
            outcome.reported["log emptied" if emptied else "log not emptied"] += 1
            if not emptied or (what == "hold" and not in_log) or None in collection.get([f"{number} during"]):
                outcome.wrong.append(f"reader {number}: {what}, log {in_log} bytes before, emptied: {emptied}")
        outcome.wrong += collection.verify()
    return outcome


def clock_jumps(workshop: Workshop) -> Outcome:
    """Let the clock jump back between the changes of a collection."""
    injection, outcome = workshop.injection(), Outcome(1)
    command = [sys.executable, "-m", "tests.faults.clock_process", str(workshop.collection())]
    process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=injection.environment)
    outcome.reported["succeeded"] += process.returncode == 0
    outcome.wrong += [process.stderr[-3000:]] if process.returncode else []
    return outcome


def void(_: object) -> None:
    """Return nothing."""


INDEX, COLLECTION, DISK = (
    "tests.faults.index_process",
    "tests.faults.collection_process",
    "tests.collection.fault_process",
)
LIBRARY_FAULTS = {  # what fails: where, the module that tries it, and its kind
    "an allocation of 4 KiB or more": ("index, hasher", INDEX, "memory"),
    "an allocation of any size in the kernels": ("index, hasher", INDEX, "memory of kernels"),
    "all threads": ("index, hasher", INDEX, "threads"),
    "all threads, by RLIMIT_NPROC": ("index, hasher", INDEX, "process limit"),
    "an allocation of 4 KiB or more, once": ("collection", COLLECTION, "memory"),
    "allocations of 4 KiB or more, until the call has failed": ("collection", COLLECTION, "scarce memory"),
    "file handles (RLIMIT_NOFILE), until the call has failed": ("collection", COLLECTION, "file handles"),
    "a full disk (ENOSPC)": ("collection", DISK, "full"),
    "a disk that turns read-only (EROFS)": ("collection", DISK, "read-only"),
    "a write (EIO)": ("collection", DISK, "write"),
    "an fsync (EIO)": ("collection", DISK, "sync"),
    "a read (EIO)": ("collection", DISK, "read"),
}
SERVER_FAULTS: dict[str, Callable[[Workshop, float], Outcome]] = {
    f"each {EACH}th allocation of 4 KiB or more": partial(server_system, MEMORY),
    "all threads": partial(server_system, THREAD),
    "file handles (RLIMIT_NOFILE)": server_handles,
    "a full disk (ENOSPC)": partial(server_disk, "full"),
    "a disk that turns read-only (EROFS)": partial(server_disk, "read-only"),
    "the clock jumps back by 400 days": server_clock,
}
