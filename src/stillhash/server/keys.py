"""The keys of a server: from a file, which may change while the server runs, and from the environment."""

import hmac
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from stillhash.errors import Denied, InvalidInput
from stillhash.platform import SYSTEM
from stillhash.server.auth import ROLES, Key, Role
from stillhash.server.key_file import ENVIRONMENT_PREFIX, KEY_PATTERN, SALT_BYTES, hash_key, read_keys

MIN_KEY_LENGTH = 16  # of a key from the environment

log = logging.getLogger("stillhash.server")

FileState = tuple[int, ...] | None  # of a file: it changes when the file does; None if there is no file


class Keys:
    """Keys by role, which have all collections, and keys of a file.

    Once keys are required, they stay so: a server whose last key is removed answers nobody.
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
        self._keys: dict[str, Key] = {}
        self._file_state: FileState = None
        if file is not None:
            self._load(file, _file_state(file))
            if not self._keys:
                log.warning("keys: %s has none, so that every request is refused. Run: stillhash keys add", file)
        else:
            self._keys = {key.id: key for key in self._plain}

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

    def changed(self) -> bool:
        """Return whether the file is another than the one that was read last."""
        return self.file is not None and _file_state(self.file) != self._file_state

    def reload(self) -> None:
        """Read the file again. An invalid one changes nothing, and is reported."""
        if self.file is None:
            return
        state = _file_state(self.file)  # before reading, so that a change after it is noticed
        try:
            self._load(self.file, state)
        except InvalidInput as error:
            self._file_state = state  # reported once
            log.error("keys are not reloaded; the former ones stay in use: %s", error)
        else:
            log.info("keys reloaded", extra={"fields": {"file": str(self.file), "keys": len(self._keys)}})

    def _load(self, file: Path, state: FileState) -> None:
        stored = read_keys(file)
        if state is not None and SYSTEM.readable_by_others(state[0]):
            log.warning("keys: %s can be read by others on this machine. Run: chmod 600 %s", file, file)
        self._keys = {key.id: key for key in (*self._plain, *stored)}  # a new object, so that readers need no lock
        self._file_state = state


def _file_state(file: Path) -> FileState:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mode, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def load_keys(file: Path | None, environment: Mapping[str, str] = os.environ) -> Keys:
    """Load the keys of a file and those of STILLHASH_READ_KEYS, _FEEDBACK_KEYS, _WRITE_KEYS and _ADMIN_KEYS."""
    plain = {role: environment.get(f"STILLHASH_{role.upper()}_KEYS", "").replace(",", " ").split() for role in ROLES}
    return Keys(plain["read"], plain["write"], feedback=plain["feedback"], admin=plain["admin"], file=file)
