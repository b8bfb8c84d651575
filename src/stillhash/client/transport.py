"""HTTP transport of the client: JSON, pooled connections, retries, and typed errors.

A request that changes nothing, or changes the same thing twice, is always retried. Any other request is retried only if
nothing was stored: by the server's answer, or because it could not be reached.
"""

import json
import os
import random
import ssl
import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np

from stillhash import errors
from stillhash.collection.types import Answer, Explanation, Hit, Vote
from stillhash.errors import Busy, Closed, InvalidInput, MissingExtra, StillhashError, Unreachable, WrongType
from stillhash.numeric.validation import check_integer, check_number

try:
    import urllib3
    from urllib3.util import Retry
except ImportError as error:
    raise MissingExtra("The client needs urllib3: pip install 'stillhash[client]'") from error

JSON_TYPE, NDJSON_TYPE, RAW_TYPE = "application/json", "application/x-ndjson", "application/octet-stream"
ROW_FIELDS = {"id", "features", "labels", "metadata"}  # of a stream; the first two are required
REQUEST_LINES = 1000  # of a stream, in one request
FIRST_BACKOFF, MAX_BACKOFF = 0.1, 10.0  # seconds before a retry; doubles up to the maximum
NOTHING_STORED = 429, 503  # statuses of a server that stored nothing
UNAVAILABLE = *NOTHING_STORED, 502, 504  # statuses of an unavailable server, or of a proxy before it

RetryWhen = Literal["always", "not stored", "not sent"]


class Transport:
    def __init__(
        self, url: str, key: str | None, timeout: float, retries: int, ca: str | os.PathLike[str] | None = None
    ) -> None:
        if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise InvalidInput(f"url: expected http://HOST:PORT, got {url!r}")
        if key is not None and not (isinstance(key, str) and key.isascii() and key.isprintable()):
            raise InvalidInput("key: expected printable ASCII text")
        self.url, self.retries = url.rstrip("/"), check_integer(retries, "retries", 0)
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        timeout = check_number(timeout, "timeout", above=0)
        backoff: Any = {"backoff_factor": FIRST_BACKOFF, "backoff_jitter": FIRST_BACKOFF, "backoff_max": MAX_BACKOFF}
        backoff["retry_after_max"] = min(timeout, MAX_BACKOFF)  # of what the server asks for
        policy = partial(Retry, self.retries, other=0, allowed_methods=None, raise_on_status=False, **backoff)
        self._retry: dict[RetryWhen, Retry] = {  # read=False: the server may have done what it did not answer
            "always": policy(status_forcelist=UNAVAILABLE),
            "not stored": policy(status_forcelist=NOTHING_STORED, read=False),
            "not sent": policy(read=False, respect_retry_after_header=False),
        }
        self._pool = urllib3.PoolManager(maxsize=16, timeout=timeout, ssl_context=_tls_context(ca))
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._pool.clear()

    def request(
        self, method: str, path: str, body: bytes | None = None, kind: str = JSON_TYPE, retry: RetryWhen = "always"
    ) -> dict[str, Any]:
        """Send a request of this content type, and return the JSON object of its response; or raise its error."""
        if self._closed:
            raise Closed("The client is closed")
        headers = self._headers if body is None else {**self._headers, "content-type": kind}
        try:
            response = self._pool.request(
                method, self.url + path, body=body, headers=headers, retries=self._retry[retry], redirect=False
            )
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(f"{self.url} does not answer: {getattr(error, 'reason', None) or error}") from error
        try:
            payload = json.loads(response.data)
        except ValueError:
            payload = None
        if not isinstance(payload, dict) or (response.status != 200 and not {"error", "message"} <= payload.keys()):
            raise Unreachable(f"{self.url} answers {response.status}, but is not a stillhash server")
        if response.status != 200:
            raise _to_error(payload, response.headers.get("retry-after", ""))
        return payload

    def post_lines(self, path: str, lines: Iterator[bytes]) -> int:
        """Post a stream in several requests, and return the number of stored rows; continue after a busy server."""
        stored, tries = 0, 0
        chunk: list[bytes] = []
        while True:
            try:
                chunk = chunk or list(islice(lines, REQUEST_LINES))
                if not chunk:
                    return stored
                stored += self.request("POST", path, b"\n".join(chunk), NDJSON_TYPE, "not sent")["count"]
                chunk, tries = [], 0
            except StillhashError as error:
                acknowledged = vars(error).get("acknowledged", 0)  # of this chunk
                stored, chunk, tries = stored + acknowledged, chunk[acknowledged:], tries + 1
                vars(error)["acknowledged"] = stored
                if not isinstance(error, Busy) or tries > self.retries:
                    raise
                backoff = min(MAX_BACKOFF, max(error.retry_after, FIRST_BACKOFF * 2**tries))
                time.sleep(backoff + random.uniform(0, FIRST_BACKOFF))

    def post_votes(self, path: str, votes: Iterable[Any]) -> int:
        """Post votes as lines of one request, and return the new version; the server validates them."""
        lines = []
        for number, vote in enumerate(votes, 1):
            try:
                fields = vote._asdict() if isinstance(vote, Vote) else vote
                lines.append(json.dumps(fields, allow_nan=False, default=_array_to_list).encode())
            except (TypeError, ValueError, RecursionError) as error:
                raise InvalidInput(f"vote {number}: cannot be sent as JSON: {error}") from None
        return int(self.request("POST", path, b"\n".join(lines), NDJSON_TYPE, "not stored")["version"])


