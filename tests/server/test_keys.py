"""The file of keys, keys of the environment, and the keys of a server."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import signal
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stillhash import Client
from stillhash.errors import Conflict, Denied, Forbidden, InvalidInput, NotFound
from stillhash.platform import SYSTEM
from stillhash.platform.windows import FOLDER_LOCK
from stillhash.server import ROLES, Keys, add_key, load_keys, read_keys, remove_key
from stillhash.server.auth import ANONYMOUS, Key, hash_key
from tests.collection.fixtures import copied
from tests.server.serve_command import serve_command
from tests.support.seeds import run_seed

PLAIN = "a-key-of-the-environment"


needs_modes = pytest.mark.skipif(not SYSTEM.readable_by_others(0o644), reason="files have no modes here")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


# ---- the file ----


def test_a_key_is_stored_as_a_salted_hash(file: Path) -> None:
    keys = [add_key(file, name, "write", ["b", "a", "a"]) for name in ("ann", "ben@example.org")]
    text = file.read_text(encoding="utf-8")
    assert not SYSTEM.readable_by_others(stat.S_IMODE(file.stat().st_mode)) and text.count("\n") == 2
    assert not any(part in text for key in keys for part in (key, key.split("_", 2)[2], key[-30:]))
    lines = [json.loads(line) for line in text.splitlines()]
    assert len({line["salt"] for line in lines}) == len({line["sha256"] for line in lines}) == 2
    for key, line, stored in zip(keys, lines, read_keys(file), strict=True):
        assert re.fullmatch(r"sh_[0-9a-f]{12}_[\w-]{43}", key, re.ASCII)  # 43 characters of base64: 256 bits
        assert key.split("_")[1] == line["id"] == stored.id
        assert (stored.name, stored.role, stored.collections) == (line["name"], "write", {"a", "b"})
        assert Keys(file=file).find(key) == stored


def test_only_the_whole_key_is_accepted(file: Path) -> None:
    key, other = add_key(file, "ann", "read"), add_key(file, "ben", "admin")
    keys = Keys(file=file)
    swapped = "_".join([*key.split("_")[:2], other.split("_", 2)[2]])  # the id of one, the secret of the other
    for wrong in (
        key[:-1],
        f"{key}x",
        key.upper(),
        swapped,
        key.split("_", 2)[2],
        "",
        "sh_",
        "sh_000000000000_" + "x" * 43,
    ):
        with pytest.raises(Denied, match="unknown key"):
            keys.find(wrong)
    stored = json.loads(file.read_text(encoding="utf-8").splitlines()[0])
    for part in (stored["sha256"], f"sh_{stored['id']}_{stored['sha256']}"):
        with pytest.raises(Denied):
            keys.find(part)


def test_the_lookup_by_id_equals_a_search_of_all_keys(file: Path) -> None:
    plain = [f"{PLAIN}-{number}" for number in range(5)]
    values = [*plain, *(add_key(file, f"key-{number}", "read") for number in range(20))]
    keys = load_keys(file, {"STILLHASH_WRITE_KEYS": " ".join(plain)})
    stored = [*(keys.find(value) for value in plain), *read_keys(file)]
    rng = random.Random(int(run_seed()))
    accepted_values = 0
    for _ in range(500):
        value = list(rng.choice(values))
        for _ in range(rng.randrange(3)):
            value[rng.randrange(len(value))] = rng.choice("aZ09_-")
        if rng.random() < 0.2:  # the beginning of one key, and the end of another
            value = [*value[: rng.randrange(40)], *rng.choice(values)[rng.randrange(40) :]]
        text = "".join(value)
        expected = [key for key in stored if hash_key(text, key.salt) == key.digest]
        try:
            assert [keys.find(text)] == expected
            accepted_values += 1
        except Denied:
            assert expected == []
    assert 50 < accepted_values < 450


def test_names_are_unique_and_removed_by_name(file: Path) -> None:
    add_key(file, "ann", "read")
    key = add_key(file, "ben", "read")
    lines = file.read_text(encoding="utf-8").rstrip("\n")  # and no newline at the end
    file.write_text("# the keys of the shop\n\n" + lines, encoding="utf-8")
    with pytest.raises(Conflict, match=r"^name"):
        add_key(file, "ann", "write")
    add_key(file, "cara", "write")
    remove_key(file, "ann")
    assert [one.name for one in read_keys(file)] == ["ben", "cara"]
    assert file.read_text(encoding="utf-8").startswith("# the keys")
    assert Keys(file=file).find(key).name == "ben"
    with pytest.raises(NotFound, match="ben, cara"):
        remove_key(file, "ann")
    assert {one.name for one in file.parent.iterdir()} <= {file.name, FOLDER_LOCK}  # no temporary file is left


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "anonymous", "env-read-1", "a\n", "ä", "<b>"])
def test_invalid_names_are_refused(file: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match=r"^name"):
        add_key(file, name, "read")
    assert not file.exists()


def test_invalid_roles_and_collections_are_refused(file: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^role"):
        add_key(file, "ann", "root")  # type: ignore[arg-type]
    for collections in ([], [""], ["a", ""]):  # none would be all
        with pytest.raises(InvalidInput, match=r"^collections"):
            add_key(file, "ann", "read", collections)
    with pytest.raises(InvalidInput, match=r"^keys"):
        add_key(file.parent / "none" / "keys", "ann", "read")
    assert not file.exists()


@needs_modes
def test_mode_owner_and_links_are_retained(file: Path) -> None:
    add_key(file, "ann", "read")
    file.chmod(0o640)
    link = file.parent / "link"
    link.symlink_to(file)
    add_key(link, "ben", "read")
    remove_key(link, "ann")
    assert link.is_symlink() and stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [one.name for one in read_keys(file)] == ["ben"]
    if os.geteuid() == 0:
        os.chown(file, 12345, 23456)
        add_key(file, "cara", "read")
        assert (file.stat().st_uid, file.stat().st_gid) == (12345, 23456)


def test_commands_at_the_same_time_lose_no_key(file: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda number: add_key(file, f"key-{number}", "read"), range(40)))
    stored = Keys(file=file)
    assert [stored.find(key).name for key in keys] == [f"key-{number}" for number in range(40)]


def line(**changes: object) -> str:
    """Return a valid line with these changes; None removes a field."""
    fields = {"id": "0123456789ab", "name": "ann", "role": "read", "collections": None}
    fields |= {"salt": "00" * 16, "sha256": "00" * 32, "created": "2026-11-16T00:00:00Z"}
    return json.dumps({name: value for name, value in (fields | changes).items() if value != "missing"})


def test_a_valid_line_is_accepted(file: Path) -> None:
    file.write_text(f"# a comment\n\n  {line()}  \n", encoding="utf-8")
    assert read_keys(file) == [Key("0123456789ab", "ann", "read", None, bytes(16), bytes(32), "2026-11-16T00:00:00Z")]


@pytest.mark.parametrize(
    "bad",
    [
        line(collections="missing"),  # which must not mean all
        line(collections=[]),
        line(collections="films"),
        line(collections=[1]),
        line(role="root"),
        line(role=["read"]),
        line(name="env-read-1"),
        line(name=7),
        line(id="0123"),
        line(id="sh_xxxxxxxxx"),
        line(salt=""),
        line(sha256="00" * 31),
        line(sha256="zz" * 32),
        line(created=7),
        line(until="tomorrow"),
        "[]",
        "{}",
        "null",
        "[" * 5000,
        "a-secret-of-old",
        f"{line()}\n{line()}",
        f"{line()}\n{line(name='ben')}",
        f"{line()}\n{line(id='ba9876543210')}",
    ],
)
def test_invalid_lines_are_refused(file: Path, bad: str) -> None:
    file.write_text(f"# a comment\n{bad}\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match=rf"^keys: .*line {2 + bad.count(chr(10))}") as raised:
        read_keys(file)
    assert "stillhash keys add" in str(raised.value) or "twice" in str(raised.value)
    assert "a-secret-of-old" not in str(raised.value) and "00000000" not in str(raised.value)
    before = file.read_text(encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"^keys"):
        add_key(file, "dora", "read")
    assert file.read_text(encoding="utf-8") == before


@pytest.mark.parametrize("role", ["read", "write"])
def test_lines_with_plain_keys_name_the_command_to_run(file: Path, role: str) -> None:
    file.write_text(f"{role} 4fVb9sGd7uYp3cRe\n", encoding="utf-8")
    with pytest.raises(
        InvalidInput, match=rf"line 1: .*stillhash keys add {file} --name NAME --role {role}$"
    ) as raised:
        load_keys(file, {})
    assert "4fVb9sGd7uYp3cRe" not in str(raised.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "none", tmp_path, tmp_path / "bytes"):
        with pytest.raises(InvalidInput, match=r"^keys"):
            load_keys(path, {})


@needs_modes
def test_a_file_that_others_can_read_is_reported(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    add_key(file, "ann", "read")
    for mode, warned in ((0o600, False), (0o400, False), (0o640, True), (0o604, True)):
        caplog.clear()
        file.chmod(mode)
        assert len(load_keys(file, {})) == 1
        assert bool(caplog.records) is warned and all("chmod 600" in record.getMessage() for record in caplog.records)


# ---- the environment, and roles ----


def test_keys_of_the_environment(file: Path) -> None:
    environment = {f"STILLHASH_{role.upper()}_KEYS": f"{PLAIN}-{role}, {PLAIN}-{role}-2" for role in ROLES}
    keys = load_keys(None, environment)
    for role in ROLES:
        for number, value in ((1, f"{PLAIN}-{role}"), (2, f"{PLAIN}-{role}-2")):
            key = keys.find(value)
            assert (key.name, key.role, key.collections) == (f"env-{role}-{number}", role, None)
            assert value.encode() not in key.digest and keys.get(key.id) == key
    in_file = add_key(file, "ann", "write", ["a"])
    both = load_keys(file, environment)
    assert both.find(in_file).name == "ann" and both.find(f"{PLAIN}-admin").name == "env-admin-1"
    assert both.get("env-admin-1") == both.find(f"{PLAIN}-admin") and len(both) == 2 * len(ROLES) + 1
    assert not load_keys(None, {}).required and len(load_keys(None, {})) == 0
    with pytest.raises(Denied):
        load_keys(None, environment).find(in_file)


def test_a_created_key_can_come_from_the_environment(file: Path) -> None:
    key = add_key(file, "ann", "read")
    assert load_keys(None, {"STILLHASH_WRITE_KEYS": key}).find(key).role == "write"


def test_the_highest_role_of_a_key_counts() -> None:
    assert Keys(read=(PLAIN,), admin=(PLAIN,), write=(PLAIN,)).find(PLAIN).role == "admin"


@pytest.mark.parametrize("value", ["short", "ä" * 20])
def test_weak_keys_of_the_environment_are_refused(value: str) -> None:
    for role in ROLES:
        with pytest.raises(InvalidInput, match=r"^keys") as raised:
            load_keys(None, {f"STILLHASH_{role.upper()}_KEYS": value})
        assert value not in str(raised.value)


def test_a_role_includes_the_ones_before_it() -> None:
    for place, role in enumerate(ROLES):
        key = Key("", "ann", role)
        for other_place, other in enumerate(ROLES):
            assert key.has_role(other) is (other_place <= place)
            if other_place > place:
                with pytest.raises(Forbidden, match=rf"^role: .*{other}.*{role}"):
                    key.check_role(other)
            else:
                key.check_role(other)
    assert ANONYMOUS.has_role("admin") and ANONYMOUS.sees("anything")


# ---- a server ----


def test_keys_of_a_file_are_required_also_where_it_has_none(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = add_key(file, "ann", "read")
    remove_key(file, "ann")
    keys = load_keys(file, {})
    assert keys.required and len(keys) == 0 and [record.levelno for record in caplog.records] == [logging.WARNING]
    with pytest.raises(Denied):
        keys.find(key)


@pytest.mark.slow
def test_a_server_takes_changes_of_its_keys_at_its_next_start(template: Path, tmp_path: Path, file: Path) -> None:
    path = copied(template, tmp_path / "c")
    ann, ben = add_key(file, "ann", "read"), add_key(file, "ben", "read")
    for known, unknown in (([ann, ben], []), ([ben], [ann])):
        with serve_command(tmp_path / "log", path, "--keys", file) as server:
            for key in known:
                with Client(server.url, key) as client:
                    assert client.count() == 320
            for key in unknown:
                with Client(server.url, key) as client, pytest.raises(Denied):
                    client.count()
            if known[0] == ann:
                remove_key(file, "ann")
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == -signal.SIGTERM  # as uvicorn ends, after the shutdown
