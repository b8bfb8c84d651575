"""The lease of a writer: one holder at a time, taken over when it is silent, and no commit of a former holder."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from stillhash.cluster.lease import WriterLease, fence, lease_name, lease_numbers
from stillhash.cluster.manifest import (
    commit_manifest,
    first_manifest,
    latest_number,
    manifest_numbers,
    read_latest,
    read_manifest,
)
from stillhash.cluster.placement import place
from stillhash.cluster.storage import Storage
from stillhash.errors import Conflict, NotFound
from tests.cluster.manifests import content, entry
from tests.collection.test_crash import ROOT
from tests.support.s3_server import SETTINGS, running_s3
from tests.support.seeds import run_seed
from tests.support.waiting import until


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "storage")


def test_one_process_has_the_lease(storage: Storage) -> None:
    with WriterLease(storage, "a", 0.5) as first:
        assert first.acquire() == 1
        with pytest.raises(Conflict, match="a, epoch 1"):
            WriterLease(storage, "b", 0.5).acquire(wait=1.0)
        first.renew()
        assert not first.lost
    second = WriterLease(storage, "b", 0.5)
    assert second.acquire(wait=0) == 2
    second.release()
    with pytest.raises(Conflict, match="released"):
        second.renew()
    assert lease_numbers(storage) == [1, 2]


def test_a_silent_holder_is_replaced_and_cannot_commit(storage: Storage) -> None:
    former = WriterLease(storage, "former", 0.3)
    former_epoch = former.acquire()
    before = fence(storage, former_epoch, first_manifest(64, [0]))
    former.stop_renewing()
    with WriterLease(storage, "new", 0.3) as new:
        epoch = new.acquire()
        assert epoch == 2
        ours = fence(storage, epoch)
        with pytest.raises(Conflict):
            commit_manifest(storage, place(before, [entry(1)]).next(former_epoch))
        with pytest.raises(Conflict, match="epoch"):  # also on top of the latest
            commit_manifest(storage, place(read_latest(storage), [entry(1)]).next(former_epoch))
        with pytest.raises(Conflict, match="lost"):
            former.renew()
        with pytest.raises(Conflict, match="epoch"):
            fence(storage, former_epoch)
        assert former.lost and read_latest(storage) == ours
        former.release()
        new.renew()


def test_a_lease_that_cannot_be_read_is_taken_over(storage: Storage) -> None:
    storage.create("leases/00000000000000000007", b"{")
    with WriterLease(storage, "a", 0.2) as lease:
        assert lease.acquire() == 8


def test_old_leases_are_deleted(storage: Storage) -> None:
    lease = WriterLease(storage, "a", 5)
    for number in range(1, 41):
        assert lease.acquire() == number
        lease.release()
    assert len(lease_numbers(storage)) <= 17


class Writers:
    """Writers of one storage, as processes that can be killed and paused."""

    def __init__(self, url: str, folder: Path, seconds: float) -> None:
        self.storage, self.folder, self.seconds = Storage(url), folder, seconds
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        log = self.folder / f"{uuid.uuid4().hex}.log"
        command = [sys.executable, "-m", "tests.cluster.lease_writer", self.storage.url, str(log), str(self.seconds)]
        process = subprocess.Popen(command, cwd=ROOT)
        self.processes[process.pid] = process

    def kill(self, pid: int) -> None:
        process = self.processes.pop(pid)
        process.kill()
        process.wait()

    def holder(self) -> int:
        """Return the process that has the lease, once one of ours has."""
        found: list[int] = []

        def is_ours() -> bool:
            self.all_run()
            with suppress(NotFound, IndexError, ValueError):
                found[:] = [int(json.loads(self.storage.read(lease_name(lease_numbers(self.storage)[-1])))["owner"])]
            return not self.processes.keys().isdisjoint(found)

        until(is_ours, "holder of the lease")
        return found[0]

    def await_commits(self, count: int) -> None:
        """Wait until so many more numbers are committed."""
        goal = latest_number(self.storage) + count
        until(lambda: self.all_run() and latest_number(self.storage) >= goal, "commits")

    def await_epoch_after(self, epoch: int) -> None:
        """Wait until another writer has taken over, and has committed."""
        until(lambda: self.all_run() and read_latest(self.storage).epoch > epoch, "commit of another writer")

    def all_run(self) -> bool:
        ended = [pid for pid, process in self.processes.items() if process.poll() is not None]
        assert not ended, f"writers ended by themselves: {ended}"
        return True

    def acknowledged(self) -> list[int]:
        return [int(line) for log in self.folder.glob("*.log") for line in log.read_bytes().splitlines()]

    def stop(self) -> None:
        for pid in list(self.processes):
            self.kill(pid)


def check_history(storage: Storage, acknowledged: list[int], killed: int) -> None:
    """Read all manifests: epochs ascend, each adds at most one row to the one before, and none is lost or doubled."""
    numbers = manifest_numbers(storage)
    assert numbers == list(range(1, len(numbers) + 1))
    before = read_manifest(storage, 1)
    for number in numbers[1:]:
        after = read_manifest(storage, number)
        assert after.epoch >= before.epoch and after.segments[: len(before.segments)] == before.segments
        assert len(after.segments) - len(before.segments) == int(after.epoch == before.epoch)  # a fence adds none
        before = after
    stored = [int.from_bytes(code, "little") for code in content(storage, before).values()]
    assert len(set(stored)) == len(stored) and len(set(acknowledged)) == len(acknowledged)
    assert set(acknowledged) <= set(stored) and len(stored) - len(acknowledged) <= killed


def disturb(writers: Writers, rng: random.Random, rounds: int) -> None:
    """Kill the holder, or another writer, or pause the holder until it has lost the lease."""
    for number in range(rounds):
        writers.await_commits(rng.randrange(1, 8))
        time.sleep(rng.random() * 0.05)
        pid = writers.holder() if rng.random() < 0.8 else rng.choice(list(writers.processes))
        if number % 3 == 2:
            os.kill(pid, signal.SIGSTOP)
            writers.await_epoch_after(read_latest(writers.storage).epoch)
            os.kill(pid, signal.SIGCONT)
        else:
            writers.kill(pid)
            writers.start()
    writers.await_commits(3)


def run_writers(url: str, folder: Path, rounds: int, seconds: float) -> None:
    folder.mkdir()
    writers = Writers(url, folder, seconds)
    try:
        for _ in range(3):
            writers.start()
        disturb(writers, random.Random(run_seed()), rounds)
    finally:
        writers.stop()
    acknowledged = writers.acknowledged()
    check_history(writers.storage, acknowledged, killed=rounds + 3)
    assert len(acknowledged) > rounds and lease_numbers(writers.storage)[-1] > rounds // 3


@pytest.mark.slow
def test_killed_and_paused_writers_lose_and_double_nothing(tmp_path: Path) -> None:
    run_writers(str(tmp_path / "storage"), tmp_path / "logs", int(os.environ.get("STILLHASH_KILLS", "6")), 0.5)


@pytest.mark.slow
def test_killed_and_paused_writers_on_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'stillhash[s3]'")
    pytest.importorskip("moto", reason="moto is not installed: pip install 'stillhash[dev]'")
    import fsspec

    with running_s3() as way:
        for name, value in {**SETTINGS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{way.port}"}.items():
            monkeypatch.setenv(name, value)
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("leases")
        run_writers("s3://leases/index", tmp_path / "logs", 3, 2.0)