def _tls_context(ca: str | os.PathLike[str] | None) -> ssl.SSLContext | None:
    """Return a context that trusts the certificates of a file; None trusts those of the system."""
    try:
        return None if ca is None else ssl.create_default_context(cafile=ca)
    except (OSError, TypeError) as error:  # ssl.SSLError, if the file has no certificate, is an OSError
        raise InvalidInput(f"ca: expected a file of certificates in PEM, got {ca!r}: {error}") from None


def _to_error(payload: dict[str, Any], retry_after: str) -> StillhashError:
    """Return the error of the class that the server names, with its other fields as attributes."""
    kind = getattr(errors, str(payload["error"]), StillhashError)
    known = isinstance(kind, type) and issubclass(kind, StillhashError)
    error = (kind if known else StillhashError)(payload["message"])
    vars(error).update({name: payload[name] for name in ("request_id", "acknowledged") if name in payload})
    if isinstance(error, Busy) and retry_after.isdecimal():
        vars(error)["retry_after"] = int(retry_after)
    return error


def to_json(body: dict[str, Any]) -> str:
    """Serialise arguments; arrays and other iterables become lists."""
    try:
        return json.dumps(body, default=_to_list)
    except (TypeError, ValueError, RecursionError) as error:
        raise WrongType(f"{', '.join(body)}: cannot be sent as JSON: {error}") from None


def row_to_json(row: Any, number: int) -> bytes:
    """Serialise a row of a stream."""
    if not isinstance(row, dict) or not {"id", "features"} <= row.keys() <= ROW_FIELDS:
        raise InvalidInput(f"row {number}: expected a dictionary with id, features, and optional labels and metadata")
    try:
        return json.dumps(row, allow_nan=False, default=_array_to_list).encode()
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"row {number}: cannot be sent as JSON: {error}") from None


def _to_list(value: Any) -> Any:
    return list(value) if isinstance(value, Iterable) and not hasattr(value, "tolist") else _array_to_list(value)


def _array_to_list(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"expected a value that JSON can hold, got {value!r}")


def to_answer(answer: dict[str, Any]) -> Answer:
    """Convert the JSON object of an answer."""
    hits = [hit | {"explanation": hit["explanation"] and Explanation(**hit["explanation"])} for hit in answer["hits"]]
    return Answer(**{**answer, "hits": [Hit(**hit) for hit in hits]})
