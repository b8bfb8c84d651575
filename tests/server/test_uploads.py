"""Uploads over HTTP: rows, images and archives, hostile names, broken files, limits, and tasks that are cancelled."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

import stillhash
from stillhash.encoders import open_encoder, open_query_encoder
from stillhash.server import Settings
from stillhash.server.tasks import Task
from stillhash.server.uploads import MAX_UPLOADS
from tests.server.live_server import LiveServer, Reply, live_server
from tests.support.waiting import TIMEOUT, until

DIM = 8
PATH = "/v1/collections/c"


def picture(number: int = 0) -> bytes:
    """A PNG of one colour, and some noise."""
    pixels = np.random.default_rng(number).integers(0, 255, (24, 24, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def rows(count: int, start: int = 0, **more: Any) -> bytes:
    vectors = np.random.default_rng(start).standard_normal((count, DIM))
    lines = [
        {"id": start + number, "features": x.tolist(), "labels": ["a"], **more} for number, x in enumerate(vectors)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def form(files: list[tuple[str, bytes]], **fields: str) -> tuple[bytes, str]:
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    for name, data in files:
        head = f'Content-Disposition: form-data; name="file"; filename="{name}"\r\nContent-Type: x/y\r\n\r\n'
        parts.append(head.encode() + data)
    body = b"".join(b"--edge\r\n" + part + b"\r\n" for part in parts) + b"--edge--\r\n"
    return body, "multipart/form-data; boundary=edge"


def send(server: LiveServer, name: str, data: bytes, **options: str) -> Reply:
    query = "".join(f"&{key}={value}" for key, value in options.items())
    return server.request("POST", f"{PATH}/upload?filename={quote(name)}{query}", data)


def ended(server: LiveServer, reply: Reply) -> dict[str, Any]:
    """Return the task that an answer names, once it has ended."""
    assert reply.status == 200, reply.data
    path = f"{PATH}/tasks/{reply.json['id']}"
    until(lambda: server.request("GET", path).json["state"] not in ("waiting", "running"))
    task: dict[str, Any] = server.request("GET", path).json
    return task


def leftovers(server: LiveServer) -> list[str]:
    """Return the files of uploads that are still there."""
    folder = server.executor().collection.path / "uploads"
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def vectors(tmp_path: Path) -> Iterator[LiveServer]:
    with live_server({"c": stillhash.open(tmp_path / "c", DIM, 32)}, Settings(max_upload_bytes=1 << 20)) as server:
        yield server


@pytest.fixture
def images(tmp_path: Path) -> Iterator[LiveServer]:
    collection = stillhash.open(tmp_path / "c", encoder=open_encoder("classic"), init_rows=300)
    with live_server({"c": collection}, query_encoders={"c": open_query_encoder(collection)}) as server:
        yield server


def write_npz() -> bytes:
    out = io.BytesIO()
    np.savez(out, ids=np.arange(5), features=np.random.default_rng(1).standard_normal((5, DIM)))
    return out.getvalue()


def write_npy() -> bytes:
    out = io.BytesIO()
    np.save(out, np.random.default_rng(2).standard_normal((5, DIM)))
    return out.getvalue()


def write_csv() -> bytes:
    return ("f" + ",f".join(map(str, range(DIM))) + "\n" + ",".join(["1.5"] * DIM) + "\n").encode()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "data", "count"),
    [
        ("rows.jsonl", rows(20), 20),
        ("ROWS.JSONL", rows(3), 3),
        ("a.npz", write_npz(), 5),
        ("a.npy", write_npy(), 5),
        ("a.csv", write_csv(), 1),
    ],
)
def test_rows_are_imported(vectors: LiveServer, name: str, data: bytes, count: int) -> None:
    task = ended(vectors, send(vectors, name, data))
    expected = {"added": count, "updated": 0, "skipped": 0, "left_out": 0, "problems": [], "items": count}
    assert task["state"] == "done" and task["result"] == expected, task
    collection = vectors.executor().collection
    assert collection.count() == count and collection.verify() == []
    assert leftovers(vectors) == [] and collection.audit()[-1].who == "anonymous"


def test_several_files_of_a_form(vectors: LiveServer) -> None:
    body, media = form([("a.jsonl", rows(5)), ("b.jsonl", rows(5, 5)), ("notes.exe", b"x")])
    task = ended(vectors, vectors.request("POST", f"{PATH}/upload", body, content_type=media))
    assert task["result"]["added"] == 10 and task["result"]["left_out"] == 1, task
    assert task["result"]["problems"][0]["name"] == "notes.exe" and task["title"] == "Import 2 files"


def test_existing_rows_are_refused_or_skipped(vectors: LiveServer) -> None:
    ended(vectors, send(vectors, "rows.jsonl", rows(5)))
    task = ended(vectors, send(vectors, "more.jsonl", rows(5, 3)))
    assert task["state"] == "failed" and task["error"]["error"] == "Conflict"
    assert vectors.executor().collection.count() == 5
    task = ended(vectors, send(vectors, "more.jsonl", rows(5, 3), existing="skip"))
    assert (task["result"]["added"], task["result"]["skipped"]) == (3, 2)


BROKEN = {
    "short": rows(3) + b'{"id": 9, "features": [1.0]}\n',
    "nan": rows(3) + json.dumps({"id": 9, "features": [float("nan")] * DIM}).encode(),
    "twice": rows(3) + rows(1),
    "json": rows(3) + b"{nonsense\n",
    "empty": b"",
    "binary": b"\xff\xfe\x00" * 50,
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=list(BROKEN))
def test_a_broken_file_is_a_typed_error_and_changes_nothing(vectors: LiveServer, data: bytes) -> None:
    ended(vectors, send(vectors, "first.jsonl", rows(4, 100)))
    before = vectors.executor().collection.audit()
    task = ended(vectors, send(vectors, "rows.jsonl", data))
    assert task["state"] == "failed" and task["error"]["error"] in ("InvalidInput", "WrongType"), task
    assert "rows.jsonl" in task["error"]["message"] and "uploads" not in task["error"]["message"]
    assert vectors.executor().collection.audit() == before and leftovers(vectors) == []


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.parquet", "a.csv"])
def test_files_that_are_not_what_they_say(vectors: LiveServer, name: str) -> None:
    task = ended(vectors, send(vectors, name, b"PK\x03\x04 but no more than that"))
    assert task["state"] == "failed" and name in task["error"]["message"] and vectors.executor().collection.count() == 0


@pytest.mark.parametrize(
    "name", ["", "../../etc/passwd", ".hidden.jsonl", "rows", "a.exe", "x" * 300 + ".jsonl", "a.zip"]
)
def test_names_that_cannot_be_used(vectors: LiveServer, name: str) -> None:
    reply = send(vectors, name, rows(3))
    assert reply.status == 422 and reply.json["error"] == "InvalidInput" and leftovers(vectors) == []


@pytest.mark.parametrize(
    "name", ["../../up.jsonl", "/etc/rows.jsonl", "C:\\rows.jsonl", "<b>&'.jsonl", "a/b/rows.jsonl"]
)
def test_hostile_names_stay_in_the_folder(vectors: LiveServer, name: str) -> None:
    task = ended(vectors, send(vectors, name, rows(3)))
    assert task["state"] == "done" and leftovers(vectors) == []
    folder = vectors.executor().collection.path
    assert [path.name for path in folder.parent.iterdir()] == ["c"]


def test_large_uploads_are_refused(vectors: LiveServer) -> None:
    reply = send(vectors, "rows.jsonl", bytes((1 << 20) + 1))
    assert reply.status == 413 and leftovers(vectors) == []
    chunks = iter([bytes(1 << 19)] * 3)  # without a length
    response = vectors.pool.request(
        "POST", f"{vectors.url}{PATH}/upload?filename=a.jsonl", body=chunks, chunked=True, retries=False
    )
    assert response.status == 413 and leftovers(vectors) == []


@pytest.mark.parametrize("body", [b"", b"--edge\r\n", b"nonsense", form([("a.jsonl", b"{}")])[0][:-20]])
def test_incomplete_forms_are_refused(vectors: LiveServer, body: bytes) -> None:
    reply = vectors.request("POST", f"{PATH}/upload", body, content_type="multipart/form-data; boundary=edge")
    assert reply.status == 422 and leftovers(vectors) == []


def test_forms_are_bounded(vectors: LiveServer) -> None:
    for fields in ({"existing": "x" * 5000}, {f"f{number}": "x" for number in range(20)}, {"existing": "maybe"}):
        body, media = form([("a.jsonl", rows(1))], **fields)
        assert vectors.request("POST", f"{PATH}/upload", body, content_type=media).status in (413, 422)
    body, _ = form([("a.jsonl", rows(1))])
    assert vectors.request("POST", f"{PATH}/upload", body, content_type="multipart/form-data").status == 422
    assert leftovers(vectors) == []


@pytest.mark.medium
def test_images_and_archives(images: LiveServer) -> None:
    files = {"cats/1.png": picture(1), "cats/2.png": picture(2), "dogs/3.png": picture(3), "broken.png": b"\x89PNG"}
    archive = zipped({f"photos/{name}": data for name, data in files.items()} | {"__MACOSX/._1.png": b"x"})
    task = ended(images, send(images, "photos.zip", archive))
    assert task["state"] == "done" and (task["result"]["added"], task["result"]["left_out"]) == (3, 2), task
    collection = images.executor().collection
    assert collection.ids() == ["cats/1.png", "cats/2.png", "dogs/3.png"]
    assert [item and item.labels for item in collection.get(["cats/1.png", "dogs/3.png"])] == [["cats"], ["dogs"]]
    assert collection.picture("cats/1.png") is not None and "uploads" not in json.dumps(task)
    body, media = form([("4.png", picture(4)), ("cats/1.png", picture(1))], labels="none")
    task = ended(images, images.request("POST", f"{PATH}/upload", body, content_type=media))
    assert (task["result"]["added"], task["result"]["skipped"]) == (1, 1) and collection.count() == 4


def test_an_archive_bomb_is_refused(images: LiveServer) -> None:
    task = ended(images, send(images, "bomb.zip", zipped({"a.png": picture(), "b.png": bytes(40 << 20)})))
    assert task["state"] == "failed" and task["error"]["error"] == "TooLarge"
    assert images.executor().collection.count() == 0 and leftovers(images) == []


def test_an_archive_without_images(images: LiveServer) -> None:
    task = ended(images, send(images, "a.zip", zipped({"readme.html": b"<script>", "../x.sh": b"rm"})))
    assert task["state"] == "failed" and "nothing" in task["error"]["message"]


@pytest.mark.medium
def test_enough_images_fit_the_hash_functions(images: LiveServer) -> None:
    archive = zipped({f"{number % 3}/{number}.png": picture(number) for number in range(310)})
    task = ended(images, send(images, "many.zip", archive))
    stats = images.executor().collection.stats()
    assert task["result"]["added"] == 310 and stats["fitted"] and stats["version"] > 0


def test_texts(tmp_path: Path) -> None:
    collection = stillhash.open(tmp_path / "c", encoder=open_encoder("words"), lexical_field="text")
    with live_server({"c": collection}, query_encoders={"c": open_query_encoder(collection)}) as server:
        table = b'{"id": "r", "text": "a cat on a mat", "labels": ["cat"]}\n'
        task = ended(server, send(server, "texts.jsonl", table))
        assert task["result"]["added"] == 1, task
        task = ended(server, send(server, "note.md", b"# A dog\n\nbarks"))
        assert task["result"]["added"] == 1 and collection.ids() == ["note.md", "r"]
        vector = collection.reconstruct(["r"])[0].tolist()
        task = ended(server, send(server, "rows.jsonl", json.dumps({"id": "v", "features": vector}).encode()))
        assert task["result"]["added"] == 1 and collection.count() == 3


@pytest.mark.medium
def test_an_import_is_cancelled_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, begun = Task.report, threading.Event()

    def report_when_cancelled(task: Task, share: float, message: str | None = None) -> None:
        if "added" in (message or "") and not begun.is_set():
            begun.set()
            until(lambda: task.cancelling)
        report(task, share, message)

    monkeypatch.setattr(Task, "report", report_when_cancelled)
    collection = stillhash.open(tmp_path / "c", DIM, 32)
    with live_server({"c": collection}) as server:
        data = rows(25_000)
        executor = server.executor()
        task = send(server, "rows.jsonl", data).json
        running = executor.tasks.get(task["id"])
        assert begun.wait(TIMEOUT)
        assert server.request("DELETE", f"{PATH}/tasks/{task['id']}").status == 200
        until(lambda: running.ended)
        stored = collection.count()
        assert stored == 10_000  # a whole batch
        assert leftovers(server) == [] and collection.verify() == []
        again = ended(server, send(server, "rows.jsonl", data))
        assert again["result"]["added"] == 25_000 - stored and collection.count() == 25_000


def test_uploads_that_wait_are_bounded_and_removed(vectors: LiveServer) -> None:
    gate = threading.Event()
    executor = vectors.executor()
    executor.tasks.start("block", "block", lambda _, report: gate.wait(60))
    waiting = [send(vectors, f"{number}.jsonl", rows(2, 10 * number)) for number in range(MAX_UPLOADS)]
    assert [reply.status for reply in waiting] == [200] * MAX_UPLOADS
    assert send(vectors, "one more.jsonl", rows(2, 90)).status == 503
    for reply in waiting[:2]:
        vectors.request("DELETE", f"{PATH}/tasks/{reply.json['id']}")
    last = send(vectors, "one more.jsonl", rows(2, 90))
    assert last.status == 200 and len(leftovers(vectors)) == MAX_UPLOADS - 1  # those that were cancelled are removed
    gate.set()
    assert ended(vectors, last)["state"] == "done" and vectors.executor().collection.count() == 2 * (MAX_UPLOADS - 1)


def test_what_a_crash_left_is_removed(tmp_path: Path) -> None:
    collection = stillhash.open(tmp_path / "c", DIM, 32)
    (tmp_path / "c" / "uploads" / "7").mkdir(parents=True)
    (tmp_path / "c" / "uploads" / "7" / "rows.jsonl").write_bytes(rows(1))
    with live_server({"c": collection}) as server:
        assert leftovers(server) == []


def test_a_collection_that_is_only_read(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "c", DIM, 32) as writer:
        reader = stillhash.open(tmp_path / "c", read_only=True)
        with live_server({"c": reader}) as server:
            assert send(server, "rows.jsonl", rows(1)).status == 422
            assert b"upload-files" not in server.request("GET", "/c/c/collection").data
        assert writer.count() == 0


@pytest.mark.medium
def test_duplicates(shared: LiveServer) -> None:
    task = ended(shared, shared.request("POST", f"{PATH}/duplicates", {"distance": 6}))
    assert task["result"] == {"cosine": None, "distance": 6, "groups": shared.executor().collection.duplicates(6)}
    where = {"$not": {"labels": "nothing"}}
    task = ended(shared, shared.request("POST", f"{PATH}/duplicates", {"distance": 6, "where": where, "limit": 1}))
    assert task["state"] == "done" and len(task["result"]["groups"]) <= 1
    task = ended(shared, shared.request("POST", f"{PATH}/duplicates", {}))
    assert task["result"] == {"cosine": 0.97, "distance": None, "groups": shared.executor().collection.duplicates()}
    for body in ({"distance": 5000}, {"distance": -1}, {"limit": 0}, {"distance": 64}, {"cosine": 0.9, "distance": 3}):
        assert shared.request("POST", f"{PATH}/duplicates", body).status == 422


def test_duplicates_before_the_hash_functions(vectors: LiveServer) -> None:
    ended(vectors, send(vectors, "rows.jsonl", rows(5)))
    task = ended(vectors, vectors.request("POST", f"{PATH}/duplicates", {}))
    assert task["result"]["groups"] == vectors.executor().collection.duplicates()
    task = ended(vectors, vectors.request("POST", f"{PATH}/duplicates", {"distance": 3}))
    assert task["state"] == "failed" and task["error"]["error"] == "NotFitted"
