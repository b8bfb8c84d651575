"""Files by the code of each system, as far as Linux can run it."""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest

from stillhash.collection.storage.database import connect, sqlite_uri
from stillhash.errors import Unsupported
from stillhash.platform import SYSTEM, OperatingSystem, operating_system
from stillhash.platform.windows import REFUSED_SECONDS, Windows

SYSTEMS = [SYSTEM] if sys.platform == "win32" else [operating_system(name) for name in ("linux", "darwin", "win32")]

each_system = pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)


@each_system
def test_what_is_synced_can_be_read(system: OperatingSystem, tmp_path: Path) -> None:
    file = tmp_path / "file"
    handle = system.open_file(file, os.O_WRONLY | os.O_CREAT)
    os.write(handle, b"a\nb")
    system.sync_handle(handle)
    os.close(handle)
    system.sync(file)
    system.sync(tmp_path)
    assert file.read_bytes() == b"a\nb"


@each_system
def test_replace_takes_the_place_of_a_file(system: OperatingSystem, tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "new").write_bytes(b"new")
    system.replace(tmp_path / "new", tmp_path / "old")
    assert [file.name for file in tmp_path.iterdir()] == ["old"] and (tmp_path / "old").read_bytes() == b"new"


@each_system
def test_a_folder_takes_the_place_of_an_empty_one_only(system: OperatingSystem, tmp_path: Path) -> None:
    for name in ("source", "other", "empty", "full"):
        (tmp_path / name).mkdir()
    for name in ("source", "other", "full"):
        (tmp_path / name / name).touch()
    system.rename_folder(tmp_path / "source", tmp_path / "empty")
    assert (tmp_path / "empty" / "source").exists() and not (tmp_path / "source").exists()
    with pytest.raises(OSError):
        system.rename_folder(tmp_path / "other", tmp_path / "full")
    assert (tmp_path / "full" / "full").exists() and (tmp_path / "other" / "other").exists()


@each_system
def test_a_link_is_not_opened(system: OperatingSystem, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"secret")
    try:
        (tmp_path / "link").symlink_to(tmp_path / "file")
    except OSError:
        pytest.skip("this user may not create links")
    with pytest.raises(OSError) as info:
        system.open_file(tmp_path / "link", os.O_RDONLY)
    assert info.value.errno == errno.ELOOP


@each_system
def test_can_write_leaves_no_file(system: OperatingSystem, tmp_path: Path) -> None:
    assert system.can_write(tmp_path) and not list(tmp_path.iterdir())
    assert not system.can_write(tmp_path / "absent")


@each_system
def test_limits_and_names_are_of_this_process(system: OperatingSystem) -> None:
    limit = system.raise_open_file_limit(64)
    assert limit is None or limit >= 64
    assert system.count_open_files() >= 0 and system.usable_cores() >= 1
    assert system.user_name() is None or system.user_name()
    assert system.unnamed_user().startswith("user")
    assert system.set_malloc_option(-3, 1 << 20) in (True, False)


def test_only_linux_has_clusters() -> None:
    for system in SYSTEMS:
        if system.name == "Linux":
            system.require_linux("a cluster")
        else:
            with pytest.raises(Unsupported, match=f"a cluster: expected Linux, got {system.name}"):
                system.require_linux("a cluster")


def test_windows_tries_again_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    real, refusals = os.replace, [PermissionError(13, "in use")] * 3

    def refuse(source: object, target: object) -> None:
        if refusals:
            raise refusals.pop()
        real(source, target)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "replace", refuse)
    (tmp_path / "new").touch()
    Windows().replace(tmp_path / "new", tmp_path / "file")
    assert (tmp_path / "file").exists() and waits == list(REFUSED_SECONDS[:3])
    refusals += [PermissionError(13, "in use")] * 100
    with pytest.raises(PermissionError):
        Windows().replace(tmp_path / "file", tmp_path / "other")
    assert (tmp_path / "file").exists() and len(waits) == 3 + len(REFUSED_SECONDS)


def test_windows_reserves_names() -> None:
    reserved = ["con", "NUL", "aux.txt", "Com1", "lpt9.a.b", "name."]
    assert all(map(Windows().is_reserved_name, reserved))
    assert not any(map(Windows().is_reserved_name, ["console", "com", "a.con", "name", "nul_"]))


def test_the_port_of_another_socket_is_taken() -> None:
    with socket.socket() as first, socket.socket() as second:
        for listener in (first, second):
            SYSTEM.bind_exclusively(listener)
        first.bind(("127.0.0.1", 0))
        first.listen()
        with pytest.raises(OSError):
            second.bind(first.getsockname())


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        (PurePosixPath("/tmp/a b/c?#%.db"), "file:///tmp/a%20b/c%3F%23%25.db"),
        (PureWindowsPath(r"C:\data\store.db"), "file:///C%3A/data/store.db"),
        (PureWindowsPath(r"\\server\share\store.db"), "file:////server/share/store.db"),
    ],
)
def test_sqlite_gets_a_uri_of_the_path(file: PurePosixPath, uri: str) -> None:
    assert sqlite_uri(file) == uri


def test_commits_wait_for_the_disk(tmp_path: Path) -> None:
    import stillhash

    stillhash.open(tmp_path / "c", dim=4, bits=8).close()
    connection = connect(tmp_path / "c", "rw")
    values = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "fullfsync")]
    connection.close()
    assert values == [2, 1]
