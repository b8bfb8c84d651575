"""Sessions of browsers: signed cookies, sign in, sign out, idle time and removed keys."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import pytest

from stillhash.errors import Denied
from stillhash.server import Keys, add_key, load_keys, remove_key
from stillhash.server.auth import SESSION_COOKIE, Sessions
from tests.server.live_server import LiveServer, Reply

READ, OTHER = "a-key-that-may-read", "another-key-that-may-read"
KEYS = Keys(read=(READ,))
FORM = "application/x-www-form-urlencoded"


def sign_in(server: LiveServer, key: str, **headers: str) -> Reply:
    return server.request("POST", "/login", urlencode({"key": key}).encode(), content_type=FORM, **headers)


def cookie(reply: Reply) -> str:
    """Return what a browser sends back after signing in."""
    return reply.headers["set-cookie"].partition(";")[0]


# ---- cookies ----


def test_a_session_is_its_key_until_it_ends() -> None:
    keys = Keys(read=(READ, OTHER))
    sessions = Sessions(keys, idle_seconds=10)
    cookie, other = sessions.start(keys.find(READ), now=0), sessions.start(keys.find(OTHER), now=0)
    assert cookie != other and len(cookie) >= 64
    assert sessions.get(cookie, now=1) == keys.find(READ) and sessions.get(other, now=1) == keys.find(OTHER)
    about, _, signature = cookie.rpartition(".")
    forged = [f"{about[:-1]}9.{signature}", f"env-read-2{about[10:]}.{signature}", f"{about}.{'0' * 64}", about]
    for wrong in ("", ".", "..", cookie[:-1], f"{cookie}x", f"x{cookie}", READ, "\xe4", *forged):
        assert sessions.get(wrong, now=1) is None and sessions.renew(wrong, now=1) is None, wrong


def test_unused_sessions_end() -> None:
    keys = Keys(read=(READ,))
    sessions, key = Sessions(keys, idle_seconds=10), keys.find(READ)
    idle = cookie = sessions.start(key, now=0)
    assert sessions.renew(cookie, now=0.5) is None  # one request after another does not renew it each time
    for now in (9, 18, 27):  # each use counts from then on
        renewed = sessions.renew(cookie, now=now)
        assert renewed is not None and sessions.get(renewed, now=now) == key
        cookie = renewed
    assert sessions.get(idle, now=27) is None and sessions.renew(idle, now=27) is None


def test_a_restart_ends_sessions_and_forgets_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    ann, ben = add_key(file, "ann", "read"), add_key(file, "ben", "read")
    keys = load_keys(file, {})
    before = Sessions(keys, 1000)
    cookies = [before.start(keys.find(key)) for key in (ann, ben)]
    remove_key(file, "ann")
    keys = load_keys(file, {})
    after = Sessions(keys, 1000)
    assert [after.get(cookie) for cookie in cookies] == [None, None]
    with pytest.raises(Denied):
        keys.find(ann)
    assert after.get(after.start(keys.find(ben))) == keys.find(ben)


# ---- over HTTP ----


def test_the_cookie_is_not_the_key(sharing: Callable[..., LiveServer]) -> None:
    server = sharing(keys=KEYS)
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


def test_the_cookie_is_secure_over_https(sharing: Callable[..., LiveServer]) -> None:
    server = sharing(keys=KEYS)
    assert "; Secure" in sign_in(server, READ, x_forwarded_proto="https").headers["set-cookie"]


def test_sign_out_deletes_the_cookie(sharing: Callable[..., LiveServer]) -> None:
    server = sharing(keys=KEYS)
    session = cookie(sign_in(server, READ))
    page = server.request("GET", "/c/c", cookie=session).data.decode()
    assert 'action="/logout"' in page and ">env-read-1<" in page
    own = server.url.removeprefix("http://")
    reply = server.request("POST", "/logout", cookie=session, origin="https://evil.example", host=own)
    assert reply.status == 403 and "set-cookie" not in reply.headers
    assert server.request("GET", "/logout", cookie=session).status == 405
    reply = server.request("POST", "/logout", cookie=session, origin=server.url, host=own)
    assert (reply.status, reply.headers["location"]) == (303, "/login")
    attributes = reply.headers["set-cookie"].lower()
    assert attributes.startswith(f'{SESSION_COOKIE}=""') and "max-age=0" in attributes and "path=/" in attributes
    assert server.request("GET", "/c/c", cookie=cookie(reply)).headers["location"].startswith("/login")


def test_a_session_that_is_used_is_renewed(serving: Callable[..., LiveServer]) -> None:
    keys = Keys(read=(READ,))
    server, key = serving(keys=keys, session_idle=1000.0), keys.find(READ)
    sessions: Sessions = server.app.state.stillhash.sessions

    def used(seconds: float) -> Reply:
        """Use a session that was used some seconds ago."""
        session = f"{SESSION_COOKIE}={sessions.start(key, time.monotonic() - seconds)}"
        return server.request("GET", "/c/c", cookie=session)

    assert "set-cookie" not in used(0).headers and "set-cookie" not in used(2000).headers
    renewed = used(500).headers["set-cookie"]
    assert all(part in renewed for part in ("; HttpOnly", "; SameSite=strict", "; Path=/")) and "Secure" not in renewed
    assert sessions.get(renewed.partition("=")[2].partition(";")[0], time.monotonic() + 800) == key
    assert (used(500).status, used(2000).status) == (200, 303)


def test_idle_time_is_a_setting(serving: Callable[..., LiveServer]) -> None:
    server = serving(keys=Keys(read=(READ,)), session_idle=0.0)
    assert server.request("GET", "/c/c", cookie=cookie(sign_in(server, READ))).status == 303
    assert server.request("GET", "/v1/collections", authorization=f"Bearer {READ}").status == 200


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
def test_any_form_of_a_key_is_answered(sharing: Callable[..., LiveServer], form: bytes) -> None:
    server = sharing(keys=KEYS)
    reply = server.request("POST", "/login", form, content_type=FORM)
    assert reply.status == 401 and "set-cookie" not in reply.headers
