"""Sessions of browsers: sign in, sign out, idle time, removed keys, and their number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import pytest

from stillhash.server import Keys, add_key, load_keys, remove_key
from stillhash.server.sessions import SESSION_COOKIE, Sessions
from tests.server.live_server import LiveServer, Reply
from tests.support.waiting import until

READ, OTHER = "a-key-that-may-read", "another-key-that-may-read"
FORM = "application/x-www-form-urlencoded"


def sign_in(server: LiveServer, key: str, **headers: str) -> Reply:
    return server.request("POST", "/login", urlencode({"key": key}).encode(), content_type=FORM, **headers)


def cookie(reply: Reply) -> str:
    """Return what a browser sends back after signing in."""
    return reply.headers["set-cookie"].partition(";")[0]


# ---- the table of sessions ----


def test_a_session_is_its_key_until_it_ends() -> None:
    keys = Keys(read=(READ, OTHER))
    sessions = Sessions(keys, idle_seconds=10)
    token, other = sessions.start(keys.find(READ), now=0), sessions.start(keys.find(OTHER), now=0)
    assert token != other and len(token) >= 43
    assert sessions.get(token, now=1) == keys.find(READ) and sessions.get(other, now=1) == keys.find(OTHER)
    for wrong in ("", token[:-1], f"{token}x", READ, "\xe4"):
        assert sessions.get(wrong, now=1) is None
    assert token not in repr(vars(sessions))  # its hash is stored
    sessions.end(token)
    sessions.end("unknown")
    assert sessions.get(token, now=1) is None and sessions.get(other, now=1) is not None


def test_unused_sessions_end() -> None:
    keys = Keys(read=(READ,))
    sessions, key = Sessions(keys, idle_seconds=10), keys.find(READ)
    token, idle = sessions.start(key, now=0), sessions.start(key, now=0)
    for now in (9, 18, 27):  # each use counts from then on
        assert sessions.get(token, now=now) == key
    assert sessions.get(idle, now=27) is None and sessions.get(idle, now=0) is None
    sessions.start(key, now=38)  # forgets those that were not used
    assert len(sessions) == 1 and sessions.get(token, now=38) is None


def test_the_least_recently_used_session_ends_first() -> None:
    keys = Keys(read=(READ,))
    sessions, key = Sessions(keys, 1000, most=3), keys.find(READ)
    first, second, third = (sessions.start(key, now=now) for now in range(3))
    assert sessions.get(first, now=3) is not None
    fourth = sessions.start(key, now=4)
    assert len(sessions) == 3 and sessions.get(second, now=5) is None
    assert all(sessions.get(token, now=5) is not None for token in (first, third, fourth))


def test_a_session_follows_its_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    key = add_key(file, "ann", "read")
    keys = load_keys(file, {})
    sessions = Sessions(keys, 1000)
    token = sessions.start(keys.find(key))
    file.write_text(file.read_text().replace('"read"', '"write"'))
    keys.reload()
    stored = sessions.get(token)
    assert stored is not None and stored.role == "write"
    line = file.read_text()
    remove_key(file, "ann")
    keys.reload()
    sessions.end_without_key()
    assert len(sessions) == 0
    file.write_text(line)
    keys.reload()
    assert keys.find(key).name == "ann" and sessions.get(token) is None  # ended, also when the key comes back
    token = sessions.start(keys.find(key))
    file.write_text(line.replace(line.partition('"sha256": "')[2][:64], "00" * 32))
    keys.reload()
    assert sessions.get(token) is None  # another key of the same id


# ---- over HTTP ----


def test_the_cookie_is_not_the_key(serving: Callable[..., LiveServer]) -> None:
    server = serving(keys=Keys(read=(READ,)))
    replies = [sign_in(server, READ) for _ in range(2)]
    values = [cookie(reply).partition("=")[2] for reply in replies]
    assert len({*values, READ}) == 3
    for reply in replies:
        attributes = reply.headers["set-cookie"].lower()
        assert cookie(reply).startswith(f"{SESSION_COOKIE}=") and READ not in attributes
        assert "; httponly" in attributes and "; samesite=strict" in attributes and "; path=/" in attributes
        assert "; secure" not in attributes
        assert server.request("GET", "/c/c", cookie=cookie(reply)).status == 200
        assert server.request("GET", "/v1/collections/c/count", cookie=f"a=b; {cookie(reply)}").status == 200
    for name in (SESSION_COOKIE, "stillhash_key"):
        assert server.request("GET", "/v1/collections/c/count", cookie=f"{name}={READ}").status == 401
    bearer = f"Bearer {values[0]}"  # a token is a cookie, not a key
    assert server.request("GET", "/v1/collections/c/count", authorization=bearer).status == 401


def test_the_cookie_is_secure_over_https(serving: Callable[..., LiveServer]) -> None:
    server = serving(keys=Keys(read=(READ,)))
    assert "; Secure" in sign_in(server, READ, x_forwarded_proto="https").headers["set-cookie"]


def test_sign_out_ends_the_session_on_the_server(serving: Callable[..., LiveServer]) -> None:
    server = serving(keys=Keys(read=(READ,)))
    first, second = cookie(sign_in(server, READ)), cookie(sign_in(server, READ))
    page = server.request("GET", "/c/c", cookie=first).data.decode()
    assert 'action="/logout"' in page and ">env-read-1<" in page
    own = server.url.removeprefix("http://")
    reply = server.request("POST", "/logout", cookie=first, origin="https://evil.example", host=own)
    assert reply.status == 403 and server.request("GET", "/c/c", cookie=first).status == 200
    assert server.request("GET", "/logout", cookie=first).status == 405
    reply = server.request("POST", "/logout", cookie=first, origin=server.url, host=own)
    assert (reply.status, reply.headers["location"]) == (303, "/login")
    assert f'{SESSION_COOKIE}=""' in reply.headers["set-cookie"]
    assert server.request("GET", "/c/c", cookie=first).headers["location"].startswith("/login")
    assert server.request("GET", "/c/c", cookie=second).status == 200


def test_signing_in_again_ends_the_former_session(serving: Callable[..., LiveServer]) -> None:
    server = serving(keys=Keys(read=(READ, OTHER)))
    first = cookie(sign_in(server, READ))
    second = cookie(sign_in(server, OTHER, cookie=first))
    assert server.request("GET", "/c/c", cookie=first).status == 303
    assert ">env-read-2<" in server.request("GET", "/c/c", cookie=second).data.decode()


def test_idle_time_is_a_setting(serving: Callable[..., LiveServer]) -> None:
    server = serving(keys=Keys(read=(READ,)), session_idle=0.0)
    assert server.request("GET", "/c/c", cookie=cookie(sign_in(server, READ))).status == 303
    assert server.request("GET", "/v1/collections", authorization=f"Bearer {READ}").status == 200


def test_a_removed_key_ends_its_sessions(serving: Callable[..., LiveServer], tmp_path: Path) -> None:
    file = tmp_path / "keys"
    ann, ben = add_key(file, "ann", "read"), add_key(file, "ben", "read")
    server = serving(keys=load_keys(file, {}))
    of_ann, of_ben = cookie(sign_in(server, ann)), cookie(sign_in(server, ben))
    assert server.request("GET", "/c/c", cookie=of_ann).status == 200
    remove_key(file, "ann")
    until(lambda: server.request("GET", "/c/c", cookie=of_ann).status == 303)
    assert sign_in(server, ann).status == 401
    assert server.request("GET", "/c/c", cookie=of_ben).status == 200


def test_attempts_to_sign_in_count_against_the_rate_limit(serving: Callable[..., LiveServer]) -> None:
    server = serving(keys=Keys(read=(READ,)), rate_limit=2.0)
    statuses = [sign_in(server, "a-wrong-key-of-many").status for _ in range(30)]
    assert statuses[0] == 401 and 429 in statuses


def test_pictures_are_beyond_the_rate_limit_only_for_a_session(serving: Callable[..., LiveServer]) -> None:
    server = serving(keys=Keys(read=(READ,)), rate_limit=2.0)
    session = cookie(sign_in(server, READ))
    assert {server.request("GET", "/c/c/picture?id=1", cookie=session).status for _ in range(30)} == {200}
    for other in ("", f"{SESSION_COOKIE}={READ}", f"{session}x"):
        assert 429 in {server.request("GET", "/c/c/picture?id=1", cookie=other).status for _ in range(30)}
    assert server.request("GET", "/static/style.css").status == 200


@pytest.mark.parametrize("form", [b"", b"key=", b"key=%ff%fe", b"key=\xf0", b"key=a&key=b", b"next=/c/c"])
def test_any_form_of_a_key_is_answered(serving: Callable[..., LiveServer], form: bytes) -> None:
    server = serving(keys=Keys(read=(READ,)))
    reply = server.request("POST", "/login", form, content_type=FORM)
    assert reply.status == 401 and "set-cookie" not in reply.headers
