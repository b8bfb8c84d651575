"""The file of keys: lines of JSON with a name, a role, collections, and a salted hash; never the key itself.

A key has 256 random bits, so that one SHA-256 is enough: a slow hash protects only secrets that can be guessed. Its id
is a part of the key and names its line, so that a request is compared with one hash. A line with # is a comment.
"""

import hashlib
import json
import os
import re
import secrets
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stillhash.errors import Conflict, InvalidInput, NotFound
from stillhash.platform import SYSTEM
from stillhash.server.auth import ANONYMOUS_NAME, ROLES, Key, Role

ID_BYTES, SECRET_BYTES, SALT_BYTES = 6, 32, 16  # random bytes of an id, of a key, of a salt
HASH_BYTES = 32
KEY_PATTERN = re.compile(r"sh_([0-9a-f]{12})_[\w-]{32,}", re.ASCII)  # the id, and the secret
KEY_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)
ENVIRONMENT_PREFIX = "env-"  # of the names of keys that come from the environment
KEY_FIELDS = ("id", "name", "role", "collections", "salt", "sha256", "created")


def hash_key(key: str, salt: bytes) -> bytes:
    return hashlib.sha256(salt + key.encode()).digest()


def read_keys(file: Path) -> list[Key]:
    """Read the keys of a file; InvalidInput names the line that is wrong."""
    return list(_parse(file, _read(file)).values())


def add_key(file: Path, name: str, role: Role, collections: list[str] | None = None) -> str:
    """Append a new key to a file, which is created if there is none; return the key, which is stored nowhere."""
    _check_name(name)
    if role not in ROLES:
        raise InvalidInput(f"role: expected {', '.join(ROLES)}, got {role!r}")
    if collections is not None and not (collections and all(collections)):
        raise InvalidInput(f"collections: expected names, got {','.join(collections)!r}")
    key_id = secrets.token_hex(ID_BYTES)
    key, salt = f"sh_{key_id}_{secrets.token_urlsafe(SECRET_BYTES)}", secrets.token_bytes(SALT_BYTES)
    created = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    line = {
        **{"id": key_id, "name": name, "role": role, "collections": sorted(set(collections)) if collections else None},
        **{"salt": salt.hex(), "sha256": hash_key(key, salt).hex(), "created": created},
    }
    with _locked(file):
        text = _read(file) if file.exists() else ""
        if any(one.name == name for one in _parse(file, text).values()):
            raise Conflict(f"name: {name!r} is in {file} already. Remove it, or choose another name")
        _replace(file, f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{json.dumps(line)}\n")
    return key


def remove_key(file: Path, name: str) -> None:
    """Remove the key of this name from a file."""
    with _locked(file):
        text = _read(file)
        keys = _parse(file, text)
        removed = next((number for number, key in keys.items() if key.name == name), None)
        if removed is None:
            names = ", ".join(key.name for key in keys.values()) or "none"
            raise NotFound(f"No key {name!r} in {file}. Available: {names}")
        lines = text.splitlines(keepends=True)
        _replace(file, "".join(lines[: removed - 1] + lines[removed:]))


def _check_name(name: str) -> None:
    if not KEY_NAME.fullmatch(name) or name == ANONYMOUS_NAME or name.startswith(ENVIRONMENT_PREFIX):
        expected = f"1 to 64 letters, digits and _.@-, neither {ANONYMOUS_NAME!r} nor {ENVIRONMENT_PREFIX}..."
        raise InvalidInput(f"name: expected {expected}, got {name!r}")


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise InvalidInput(f"keys: cannot read {str(file)!r}: {error}") from None


def _parse(file: Path, text: str) -> dict[int, Key]:
    """Parse the keys by the numbers of their lines. No message repeats a line, which may hold a secret."""
    keys: dict[int, Key] = {}
    taken: set[tuple[str, str]] = set()  # ids and names
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            key = _parse_line(line)
        except (InvalidInput, ValueError, TypeError, KeyError, RecursionError):
            words = line.split()
            role = words[0] if len(words) == 2 and words[0] in ROLES else None
            command = f"stillhash keys add {shlex.quote(str(file))} --name NAME --role {role or 'ROLE'}"
            reason = "a key itself, which is no longer stored. Delete this line, then" if role else "another. Instead"
            message = f"expected a line that 'stillhash keys add' wrote, got {reason} run: {command}"
            raise InvalidInput(f"keys: {file}, line {number}: {message}") from None
        own = {("id", key.id), ("name", key.name)}
        if own & taken:
            raise InvalidInput(f"keys: {file}, line {number}: expected different names and ids, got {key.name!r} twice")
        taken |= own
        keys[number] = key
    return keys


def _parse_line(line: str) -> Key:
    fields: dict[str, Any] = json.loads(line)
    key_id, name, role, collections, salt, digest, created = (fields[field] for field in KEY_FIELDS)
    listed = type(collections) is list and all(type(one) is str for one in collections)
    sizes = [len(bytes.fromhex(number)) for number in (key_id, salt, digest)]
    if (
        len(fields) != len(KEY_FIELDS)
        or sizes != [ID_BYTES, SALT_BYTES, HASH_BYTES]
        or role not in ROLES
        or type(created) is not str
        or not (collections is None or (listed and collections))  # a text would be a list of letters
    ):
        raise InvalidInput("line: expected the fields of a key")
    _check_name(name)
    seen = None if collections is None else frozenset(collections)
    return Key(key_id, name, role, seen, bytes.fromhex(salt), bytes.fromhex(digest), created)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Keep other commands from changing files of this folder meanwhile."""
    try:
        folder = SYSTEM.open_folder_lock(file.resolve().parent)
    except OSError as error:
        raise InvalidInput(f"keys: cannot open the folder of {str(file)!r}: {error}") from None
    try:
        SYSTEM.lock(folder)
        yield
    finally:
        SYSTEM.unlock(folder)
        os.close(folder)


def _replace(file: Path, text: str) -> None:
    """Replace a file atomically, for its owner alone unless it had another mode before; on Windows, as its folder."""
    file = file.resolve()  # the file that a link names
    new = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        handle = SYSTEM.open_file(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as output:
            if file.exists():
                SYSTEM.copy_owner(handle, file.stat())
            output.write(text)
            output.flush()
            SYSTEM.sync_handle(handle)
        SYSTEM.replace(new, file)
        SYSTEM.sync(file.parent)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise InvalidInput(f"keys: cannot write {str(file)!r}: {error}") from None
