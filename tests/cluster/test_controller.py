"""The controller against real nodes: replicas apart, replaced when lost, moved when drained, found by the next one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from stillhash.cluster import LocalCluster
from stillhash.cluster.controller import Controller
from stillhash.cluster.local import NAMESPACE
from stillhash.cluster.manifest import commit_manifest, first_manifest
from stillhash.cluster.storage import Storage
from stillhash.errors import Conflict, InvalidInput, Unreachable
from tests.cluster.fixtures import is_running
from tests.cluster.small_server import CLASSES
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
DEADLINE = 120.0  # seconds; only a test that fails waits so long
Start = Callable[..., Controller]


@pytest.fixture
def start(cluster: LocalCluster, tmp_path: Path) -> Iterator[Start]:
    """Return a function that opens another controller of the same storage; the last one stops all actors."""
    opened: list[Controller] = []

    def open_controller(**options: Any) -> Controller:
        for earlier in opened:
            earlier.close()
        opened.append(Controller(Storage(tmp_path / "storage"), **{"classes": CLASSES, "grace": 0.1, **options}))
        return opened[-1]

    yield open_controller
    for controller in opened:
        controller.close(stop=True)


def actors(controller: Controller, group: str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = controller.status()["actors"]
    return [actor for actor in found if group is None or actor["name"].split(".")[1] == group]


def endpoints(controller: Controller) -> set[str]:
    return {file.rpartition("/")[2].removesuffix(".json") for file in controller.storage.list("endpoints")}


def assert_apart(controller: Controller, shards: range, replicas: int) -> None:
    """Wait until replicas are apart: Ray may have restarted one beside its twin, from where it is moved."""

    def are_apart() -> bool:
        nodes = [[actor["node"] for actor in actors(controller, f"shard-{shard}")] for shard in shards]
        return all(len(some) == len(set(some)) == replicas for some in nodes)

    wait_until(controller, are_apart, "replicas on different nodes")


def wait_until(controller: Controller, condition: Callable[[], Any], what: str) -> None:
    def holds() -> bool:
        controller.reconcile()
        return bool(condition())

    try:
        until(holds, what, DEADLINE)
    except AssertionError as error:
        error.add_note(str(controller.status()))
        raise


def test_the_next_controller_takes_over(start: Start) -> None:
    first = start()
    assert not first.status()["ready"] and first.status()["actors"] == []
    first.ensure(range(2), 2, aggregators=1)
    first.wait_ready(1, DEADLINE)
    assert_apart(first, range(2), 2)
    before = {actor["name"]: actor["pid"] for actor in actors(first)}
    assert len(before) == 5 == len(set(before.values())) and set(before) == endpoints(first)
    second = start()
    assert not second.status()["ready"]  # it does not know yet what should run
    second.reconcile()
    second.ensure(range(2), 2, aggregators=1)
    second.wait_ready(1, DEADLINE)
    assert {actor["name"]: actor["pid"] for actor in actors(second)} == before
    second.ensure([1], 1)
    wait_until(second, lambda: len(endpoints(second)) == 1, "end of the other replicas")
    assert {actor["shard"] for actor in actors(second)} == {1}
    wait_until(second, lambda: sum(map(is_running, before.values())) == 1, "end of their processes")
    second.stop_all()
    assert actors(second) == [] and endpoints(second) == set()
    wait_until(second, lambda: not any(map(is_running, before.values())), "end of all processes")


def test_without_capacity_nothing_starts(start: Start, cluster: LocalCluster, tmp_path: Path) -> None:
    controller = start(cpus=4)
    with pytest.raises(Unreachable, match=r"^capacity.*12 replicas of 4 CPUs"):
        controller.ensure(range(12), 1)
    with pytest.raises(InvalidInput, match=r"^replicas"):
        controller.ensure([0], 0)
    assert actors(controller) == [] and not controller.status()["ready"]
    controller.ensure(range(3), 1)
    other = Controller(Storage(tmp_path / "other"), cpus=4, classes=CLASSES)
    with pytest.raises(Unreachable, match=r"^capacity.*2 replicas.*free"):
        other.ensure(range(2), 1)
    assert other.status()["actors"] == []
    other.close(stop=True)
    assert len(actors(controller)) == 3


def test_a_server_that_cannot_start_is_reported(start: Start) -> None:
    controller = start(options={"failure": "no such disk"})
    with pytest.raises(Unreachable, match="no such disk"):
        controller.ensure([0], 2)
    controller.reconcile()
    assert actors(controller) == [] and endpoints(controller) == set()


def test_a_killed_process_is_restarted_by_ray(start: Start) -> None:
    controller = start()
    controller.ensure([0], 2)
    before = {actor["name"]: actor["pid"] for actor in actors(controller)}
    victim = min(before)
    os.kill(before[victim], signal.SIGKILL)
    wait_until(controller, lambda: before[victim] not in [a["pid"] for a in actors(controller)], "notice")
    controller.wait_ready(1, DEADLINE)
    assert {actor["name"] for actor in actors(controller)} == set(before)
    ray.kill(ray.get_actor(victim, namespace=NAMESPACE))  # for good, so that the controller starts another
    wait_until(controller, lambda: victim not in [a["name"] for a in actors(controller)], "notice of the end")
    controller.wait_ready(1, DEADLINE)
    wait_until(controller, lambda: endpoints(controller) == {a["name"] for a in actors(controller)}, "endpoints")
    assert len(actors(controller)) == 2
    assert_apart(controller, range(1), 2)


def test_a_replica_that_missed_a_notice_is_up_to_date_later(start: Start) -> None:
    """Neither a writer nor a search names the commit to it."""
    controller = start(classes=None)  # real shards
    manifest = first_manifest(64, [0])
    commit_manifest(controller.storage, manifest)
    controller.ensure([0], 2)
    controller.wait_ready(1, DEADLINE)
    commit_manifest(controller.storage, manifest.next(0))
    controller.wait_ready(2, DEADLINE)
    assert [actor["number"] for actor in actors(controller)] == [2, 2]


def test_rebalancing_waits_for_lost_replicas(start: Start) -> None:
    controller = start()
    controller.ensure([0, 1], 2)
    controller.wait_ready(1, DEADLINE)
    before = {actor["name"]: actor["pid"] for actor in actors(controller)}
    restarted, replaced = sorted(before)[:2]
    os.kill(before[restarted], signal.SIGKILL)
    ray.kill(ray.get_actor(replaced, namespace=NAMESPACE))  # Ray does not restart it
    controller.rebalance(DEADLINE)
    after = {actor["name"]: actor["pid"] for actor in controller.status()["actors"] if actor["ready"]}
    assert len(after) == 4 and replaced not in after and after[restarted] != before[restarted]
    assert_apart(controller, range(2), 2)
    os.kill(after[restarted], signal.SIGSTOP)
    try:
        with pytest.raises(Unreachable, match=rf"replaced.*{restarted} does not answer"):
            controller.rebalance(2.0)
    finally:
        os.kill(after[restarted], signal.SIGCONT)
    controller.rebalance(DEADLINE)


def test_nodes_are_lost_join_and_are_drained(start: Start, cluster: LocalCluster) -> None:
    controller = start(options={"load_seconds": 1.0})
    controller.ensure(range(3), 2)
    controller.wait_ready(1, DEADLINE)
    lost = cluster.remove_node()
    wait_until(controller, lambda: lost not in controller.status()["nodes"], "notice of the lost node")
    controller.wait_ready(1, DEADLINE)
    controller.rebalance(DEADLINE)
    assert_apart(controller, range(3), 2)
    new = cluster.add_node()
    wait_until(controller, lambda: any(a["node"] == new for a in actors(controller)), "replica on the new node")
    controller.rebalance(DEADLINE)
    held = sum(actor["node"] == new for actor in actors(controller))
    assert controller.drain(new, DEADLINE) == held > 0
    assert new not in {actor["node"] for actor in actors(controller)}
    assert_apart(controller, range(3), 2)
    with pytest.raises(InvalidInput, match=r"^node"):
        controller.drain("x")
    later = start()
    assert later.status()["drained"] == [new]
    later.ensure(range(3), 2)
    assert later.undrain(new, DEADLINE) > 0 and any(actor["node"] == new for actor in actors(later))
    with pytest.raises(InvalidInput, match=r"^node"):
        later.undrain(new)
    for node in [cluster.head, *cluster.nodes[:-1]]:
        later.drain(node, DEADLINE)
    assert {actor["node"] for actor in actors(later)} == {cluster.nodes[-1]}
    with pytest.raises(Conflict, match=r"^node"):
        later.drain(cluster.nodes[-1])


def test_a_controller_that_was_replaced_is_refused(start: Start) -> None:
    """A writer that was paused finds another one in its place."""
    replaced: list[bool] = []
    first = start(replaced=lambda: bool(replaced))
    first.ensure([0], 1)
    replaced.append(True)
    second = start()
    second.ensure([0, 1], 1)
    for act in (first.reconcile, lambda: first.ensure([0], 1), first.rebalance):
        with pytest.raises(Conflict, match=r"^replicas"):
            act()
