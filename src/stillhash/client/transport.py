"""Calls of a server over HTTP: connections that are kept, further tries where they can do no harm, and errors.

A call is tried again if it changes nothing, or the same thing twice (`again`). Any other is only if nothing of it was
kept: because the server said so, or could not be reached at all.
"""

from __future__ import annotations

import json
from typing import Any, Literal
from urllib.parse import urlsplit

from stillhash import errors
from stillhash.errors import Busy, Conflict, InvalidInput, MissingExtra, StillhashError, Unreachable
from stillhash.numeric.validation import check_integer, check_number

try:
    import urllib3
    from urllib3.util import Retry
except ImportError as error:
    raise MissingExtra("the client wants urllib3: pip install 'stillhash[client]'") from error

JSON = "application/json"
FIRST, LONGEST = 0.1, 10.0  # seconds: a pause before another try, which doubles, and the longest there is
KEPT_NOTHING = 429, 503  # what a server answers that kept nothing of a request
AWAY = *KEPT_NOTHING, 502, 504  # what it, or a proxy before it, answers while it is away

Safe = Literal["again", "unless kept", "unless reached"]  # when a call may be tried again


class Calls:
    def __init__(self, url: str, key: str | None, timeout: float, retries: int) -> None:
        if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise InvalidInput(f"url is {url!r}; http://HOST:PORT is wanted")
        if key is not None and not (isinstance(key, str) and key.isascii() and key.isprintable()):
            raise InvalidInput("key is no plain text; a key of the server is wanted")
        self.url, self.retries = url.rstrip("/"), check_integer(retries, "retries", 0)
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._retry: dict[Safe, Retry] = {
            "again": _retry(self.retries, None, AWAY),
            "unless kept": _retry(self.retries, False, KEPT_NOTHING),
            "unless reached": _retry(self.retries, False, ()),
        }
        self._pool = urllib3.PoolManager(maxsize=16, timeout=check_number(timeout, "timeout", above=0))
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._pool.clear()

    def call(
        self, method: str, path: str, body: bytes | None = None, kind: str = JSON, safe: Safe = "again"
    ) -> dict[str, Any]:
        """What the server answers; its errors are raised."""
        if self._closed:
            raise Conflict("the client is closed")
        headers = self._headers if body is None else {**self._headers, "content-type": kind}
        try:
            answer = self._pool.request(
                method, self.url + path, body=body, headers=headers, retries=self._retry[safe], redirect=False
            )
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(f"{self.url} does not answer: {getattr(error, 'reason', None) or error}") from error
        try:
            told = json.loads(answer.data)
        except ValueError:
            told = None
        if not isinstance(told, dict) or (answer.status != 200 and not {"error", "message"} <= told.keys()):
            raise Unreachable(f"{self.url} answers {answer.status}, and not as a stillhash server does")
        if answer.status != 200:
            raise _error(told, answer.headers.get("retry-after", ""))
        return told


def _retry(tries: int, read: Literal[False] | None, statuses: tuple[int, ...]) -> Retry:
    """`read` is False where a call may have been done although its answer was lost."""
    return Retry(
        tries,
        read=read,
        other=0,
        allowed_methods=None,
        status_forcelist=statuses,
        backoff_factor=FIRST,
        backoff_jitter=FIRST,
        backoff_max=LONGEST,
        respect_retry_after_header=bool(statuses),
        raise_on_status=False,
    )


def _error(told: dict[str, Any], wait: str) -> StillhashError:
    """The error of this name, with what else the server says of it as attributes."""
    found = getattr(errors, str(told["error"]), None)
    kind = found if isinstance(found, type) and issubclass(found, StillhashError) else StillhashError
    error = kind(told["message"])
    vars(error).update({name: told[name] for name in ("request_id", "acknowledged") if name in told})
    if isinstance(error, Busy) and wait.isdecimal():
        vars(error)["retry_after"] = int(wait)
    return error
