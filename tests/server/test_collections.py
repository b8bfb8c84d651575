"""Create and delete collections over HTTP: by admins only, below one folder only, and never half of it."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash import Client
from stillhash.errors import (
    BadState,
    Closed,
    Conflict,
    Denied,
    Forbidden,
    InvalidInput,
    NotFound,
    StillhashError,
    StoreFailed,
)
from stillhash.server import Keys, Settings, add_key
from stillhash.server.collection_lifecycle import UNNAMED_PREFIX, CollectionsFolder
from tests.client.awaited_client import CLIENTS
from tests.collection.fixtures import BITS, DIM, INIT, LEARN, some_rows
from tests.server.live_server import LiveServer, live_server
from tests.server.serve_command import serve_command
from tests.support.waiting import until

ADMIN = "a key of an administrator"
X, LABELS, METADATA = some_rows(320)
IDS = list(range(320))
SMALL: dict[str, Any] = {"init_rows": INIT, "learn_rows": LEARN}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "collections"
    path.mkdir()
    return path


@contextmanager
def serving_folder(folder: Path, collections: Any = None, **settings: Any) -> Iterator[LiveServer]:
    with live_server(collections or {}, Settings(collections_folder=folder, **settings)) as server:
        yield server


def wait_for_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("new_client", CLIENTS)
def test_created_collection_works_and_is_there_after_a_restart(folder: Path, new_client: Any) -> None:
    with serving_folder(folder) as server, new_client(server.url) as client:
        assert client.collections() == {}
        stats = client.create_collection("films", DIM, BITS, method="tally", filter_fields=["odd"], **SMALL)
        assert (stats["dim"], stats["bits"], stats["items"]) == (DIM, BITS, 0)
        assert client.add(IDS, X, LABELS, METADATA) == 320
        client.create_collection("books", 7)
        assert client.collections() == {"films": 320, "books": 0} == client.health()["collections"]
        expected = client.search(X[:3], 5)
        assert b'stillhash_rows{collection="films"} 320.0' in server.request("GET", "/v1/metrics").data
    with serving_folder(folder) as server, new_client(server.url, collection="films") as client:
        assert client.collections() == {"books": 0, "films": 320} and client.search(X[:3], 5) == expected
        client.delete_collection("books", confirm="books")
        client.delete_collection("films", confirm="films")
        assert client.collections() == {} and list(folder.iterdir()) == []
        with pytest.raises(NotFound, match="films"):
            client.count()
        client.create_collection("films", DIM)
        assert client.count() == 0
        assert server.request("GET", "/v1/metrics").status == 200


def test_a_collection_of_ready_codes_is_created(folder: Path) -> None:
    with serving_folder(folder) as server, Client(server.url) as client:
        assert client.create_collection("hashes", bits=64, codes_only=True)["codes_only"] is True
        assert client.add(["a"], ["00ff00ff00ff00ff"]) == 1
        assert client.search("00ff00ff00ff00fe").hits[0].distance == 1


def test_settings_are_validated_as_open_does(folder: Path, tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [
        {"dim": 0},
        {"dim": "12"},
        {"bits": 7},
        {"bits": 10**9},
        {"method": "Nonsense"},
        {"method": "OSH"},
        {"params": {"nonsense": 1}},
        {"params": {"bits": 64}},
        {"init_rows": 1},
        {"learn_rows": 0},
        {"keep_versions": 1},
        {"source_cap": 0},
        {"source_cap": -1.0},
        {"filter_fields": [""] * 2},
        {"codes_see_labels": 1},
        {"codes_only": 1},
        {"keep_features": "yes"},
    ]
    with serving_folder(folder) as server, Client(server.url) as client:
        for number, options in enumerate(wrong):
            arguments = {"dim": DIM, **options}
            with pytest.raises(InvalidInput) as local:
                stillhash.open(tmp_path / str(number), **arguments)
            with pytest.raises(InvalidInput) as remote:
                client.create_collection("c", **arguments)
            assert str(remote.value).split(":")[0] == str(local.value).split(":")[0] == next(iter(options)), options
        with pytest.raises(InvalidInput, match=r"^dim"):
            client.create_collection("c")
        with pytest.raises(InvalidInput, match=r"^bits"):
            client.create_collection("c", codes_only=True)
        for options in ({"dim": 1 << 15}, {"dim": 8, "learn_rows": 1 << 40}):
            with pytest.raises(InvalidInput, match=next(reversed(options))):
                client.create_collection("c", **options)  # type: ignore[arg-type]
        body = {"name": "c", "dim": 8, "encoder": {"name": "/etc/passwd", "fingerprint": "x", "dim": 8}}
        assert server.request("POST", "/v1/collections", body).status == 422
        assert client.collections() == {}
    assert list(folder.iterdir()) == []


HOSTILE_NAMES = [
    "",
    ".",
    "..",
    "../escape",
    "..%2fescape",
    "a/b",
    "a\\b",
    "/etc/cron.d/x",
    ".hidden",
    f"{UNNAMED_PREFIX}0",
    "-rf",
    "a\0b",
    "a\nb",
    "a b",
    "ä",
    "\u202egpj",
    "a" * 65,
    "~root",
    "$HOME",
    "con:",
    7,
    None,
    ["a"],
    "a\n",
]


def test_hostile_names_are_refused(folder: Path) -> None:
    before = sorted(folder.parent.rglob("*"))
    with serving_folder(folder) as server:
        for name in HOSTILE_NAMES:
            reply = server.request("POST", "/v1/collections", {"name": name, "dim": 8})
            assert (reply.status, reply.json["message"].split(":")[0]) == (422, "name"), name
        for path in ("../x", "..%2f..%2fetc", "%2e%2e", "a%00b", "%ff", "." * 300):
            reply = server.request("DELETE", f"/v1/collections/{path}", {"confirm": path})
            assert reply.status in (404, 405, 422), path
    assert sorted(folder.parent.rglob("*")) == before


def test_without_a_folder_nothing_can_be_created_or_deleted(tmp_path: Path) -> None:
    with live_server({"c": stillhash.open(tmp_path / "c", DIM)}) as server, Client(server.url) as client:
        for call in (
            lambda: client.create_collection("new", DIM),
            lambda: client.delete_collection("c", confirm="c"),
        ):
            with pytest.raises(NotFound, match=r"^collections-folder: .*--collections-folder"):
                call()
        assert client.collections() == {"c": 0}


def test_folders_of_the_command_line_cannot_be_deleted(folder: Path, tmp_path: Path) -> None:
    with serving_folder(folder, {"c": stillhash.open(tmp_path / "c", DIM)}) as server, Client(server.url) as client:
        with pytest.raises(Conflict, match="'c'"):
            client.delete_collection("c", confirm="c")
        with pytest.raises(Conflict, match=r"^name"):
            client.create_collection("c", DIM)
        assert client.count() == 0
    with pytest.raises(InvalidInput, match=r"^collections-folder.*'d'"):
        stillhash.open(folder / "d", DIM).close()
        with stillhash.open(tmp_path / "d", DIM) as other, serving_folder(folder, {"d": other}):
            pass


def test_a_deletion_needs_the_name_again(folder: Path) -> None:
    with serving_folder(folder) as server, Client(server.url) as client:
        client.create_collection("films", DIM)
        for confirm in ("", "Films", "films ", "yes"):
            with pytest.raises(InvalidInput, match=r"^confirm"):
                client.delete_collection("films", confirm=confirm)
        for body in (None, {}, {"confirm": True}, {"confirm": "films", "force": True}):
            assert server.request("DELETE", "/v1/collections/films", body).status == 422
        with pytest.raises(NotFound, match="'books'"):
            client.delete_collection("books", confirm="books")
        assert client.collections() == {"films": 0}


# ---- keys ----


def test_only_admins_create_and_delete(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    names = {role: add_key(file, role, role) for role in ("read", "feedback", "write", "admin")}  # type: ignore[arg-type]
    limited = add_key(file, "limited", "admin", ["mine"])
    with serving_folder(folder, keys=Keys(file=file)) as server:
        with Client(server.url, names["admin"]) as client:
            client.create_collection("films", DIM)
        with Client(server.url) as client, pytest.raises(Denied):
            client.create_collection("new", DIM)
        for role in ("read", "feedback", "write"):
            with Client(server.url, names[role]) as client:
                with pytest.raises(Forbidden, match="admin"):
                    client.create_collection("new", DIM)
                with pytest.raises(Forbidden, match="admin"):
                    client.delete_collection("films", confirm="films")
                assert client.collections() == {"films": 0}
        with Client(server.url, limited) as client:  # an admin of one name
            for name in ("films", "new"):  # whether or not it exists
                with pytest.raises(Forbidden, match=r"^name"):
                    client.create_collection(name, DIM)
                with pytest.raises(NotFound):
                    client.delete_collection(name, confirm=name)
            client.create_collection("mine", DIM)
            assert client.collections() == {"mine": 0} and client.add([1], X[:1]) == 1
            assert client.audit()[-1].who == "limited"
            client.delete_collection("mine", confirm="mine")
            assert client.collections() == {}
        with Client(server.url, names["read"]) as client:
            assert client.collections() == {"films": 0}


def test_who_creates_and_deletes_is_logged(folder: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    key = add_key(file, "ann", "admin")
    caplog.set_level("INFO", "stillhash.server")
    with serving_folder(folder, keys=Keys(file=file)) as server, Client(server.url, key) as client:
        client.create_collection("films", DIM)
        client.delete_collection("films", confirm="films")
    lines = [
        (record.message, vars(record)["fields"]) for record in caplog.records if record.message[:10] == "collection"
    ]
    fields = {"collection": "films", "actor": "ann"}
    assert lines == [("collection created", fields), ("collection deleted", fields)]


# ---- many at a time ----


def outcome(call: Any) -> Any:
    try:
        return call() and "created"
    except StillhashError as error:
        return type(error)


def test_one_of_many_creations_of_a_name_succeeds(folder: Path) -> None:
    with serving_folder(folder) as server, Client(server.url) as client, ThreadPoolExecutor(8) as threads:
        tries = list(threads.map(lambda _: outcome(lambda: client.create_collection("films", DIM)), range(16)))
        assert sorted(map(str, tries)) == sorted(["created", *[str(Conflict)] * 15])
        assert client.collections() == {"films": 0}


def test_a_hundred_creations_stop_at_the_limit(folder: Path) -> None:
    with (
        serving_folder(folder, max_collections=3) as server,
        Client(server.url) as client,
        ThreadPoolExecutor(8) as threads,
    ):
        tries = list(threads.map(lambda n: outcome(lambda: client.create_collection(f"c{n}", DIM)), range(100)))
        assert tries.count("created") == 3 and tries.count(Conflict) == 97
        names = client.collections()
        assert len(names) == 3 == len(list(folder.iterdir()))
        gone = next(iter(names))
        client.delete_collection(gone, confirm=gone)
        client.create_collection("another", DIM)
        with pytest.raises(Conflict, match=r"^collections"):
            client.create_collection("too-many", DIM)
    with pytest.raises(InvalidInput, match=r"^max-collections"), serving_folder(folder, max_collections=2):
        pass


@pytest.mark.medium
def test_requests_under_way_end_with_a_typed_error_when_their_collection_is_deleted(folder: Path) -> None:
    """Searches, writes and a stream go on until the deletion; none ends in any other way than by an error of ours."""
    with serving_folder(folder) as server, Client(server.url, collection="films", retries=0) as client:
        client.create_collection("films", DIM, BITS, **SMALL)
        client.add(IDS, X, LABELS, METADATA)
        errors: list[StillhashError] = []
        answered = threading.Semaphore(0)

        def repeat(call: Any) -> None:
            try:
                while True:
                    call()
                    answered.release()
            except StillhashError as error:
                errors.append(error)

        calls = [lambda: client.search(X, 100, where={"odd": True})] * 4 + [lambda: client.upsert(IDS, X, LABELS)] * 4
        calls.append(lambda: client.ingest(({"id": str(n), "features": x} for n, x in enumerate(X)), replace=True))
        threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for _ in range(2 * len(threads)):
            assert answered.acquire(timeout=60)
        client.delete_collection("films", confirm="films")
        wait_for_all(threads)
        assert len(errors) == len(threads) and {type(error) for error in errors} <= {Closed, NotFound}
        client.create_collection("films", DIM)
        assert client.collections() == {"films": 0}


def test_calls_that_wait_for_a_deleted_collection_raise_closed(folder: Path) -> None:
    """A write that runs ends; those behind it in the queue, which have not started, are refused."""
    with serving_folder(folder) as server, Client(server.url, collection="films", retries=0) as client:
        client.create_collection("films", DIM)
        running, go_on = threading.Event(), threading.Event()
        executor = server.executor("films")

        def hold(collection: Any) -> int:
            running.set()
            assert go_on.wait(60)
            return int(collection.add([1], X[:1]))

        outcomes: dict[str, Any] = {}

        def add(name: str) -> None:
            outcomes[name] = outcome(lambda: client.add([name], X[:1]))

        first = executor._writer.submit(hold, executor.collection)
        assert running.wait(60)
        threads = [threading.Thread(target=add, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        until(lambda: executor.queued == 3)
        deletion = threading.Thread(target=lambda: client.delete_collection("films", confirm="films"))
        deletion.start()
        wait_for_all(threads)
        assert outcomes == {"a": Closed, "b": Closed, "c": Closed}
        with pytest.raises(NotFound):
            client.count()
        with pytest.raises(Conflict):
            client.create_collection("films", DIM)  # until its files are gone
        go_on.set()
        wait_for_all([deletion])
        assert first.result(60) == 1 and list(folder.iterdir()) == []


# ---- disks and crashes ----


def test_what_a_crash_leaves_is_removed_at_the_next_start(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    stillhash.open(folder / "whole", DIM).close()
    for name in ("0123", "deleted"):  # a creation that did not finish, and a deletion
        stillhash.open(folder / f"{UNNAMED_PREFIX}{name}", DIM).close()
    (folder / "file").write_text("not ours")
    (folder / "empty").mkdir()
    (folder / "link").symlink_to(folder / "whole")
    with serving_folder(folder) as server, Client(server.url) as client:
        assert client.collections() == {"whole": 0}
        for name in ("file", "empty", "link"):
            with pytest.raises(Conflict, match=name):
                client.create_collection(name, DIM)
    assert {entry.name for entry in folder.iterdir()} == {"whole", "file", "empty", "link"}
    assert sum("is not served" in record.message for record in caplog.records) == 3


def test_a_damaged_collection_is_an_error_at_the_start(folder: Path) -> None:
    for name in ("a", "b"):
        stillhash.open(folder / name, DIM).close()
    (folder / "b" / "store.db").write_bytes(b"nonsense" * 1000)
    with pytest.raises(BadState), serving_folder(folder):
        pass
    stillhash.open(folder / "a").close()  # not left open, or it would be locked


def test_disk_errors_change_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving_folder(folder) as server, Client(server.url) as client:
        client.create_collection("films", DIM)
        client.add([1], X[:1])

        def fail(source: Path, _: Any) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(source))

        with monkeypatch.context() as failing:
            failing.setattr(Path, "rename", fail)
            for call in (
                lambda: client.create_collection("new", DIM),
                lambda: client.delete_collection("films", confirm="films"),
            ):
                with pytest.raises(StoreFailed, match=r"^name: '(new|films)' cannot be (created|deleted)"):
                    call()
        assert str(folder) in caplog.text and "Read-only" in caplog.text
        assert client.collections() == {"films": 1} and client.search(X[0], 1).hits[0].id == 1
        assert [entry.name for entry in folder.iterdir()] == ["films"]
        client.create_collection("new", DIM)
        client.delete_collection("films", confirm="films")
        assert client.collections() == {"new": 0}


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match=r"^collections-folder"):
        CollectionsFolder(tmp_path / "none").open_all()


# ---- the command ----


@pytest.mark.slow
def test_command_serves_a_folder(folder: Path, tmp_path: Path) -> None:
    arguments = ("--collections-folder", folder, "--max-collections", "2")
    with serve_command(tmp_path / "log", *arguments) as server, Client(server.url) as client:
        client.create_collection("films", DIM)
        client.add([1, 2], X[:2])
        server.process.kill()
        server.process.wait()
    with serve_command(tmp_path / "log2", *arguments) as server, Client(server.url) as client:
        assert client.collections() == {"films": 2}
        server.process.terminate()
        server.process.wait(60)
    with stillhash.open(folder / "films") as collection:
        assert collection.count() == 2 and collection.verify() == []
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert any(line["message"] == "collection created" and line["collection"] == "films" for line in lines)
