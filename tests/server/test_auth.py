"""Keys, Host and Origin checks, and the rate limit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from stillhash.errors import Denied, Forbidden, InvalidInput, TooMany
from stillhash.server import Keys, Settings, load_keys
from stillhash.server.auth import is_loopback
from stillhash.server.rate_limit import MAX_CLIENTS, RateLimiter
from stillhash.server.run import log_to_stderr
from tests.server.live_server import LiveServer, Reply

READ, WRITE = "a-key-that-may-read", "a-key-that-may-write"
KEYS = Keys((READ, "another-key-that-may-read"), (WRITE,))
PATH = "/v1/collections/c"
READ_ROUTES = [("GET", "/v1/collections"), ("GET", f"{PATH}/count"), ("POST", f"{PATH}/get"), ("GET", "/v1/metrics")]
WRITE_ROUTES = [("POST", f"{PATH}/delete"), ("POST", f"{PATH}/flush")]
BODY = {"ids": [999]}


def send(server: LiveServer, method: str, path: str, **headers: str) -> Reply:
    return server.request(method, path, BODY if path.endswith(("get", "delete")) else None, **headers)


# ---- keys ----


def test_keys_allow_their_role(serving: Callable[..., LiveServer]) -> None:
    server = serving(keys=KEYS)
    for method, path in READ_ROUTES + WRITE_ROUTES:
        reply = send(server, method, path)
        assert reply.status == 401 and reply.json["error"] == "Denied" and "key" in reply.json["message"]
        assert reply.headers["www-authenticate"] == "Bearer"
        for unknown in ("nonsense", READ[:-1], READ + "x", "", "\xe4\xf6", f"{READ} {WRITE}"):
            assert send(server, method, path, authorization=f"Bearer {unknown}").status == 401
        for wrong in (WRITE, f"Basic {WRITE}", "Bearer", ""):
            assert send(server, method, path, authorization=wrong).status == 401
        assert send(server, method, f"{path}?key={WRITE}").status == 401
        for scheme in ("Bearer", "bearer", "BEARER"):
            assert send(server, method, path, authorization=f"{scheme} {WRITE}").status == 200
        assert send(server, method, path, cookie=f"a=b; stillhash_key={WRITE}").status == 200
        assert send(server, method, path, cookie="stillhash_key=nonsense").status == 401
    for key in KEYS.read:
        assert all(send(server, *read, authorization=f"Bearer {key}").status == 200 for read in READ_ROUTES)
        for write in WRITE_ROUTES:
            for reply in (
                send(server, *write, authorization=f"Bearer {key}"),
                send(server, *write, cookie=f"stillhash_key={key}"),
            ):
                assert reply.status == 403 and reply.json["error"] == "Forbidden"


def test_every_route_but_health_requires_a_key(serving: Callable[..., LiveServer]) -> None:
    server = serving(keys=KEYS)
    routes = 0
    assert server.request("GET", "/v1/health").json["collections"] == {}
    assert server.request("GET", "/v1/health", authorization=f"Bearer {READ}").json["collections"] == {"c": 320}
    for path, methods in server.request("GET", "/v1/openapi.json").json["paths"].items():
        for method in methods if path != "/v1/health" else ():
            reply = server.request(method.upper(), path.replace("{name}", "c"))
            assert reply.status == 401, f"{method} {path}"
            routes += path.startswith("/v1/")
    assert routes > 20


def test_the_key_is_checked_first(serving: Callable[..., LiveServer]) -> None:
    """Without a key, a client learns no names of collections."""
    server = serving(keys=KEYS)
    assert server.request("GET", "/v1/collections/none/count").status == 401
    assert server.request("GET", "/v1/collections/none/count", authorization=f"Bearer {READ}").status == 404
    assert server.request("POST", f"{PATH}/add", b"nonsense").status == 401


def test_read_keys_alone() -> None:
    read_only = Keys(read=(READ,))
    read_only.check(READ, "read")
    with pytest.raises(Forbidden):
        read_only.check(READ, "write")
    with pytest.raises(Denied):
        read_only.check(None, "write")
    Keys().check(None, "write")


def test_keys_are_loaded_from_files_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# who may\n\nread {READ}\n  write   {WRITE}  \nread 0123456789abcdef\n")
    assert load_keys(file, {}) == Keys((READ, "0123456789abcdef"), (WRITE,))
    environment = {"STILLHASH_READ_KEYS": f"{READ}, 0123456789abcdef", "STILLHASH_WRITE_KEYS": WRITE}
    assert load_keys(None, environment) == Keys((READ, "0123456789abcdef"), (WRITE,))
    assert load_keys(file, environment).write == (WRITE, WRITE)
    assert load_keys(None, {}) == Keys() and not load_keys(None, {}).required


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (f"# a comment\n\nread {READ}\nadmin {WRITE}\n", "^keys: .*line 4"),
        (f"{READ}\n", "^keys: .*line 1"),
        ("read\n", "^keys: .*line 1"),
        ("read short\n", "^keys"),
        ("write ääääääääääääääääää\n", "^keys"),
    ],
)
def test_invalid_key_files_are_refused(tmp_path: Path, text: str, match: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=match) as raised:
        load_keys(file, {})
    assert READ not in str(raised.value) and WRITE not in str(raised.value)


def test_unreadable_key_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "none", tmp_path, tmp_path / "bytes"):
        with pytest.raises(InvalidInput, match=r"^keys"):
            load_keys(path, {})
    with pytest.raises(InvalidInput, match=r"^keys"):
        load_keys(None, {"STILLHASH_WRITE_KEYS": "abc"})


# ---- hosts and pages ----


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_other_hosts_require_keys(host: str) -> None:
    with pytest.raises(InvalidInput, match=r"^host"):
        Settings(host=host).validate()
    Settings(host=host, keys=KEYS).validate()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_localhost_requires_no_keys(host: str) -> None:
    Settings(host=host).validate()
    assert is_loopback(host)


def test_without_keys_only_localhost_is_answered(serving: Callable[..., LiveServer]) -> None:
    server = serving()
    for host in ("localhost", "localhost:8000", "127.0.0.1", "127.0.0.1:1", "[::1]:8000"):
        assert server.request("GET", "/v1/health", host=host).status == 200, host
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.1", "", "[::1", "[", "a:b:c"):
        reply = server.request("GET", "/v1/health", host=host)
        assert reply.status == 403 and reply.json["error"] == "Forbidden", host
        assert reply.headers["x-request-id"] == reply.json["request_id"]


def test_with_keys_any_host_is_answered(serving: Callable[..., LiveServer]) -> None:
    server = serving(keys=KEYS)
    for host in ("search.example", "[::1"):
        assert server.request("GET", "/v1/health", host=host, authorization=f"Bearer {READ}").status == 200


def test_pages_of_other_sites_cannot_post(serving: Callable[..., LiveServer]) -> None:
    server = serving()
    own = server.url.removeprefix("http://")
    for origin in ("https://evil.example", "http://localhost:1", "null", "http://[", "", f"http://{own}.evil.example"):
        reply = server.request("POST", f"{PATH}/delete", {"ids": [5]}, origin=origin, host=own)
        assert reply.status == 403 and reply.json["message"].startswith("origin"), origin
        assert server.request("GET", "/v1/health", origin=origin, host=own).status == 200
    for about in ({"origin": "https://evil.example"}, {}):
        reply = server.request("POST", f"{PATH}/delete", {"ids": [5]}, sec_fetch_site="cross-site", **about)
        assert reply.status == 403
    assert server.request("GET", f"{PATH}/count").json == {"count": 320}
    assert server.request("POST", f"{PATH}/delete", {"ids": [5]}, origin=f"http://{own}", host=own).json == {"count": 1}
    assert server.request("POST", f"{PATH}/delete", {"ids": [6]}, sec_fetch_site="same-origin").json == {"count": 1}


# ---- rate limit ----


def test_too_many_requests_are_refused(serving: Callable[..., LiveServer]) -> None:
    server = serving(rate_limit=0.001)
    assert server.request("GET", "/v1/health").status == 200
    for _ in range(3):
        reply = server.request("POST", f"{PATH}/delete", {"ids": [5]})
        assert reply.status == 429 and reply.json["error"] == "TooMany"
        assert int(reply.headers["retry-after"]) >= 1 and reply.headers["x-request-id"] == reply.json["request_id"]


@pytest.mark.parametrize("per_second", [0.1, 0.5, 1.0, 5.0])
def test_rate_limit_is_per_client(per_second: float) -> None:
    limiter, burst = RateLimiter(per_second), max(1, round(2 * per_second))
    for client in ("a", "b"):
        for _ in range(burst):
            limiter.take(client, now=10.0)
        for _ in range(2):  # a refused request costs no token
            with pytest.raises(TooMany, match=r"^rate limit"):
                limiter.take(client, now=10.0)
    later = 10.0
    for _ in range(5):
        later += 1.001 / per_second
        limiter.take("a", now=later)
        with pytest.raises(TooMany):
            limiter.take("a", now=later)


def test_rate_zero_is_no_limit_and_clients_are_bounded() -> None:
    free, strict = RateLimiter(0), RateLimiter(1)
    for client in range(MAX_CLIENTS + 50):
        free.take("a", now=0)
        strict.take(str(client), now=0)
    assert len(strict) == MAX_CLIENTS and len(free) == 0


def test_pictures_are_beyond_the_rate_limit_only_with_a_key(serving: Callable[..., LiveServer]) -> None:
    server = serving(keys=KEYS, rate_limit=2.0)
    cookie = f"stillhash_key={READ}"
    assert {server.request("GET", "/c/c/picture?id=1", cookie=cookie).status for _ in range(30)} <= {200, 404}
    assert 429 in {server.request("GET", "/c/c/picture?id=1").status for _ in range(30)}
    assert server.request("GET", "/static/style.css").status in (200, 404)


def test_many_headers_are_refused(serving: Callable[..., LiveServer]) -> None:
    server = serving()
    many = {f"x_{number}": "y" for number in range(101)}
    reply = server.request("GET", "/v1/health", **many)
    assert reply.status == 413 and reply.json["error"] == "TooLarge" and "headers" in reply.json["message"]
    assert server.request("GET", "/v1/health", **dict(list(many.items())[:80])).status == 200


def test_a_redirect_does_not_repeat_the_host(serving: Callable[..., LiveServer]) -> None:
    server = serving(keys=KEYS)
    for path in ("/v1/health/", "/login/", "/"):
        reply = server.request("GET", path, host="evil.example", cookie=f"stillhash_key={READ}")
        assert "evil" not in reply.headers.get("location", "/")
        assert reply.status not in (301, 302, 303, 307, 308) or reply.headers["location"].startswith("/")
    assert server.request("GET", "/v1/health/").headers["location"] == "/v1/health"


def test_a_key_file_that_others_can_read_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text(f"read {READ}\n")
    for mode, warned in ((0o600, False), (0o400, False), (0o640, True), (0o604, True)):
        caplog.clear()
        file.chmod(mode)
        assert load_keys(file, {}).read == (READ,)
        assert bool(caplog.records) is warned and all("chmod 600" in record.getMessage() for record in caplog.records)


def test_a_text_log_escapes_what_is_not_printable(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("stillhash.server")
    handlers = logging.getLogger().handlers[:]
    try:
        log_to_stderr("info", "text")
        fields = {"status": 404, "ms": 1.0, "method": "GET", "path": "/\x1b[2J\r\nforged\u202e"}
        logger.info("request", extra={"fields": fields})
    finally:
        logging.basicConfig(handlers=handlers, force=True)
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and line.rstrip("\n").isprintable() and r"\x1b[2J\r\nforged\u202e" in line
