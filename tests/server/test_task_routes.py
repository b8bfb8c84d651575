"""Tasks over HTTP: start, watch, cancel and download, and who may."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash import Collection
from stillhash.collection.storage.segments import CodeTable
from stillhash.collection.storage.store import SegmentWriter, Store
from stillhash.server import Keys
from stillhash.server.tasks import Report
from tests.server.live_server import LiveServer, Reply
from tests.support.waiting import TIMEOUT, until

PATH = "/v1/collections/c/tasks"


def ended(server: LiveServer, task: dict[str, Any], **headers: str) -> dict[str, Any]:
    """Return the task as it is once it has ended."""
    until(lambda: server.request("GET", f"{PATH}/{task['id']}", **headers).json["state"] not in ("waiting", "running"))
    reply: dict[str, Any] = server.request("GET", f"{PATH}/{task['id']}", **headers).json
    return reply


def start(server: LiveServer, **body: Any) -> dict[str, Any]:
    reply = server.request("POST", PATH, body)
    assert reply.status == 200, reply.data
    task: dict[str, Any] = reply.json
    return task


def test_verify_snapshot_and_export(serving: Callable[..., LiveServer], tmp_path: Path) -> None:
    server = serving(snapshots=tmp_path / "copies")
    verified = ended(server, start(server, kind="verify"))
    assert (verified["state"], verified["result"], verified["share"]) == ("done", {"problems": []}, 1.0)
    copied = ended(server, start(server, kind="snapshot"))
    with stillhash.open(tmp_path / "copies" / copied["result"]["name"]) as copy:
        assert len(copy) == 320 and copied["result"]["bytes"] > 4096
    for format in (None, "jsonl", "parquet"):
        task = ended(server, start(server, kind="export", format=format))
        assert task["result"]["items"] == 320 and task["result"]["format"] == (format or "jsonl")
        reply = server.request("GET", f"{PATH}/{task['id']}/file")
        assert reply.data == (tmp_path / "copies" / task["result"]["name"]).read_bytes()
        assert f'filename="{task["result"]["name"]}"' in reply.headers["content-disposition"]
    listed = server.request("GET", PATH).json["tasks"]
    assert [task["kind"] for task in listed] == ["export"] * 3 + ["snapshot", "verify"]
    assert listed[-1] == verified
    assert server.request("GET", f"{PATH}/{verified['id']}/file").status == 404


@pytest.mark.medium
def test_compact_while_others_search_and_write(
    serving: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CodeTable, "segment_rows", 32)
    server = serving()
    collection = server.executor("c").collection
    collection.seal()
    collection.delete(collection.ids()[:50])
    query = {"query": collection.reconstruct(collection.ids()[50:51])[0].tolist(), "k": 400}
    before = server.request("POST", "/v1/collections/c/search", query).json["answers"][0]["hits"]
    original, requests = SegmentWriter.write, []

    def write(self: SegmentWriter, *args: Any) -> Any:
        records = original(self, *args)
        if not collection._writer.lock._is_owned():  # type: ignore[attr-defined]  # while a segment is replaced
            requests.append(
                server.request("POST", "/v1/collections/c/search", query).json["answers"][0]["hits"] == before
            )
            body = {"ids": [f"none {len(requests)}"]}
            requests.append(server.request("POST", "/v1/collections/c/delete", body).status == 200)
        return records

    monkeypatch.setattr(SegmentWriter, "write", write)
    task = ended(server, start(server, kind="compact"))
    assert (task["state"], task["result"], task["share"]) == ("done", {"dropped": 50}, 1.0)
    assert "of" in task["message"] and len(requests) > 1 and all(requests)
    assert server.request("POST", "/v1/collections/c/search", query).json["answers"][0]["hits"] == before
    assert collection.verify() == [] and collection.stats()["deleted"] == 0


def test_a_compaction_is_cancelled_between_steps(
    serving: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CodeTable, "segment_rows", 32)
    server = serving()
    collection = server.executor("c").collection
    collection.seal()
    collection.delete(collection.ids()[::3])
    original = Store.replace_segments

    def replace(self: Store, *args: Any) -> None:
        original(self, *args)
        server.executor("c").tasks.cancel(server.executor("c").tasks.list()[0])

    monkeypatch.setattr(Store, "replace_segments", replace)
    task = ended(server, start(server, kind="compact"))
    assert task["state"] == "cancelled" and collection.verify() == [] and collection.stats()["deleted"] > 0
    monkeypatch.setattr(Store, "replace_segments", original)
    assert ended(server, start(server, kind="compact"))["result"]["dropped"] > 0
    assert collection.stats()["deleted"] == 0


def test_nothing_is_copied_without_a_folder(shared: LiveServer) -> None:
    for kind in ("snapshot", "export"):
        reply = shared.request("POST", PATH, {"kind": kind})
        assert reply.status == 404 and reply.json["message"].startswith("snapshots")


@pytest.mark.parametrize(
    "body", [{}, {"kind": "delete"}, {"kind": "export", "format": "zip"}, {"kind": "verify", "format": 1}, []]
)
def test_invalid_bodies(shared: LiveServer, body: Any) -> None:
    assert shared.request("POST", PATH, body).status == 422


class Endless:
    """Work that goes on until it is cancelled."""

    def __init__(self) -> None:
        self.started = threading.Event()

    def __call__(self, collection: Collection, report: Report) -> None:
        self.started.set()
        while True:
            report(0.5, "on its way")
            time.sleep(0.002)


def test_cancel_and_drop(serving: Callable[..., LiveServer]) -> None:
    server, work = serving(), Endless()
    server.executor().tasks.start("wait", "Wait", work)
    assert work.started.wait(TIMEOUT)
    (task,) = server.request("GET", PATH).json["tasks"]
    assert task["state"] == "running"
    assert server.request("DELETE", f"{PATH}/{task['id']}").status == 200
    task = ended(server, task)
    assert (task["state"], task["message"], task["result"]) == ("cancelled", "on its way", None)
    assert server.request("DELETE", f"{PATH}/{task['id']}").status == 200
    assert server.request("GET", PATH).json == {"tasks": []}
    assert server.request("DELETE", f"{PATH}/{task['id']}").status == 404


def test_too_many_are_busy(serving: Callable[..., LiveServer]) -> None:
    server, work = serving(), Endless()
    server.executor().tasks.start("wait", "Wait", work)
    replies = [server.request("POST", PATH, {"kind": "verify"}) for _ in range(8)]
    assert [reply.status for reply in replies] == [200] * 7 + [503]
    assert replies[-1].json["error"] == "Busy" and "retry-after" in replies[-1].headers


def test_an_error_is_typed(serving: Callable[..., LiveServer], tmp_path: Path) -> None:
    (tmp_path / "copies").write_text("a file, where a folder is expected")
    server = serving(snapshots=tmp_path / "copies")
    for kind in ("snapshot", "export"):
        task = ended(server, start(server, kind=kind))
        assert (task["state"], task["error"]["error"], task["result"]) == ("failed", "StoreFailed", None)


def test_roles_and_collections(serving: Callable[..., LiveServer]) -> None:
    keys = {role: f"{role}-key-0123456789" for role in ("read", "write", "admin")}
    server = serving(keys=Keys(**{role: (key,) for role, key in keys.items()}))  # type: ignore[arg-type]

    def request(role: str, method: str, path: str = PATH, body: Any = None) -> Reply:
        return server.request(method, path, body, authorization=f"Bearer {keys[role]}")

    assert server.request("GET", PATH).status == 401
    assert request("write", "POST", body={"kind": "verify"}).status == 403
    task = request("admin", "POST", body={"kind": "verify"}).json
    assert "admin" in task["who"]
    ended(server, task, authorization=f"Bearer {keys['admin']}")
    for role in ("read", "write"):
        assert request(role, "GET").json == {"tasks": []}
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/file")):
            assert request(role, method, f"{PATH}/{task['id']}{path}").status == 403
    upload = server.executor().tasks.start("import", "Import", lambda c, report: {"rows": 1}, role="write")
    assert [one["id"] for one in request("write", "GET").json["tasks"]] == [upload.id]
    assert len(request("admin", "GET").json["tasks"]) == 2
    assert request("read", "GET", f"{PATH}/{upload.id}").status == 403
