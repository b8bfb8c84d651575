"""Who may do what: roles, keys, the file of keys, and sessions of browsers.

Each role includes the ones before it. Without keys everyone may do everything, so a server without keys listens on
localhost only.

The file of keys has lines of JSON with a name, a role, collections, and a salted hash; never the key itself. A key has
256 random bits, so that one SHA-256 is enough: a slow hash protects only secrets that can be guessed. Its id is a part
of the key and names its line, so that a request is compared with one hash. A line with # is a comment.
"""

import hashlib
import hmac
import ipaddress
import json
import logging
import math
import os
import re
import secrets
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from stillhash.errors import Conflict, Denied, Forbidden, InvalidInput, NotFound
from stillhash.platform import SYSTEM

Role = Literal["read", "feedback", "write", "admin"]
ROLES: tuple[Role, ...] = ("read", "feedback", "write", "admin")  # each includes the ones before it
ANONYMOUS_NAME = "anonymous"
MIN_KEY_LENGTH = 16  # of a key from the environment
ID_BYTES, SECRET_BYTES, SALT_BYTES = 6, 32, 16  # random bytes of an id, of a key, of a salt
HASH_BYTES = 32
KEY_PATTERN = re.compile(r"sh_([0-9a-f]{12})_[\w-]{32,}", re.ASCII)  # the id, and the secret
KEY_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)
ENVIRONMENT_PREFIX = "env-"  # of the names of keys that come from the environment
KEY_FIELDS = ("id", "name", "role", "collections", "salt", "sha256", "created")
SESSION_COOKIE = "stillhash_session"

log = logging.getLogger("stillhash.server")


@dataclass(frozen=True)
class Key:
    """A key as the server stores it: a hash, never the key itself."""

    id: str
    name: str
    role: Role
    collections: frozenset[str] | None = None  # None is all
    salt: bytes = b""
    digest: bytes = b""
    created: str = ""

    def has_role(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)

    def check_role(self, role: Role) -> None:
        """Raise Forbidden unless the key has this role, or one that includes it."""
        if not self.has_role(role):
            raise Forbidden(f"role: expected a key of the role {role}, got one of the role {self.role}")

    def sees(self, collection: str) -> bool:
        return self.collections is None or collection in self.collections

    def visible(self, collections: Iterable[str]) -> list[str]:
        """Return those of the collections that the key has."""
        return [name for name in collections if self.sees(name)]


ANONYMOUS = Key("", ANONYMOUS_NAME, "admin")  # everyone, on a server without keys


def is_loopback(host: str) -> bool:
    """Return whether an address is this machine's own, which no other machine can reach."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


# ---- the file of keys ----


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


# ---- keys of a server ----


class Keys:
    """Keys by role, which have all collections, and keys of a file, which is read once.

    A server with a file of keys requires one, also where the file has none.
    """

    def __init__(
        self,
        read: Sequence[str] = (),
        write: Sequence[str] = (),
        *,
        feedback: Sequence[str] = (),
        admin: Sequence[str] = (),
        file: Path | None = None,
    ) -> None:
        plain: dict[Role, Sequence[str]] = {"read": read, "feedback": feedback, "write": write, "admin": admin}
        self.file, self.required = file, file is not None or any(plain.values())
        self._salt = secrets.token_bytes(SALT_BYTES)
        # The highest role first: it counts, if a key is listed twice.
        self._plain = [key for role in reversed(ROLES) for key in self._hash_plain(role, plain[role])]
        stored = [] if file is None else read_keys(file)
        self._keys = {key.id: key for key in (*self._plain, *stored)}
        if file is not None and SYSTEM.readable_by_others(file.stat().st_mode):
            log.warning("keys: %s can be read by others on this machine. Run: chmod 600 %s", file, file)
        if self.required and not self._keys:
            log.warning("keys: %s has none, so that every request is refused. Run: stillhash keys add", file)

    def _hash_plain(self, role: Role, values: Sequence[str]) -> list[Key]:
        for value in values:
            if len(value) < MIN_KEY_LENGTH or not value.isascii() or not value.isprintable():
                expected = f"at least {MIN_KEY_LENGTH} ASCII characters"
                raise InvalidInput(f"keys: expected {expected}, got {len(value)} characters")
        names = [f"{ENVIRONMENT_PREFIX}{role}-{number}" for number in range(1, len(values) + 1)]
        digests = [hash_key(value, self._salt) for value in values]
        return [Key(name, name, role, None, self._salt, digest) for name, digest in zip(names, digests, strict=True)]

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key_id: str) -> Key | None:
        return self._keys.get(key_id)

    def find(self, key: str) -> Key:
        """Return what is stored of a key, by one hash and comparisons in constant time; or raise Denied."""
        match = KEY_PATTERN.fullmatch(key)
        stored = self._keys.get(match[1]) if match else None
        candidates = self._plain if stored is None else [stored]
        digest = hash_key(key, self._salt if stored is None else stored.salt)
        matching = [one for one in candidates if hmac.compare_digest(one.digest, digest)]
        if not matching:
            raise Denied("unknown key")
        return matching[0]


def load_keys(file: Path | None, environment: Mapping[str, str] = os.environ) -> Keys:
    """Load the keys of a file and those of STILLHASH_READ_KEYS, _FEEDBACK_KEYS, _WRITE_KEYS and _ADMIN_KEYS."""
    plain = {role: environment.get(f"STILLHASH_{role.upper()}_KEYS", "").replace(",", " ").split() for role in ROLES}
    return Keys(plain["read"], plain["write"], feedback=plain["feedback"], admin=plain["admin"], file=file)


# ---- sessions of browsers ----


class Sessions:
    """Sessions of browsers that have signed in, each in a cookie that this process signs: a restart ends them.

    A session may do what its key may do, and ends after some time without use. A copy of its cookie is valid as long.
    """

    def __init__(self, keys: Keys, idle_seconds: float) -> None:
        self._keys, self._idle_seconds, self._secret = keys, idle_seconds, secrets.token_bytes(32)

    def start(self, key: Key, now: float | None = None) -> str:
        """Return the cookie of a session of this key, used now."""
        about = f"{key.id}.{int(1e6 * (time.monotonic() if now is None else now))}"
        return f"{about}.{hmac.digest(self._secret, about.encode(), 'sha256').hex()}"

    def get(self, cookie: str, now: float | None = None) -> Key | None:
        """Return the key of a session; None if it has ended, or there never was one."""
        unused = (time.monotonic() if now is None else now) - self._last_used(cookie)
        return self._keys.get(cookie.partition(".")[0]) if unused <= self._idle_seconds else None

    def renew(self, cookie: str, now: float | None = None) -> str | None:
        """Return the next cookie of a session, which is used now; None while the one that it has will do."""
        key, now = self.get(cookie, now), time.monotonic() if now is None else now
        due = now - self._last_used(cookie) > self._idle_seconds / 10
        return self.start(key, now) if key is not None and due else None

    def _last_used(self, cookie: str) -> float:
        about, _, signature = cookie.rpartition(".")
        expected = hmac.digest(self._secret, about.encode(), "sha256").hex()
        if not hmac.compare_digest(signature.encode(), expected.encode()):
            return -math.inf
        return int(about.partition(".")[2]) / 1e6


def session_cookie(value: str, *, secure: bool) -> str:
    """Return the header that stores a session in a browser: scripts cannot read it, and other sites cannot use it."""
    return f"{SESSION_COOKIE}={value}; HttpOnly; Path=/; SameSite=strict{'; Secure' if secure else ''}"
