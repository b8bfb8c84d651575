"""Sessions of browsers that have signed in: in memory, bounded, and gone when the server stops.

The cookie holds a random token, and the server its hash. A session may do what its key may do now, and ends with it.
"""

import hashlib
import secrets
import time
from collections import OrderedDict
from itertools import islice
from typing import NamedTuple

from stillhash.server.auth import Key
from stillhash.server.keys import Keys

SESSION_COOKIE = "stillhash_session"
MAX_SESSIONS = 10_000  # the least recently used ends first
TOKEN_BYTES = 32


class Session(NamedTuple):
    key_id: str
    digest: bytes  # of the key: another key of the same id is another key
    last_used: float


class Sessions:
    """Least recently used sessions. Not thread-safe: only the event loop uses it."""

    def __init__(self, keys: Keys, idle_seconds: float, most: int = MAX_SESSIONS) -> None:
        self._keys, self._idle_seconds, self._most = keys, idle_seconds, most
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()  # by the hash of the token

    def __len__(self) -> int:
        return len(self._sessions)

    def start(self, key: Key, now: float | None = None) -> str:
        """Start a session of a key, and return its token."""
        token, now = secrets.token_urlsafe(TOKEN_BYTES), time.monotonic() if now is None else now
        self._sessions[_hash_token(token)] = Session(key.id, key.digest, now)
        while len(self._sessions) > self._most or self._oldest_is_idle(now):
            self._sessions.popitem(last=False)
        return token

    def get(self, token: str, now: float | None = None) -> Key | None:
        """Return the key of a session, as it is now, and count the session as used; None if it has ended."""
        digest, now = _hash_token(token), time.monotonic() if now is None else now
        session = self._sessions.pop(digest, None)
        if session is None or self._is_idle(session, now) or (key := self._key(session)) is None:
            return None
        self._sessions[digest] = session._replace(last_used=now)
        return key

    def end(self, token: str) -> None:
        self._sessions.pop(_hash_token(token), None)

    def end_without_key(self) -> None:
        """End the sessions whose key was removed."""
        ended = [digest for digest, session in self._sessions.items() if self._key(session) is None]
        for digest in ended:
            del self._sessions[digest]

    def _oldest_is_idle(self, now: float) -> bool:
        return any(self._is_idle(session, now) for session in islice(self._sessions.values(), 1))

    def _is_idle(self, session: Session, now: float) -> bool:
        return now - session.last_used > self._idle_seconds

    def _key(self, session: Session) -> Key | None:
        key = self._keys.get(session.key_id)
        return key if key is not None and key.digest == session.digest else None


def _hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
