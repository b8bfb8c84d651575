"""The lease of a writer: one holder at a time, taken over when it is silent, and no commit of a former holder."""

from __future__ import annotations

from pathlib import Path

import pytest

from stillhash.cluster.lease import WriterLease, fence, lease_numbers
from stillhash.cluster.manifest import commit_manifest, first_manifest, read_latest
from stillhash.cluster.placement import place
from stillhash.cluster.storage import Storage
from stillhash.errors import Conflict
from tests.cluster.manifests import entry


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
