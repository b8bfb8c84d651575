"""Who may do what: keys, hosts, pages of other sites, and how often."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stillhash.errors import Denied, Forbidden, InvalidInput, TooMany
from stillhash.server import Keys, Settings, keys_from
from stillhash.server.auth import CLIENTS, Rate, is_loopback
from tests.server.process import Reply, Served

READ, WRITE = "a-key-that-may-read", "a-key-that-may-write"
KEYS = Keys((READ, "another-key-that-may-read"), (WRITE,))
AT = "/v1/collections/c"
READS = [("GET", "/v1/collections"), ("GET", f"{AT}/count"), ("POST", f"{AT}/get"), ("GET", "/v1/metrics")]
WRITES = [("POST", f"{AT}/delete"), ("POST", f"{AT}/flush")]
BODY = {"ids": [999]}


def asked(server: Served, method: str, path: str, **headers: str) -> Reply:
    return server.ask(method, path, BODY if path.endswith(("get", "delete")) else None, **headers)


# ---- keys ----


def test_keys_open_what_they_may(serving: Callable[..., Served]) -> None:
    server = serving(keys=KEYS)
    for method, path in READS + WRITES:
        reply = asked(server, method, path)
        assert reply.status == 401 and reply.json["error"] == "Denied" and "wants a key" in reply.json["message"]
        assert reply.headers["www-authenticate"] == "Bearer"
        for unknown in ("nonsense", READ[:-1], READ + "x", "", "\xe4\xf6", f"{READ} {WRITE}"):
            assert asked(server, method, path, authorization=f"Bearer {unknown}").status == 401
        for wrong in (WRITE, f"Basic {WRITE}", "Bearer", ""):
            assert asked(server, method, path, authorization=wrong).status == 401
        assert asked(server, method, f"{path}?key={WRITE}").status == 401
        for scheme in ("Bearer", "bearer", "BEARER"):
            assert asked(server, method, path, authorization=f"{scheme} {WRITE}").status == 200
        assert asked(server, method, path, cookie=f"a=b; stillhash_key={WRITE}").status == 200
        assert asked(server, method, path, cookie="stillhash_key=nonsense").status == 401
    for key in KEYS.read:
        assert all(asked(server, *read, authorization=f"Bearer {key}").status == 200 for read in READS)
        for write in WRITES:
            for reply in (
                asked(server, *write, authorization=f"Bearer {key}"),
                asked(server, *write, cookie=f"stillhash_key={key}"),
            ):
                assert reply.status == 403 and reply.json["error"] == "Forbidden"


def test_every_address_of_the_api_wants_a_key_but_that_of_probes(serving: Callable[..., Served]) -> None:
    server = serving(keys=KEYS)
    found = 0
    assert server.ask("GET", "/v1/health").json["collections"] == {}
    assert server.ask("GET", "/v1/health", authorization=f"Bearer {READ}").json["collections"] == {"c": 320}
    for path, methods in server.ask("GET", "/v1/openapi.json").json["paths"].items():
        for method in methods if path != "/v1/health" else ():
            reply = server.ask(method.upper(), path.replace("{name}", "c"))
            assert reply.status == 401, f"{method} {path}"
            found += path.startswith("/v1/")
    assert found > 20


def test_a_key_comes_before_what_is_there(serving: Callable[..., Served]) -> None:
    """Who has no key learns no names."""
    server = serving(keys=KEYS)
    assert server.ask("GET", "/v1/collections/none/count").status == 401
    assert server.ask("GET", "/v1/collections/none/count", authorization=f"Bearer {READ}").status == 404
    assert server.ask("POST", f"{AT}/add", b"nonsense").status == 401


def test_keys_of_one_kind() -> None:
    only_reading = Keys(read=(READ,))
    only_reading.check(READ, "read")
    with pytest.raises(Forbidden):
        only_reading.check(READ, "write")
    with pytest.raises(Denied):
        only_reading.check(None, "write")
    Keys().check(None, "write")


def test_keys_come_from_files_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# who may\n\nread {READ}\n  write   {WRITE}  \nread 0123456789abcdef\n")
    assert keys_from(file, {}) == Keys((READ, "0123456789abcdef"), (WRITE,))
    environment = {"STILLHASH_READ_KEYS": f"{READ}, 0123456789abcdef", "STILLHASH_WRITE_KEYS": WRITE}
    assert keys_from(None, environment) == Keys((READ, "0123456789abcdef"), (WRITE,))
    assert keys_from(file, environment).write == (WRITE, WRITE)
    assert keys_from(None, {}) == Keys() and not keys_from(None, {}).wanted


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (f"# a comment\n\nread {READ}\nadmin {WRITE}\n", "line 4: 'read KEY' or 'write KEY' is wanted"),
        (f"{READ}\n", "line 1"),
        ("read\n", "line 1"),
        ("read short\n", "a key has 5 characters; at least 16"),
        ("write ääääääääääääääääää\n", "plain ASCII"),
    ],
)
def test_files_that_hold_no_keys_are_refused(tmp_path: Path, text: str, match: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=match) as raised:
        keys_from(file, {})
    assert READ not in str(raised.value) and WRITE not in str(raised.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "none", tmp_path, tmp_path / "bytes"):
        with pytest.raises(InvalidInput, match="cannot be read"):
            keys_from(path, {})
    with pytest.raises(InvalidInput, match="a key has 3 characters"):
        keys_from(None, {"STILLHASH_WRITE_KEYS": "abc"})


# ---- hosts and pages ----


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_other_machines_want_keys(host: str) -> None:
    with pytest.raises(InvalidInput, match="which other machines can reach"):
        Settings(host=host).check()
    Settings(host=host, keys=KEYS).check()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_this_machine_wants_none(host: str) -> None:
    Settings(host=host).check()
    assert is_loopback(host)


def test_without_keys_only_own_names_are_answered(serving: Callable[..., Served]) -> None:
    server = serving()
    for host in ("localhost", "localhost:8000", "127.0.0.1", "127.0.0.1:1", "[::1]:8000"):
        assert server.ask("GET", "/v1/health", host=host).status == 200, host
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.1", "", "[::1", "[", "a:b:c"):
        reply = server.ask("GET", "/v1/health", host=host)
        assert reply.status == 403 and reply.json["error"] == "Forbidden", host
        assert reply.headers["x-request-id"] == reply.json["request_id"]


def test_with_keys_any_name_is_answered(serving: Callable[..., Served]) -> None:
    server = serving(keys=KEYS)
    for host in ("search.example", "[::1"):
        assert server.ask("GET", "/v1/health", host=host, authorization=f"Bearer {READ}").status == 200


def test_pages_of_other_sites_may_not_post(serving: Callable[..., Served]) -> None:
    server = serving()
    own = server.url.removeprefix("http://")
    for origin in ("https://evil.example", "http://localhost:1", "null", "http://[", "", f"http://{own}.evil.example"):
        reply = server.ask("POST", f"{AT}/delete", {"ids": [5]}, origin=origin, host=own)
        assert reply.status == 403 and "another site" in reply.json["message"], origin
        assert server.ask("GET", "/v1/health", origin=origin, host=own).status == 200
    for about in ({"origin": "https://evil.example"}, {}):
        reply = server.ask("POST", f"{AT}/delete", {"ids": [5]}, sec_fetch_site="cross-site", **about)
        assert reply.status == 403
    assert server.ask("GET", f"{AT}/count").json == {"count": 320}
    assert server.ask("POST", f"{AT}/delete", {"ids": [5]}, origin=f"http://{own}", host=own).json == {"count": 1}
    assert server.ask("POST", f"{AT}/delete", {"ids": [6]}, sec_fetch_site="same-origin").json == {"count": 1}


# ---- how often ----


def test_who_asks_too_often_has_to_wait(serving: Callable[..., Served]) -> None:
    server = serving(rate=0.001)
    assert server.ask("GET", "/v1/health").status == 200
    for _ in range(3):
        reply = server.ask("POST", f"{AT}/delete", {"ids": [5]})
        assert reply.status == 429 and reply.json["error"] == "TooMany"
        assert int(reply.headers["retry-after"]) >= 1 and reply.headers["x-request-id"] == reply.json["request_id"]


@pytest.mark.parametrize("per_second", [0.1, 0.5, 1.0, 5.0])
def test_a_client_has_so_many_and_others_have_their_own(per_second: float) -> None:
    rate, burst = Rate(per_second), max(1, round(2 * per_second))
    for client in ("a", "b"):
        for _ in range(burst):
            rate.take(client, now=10.0)
        for _ in range(2):  # being refused costs nothing
            with pytest.raises(TooMany, match="requests a second"):
                rate.take(client, now=10.0)
    later = 10.0
    for _ in range(5):
        later += 1.001 / per_second
        rate.take("a", now=later)
        with pytest.raises(TooMany):
            rate.take("a", now=later)


def test_no_rate_is_no_limit_and_memory_is_bounded() -> None:
    free, strict = Rate(0), Rate(1)
    for client in range(CLIENTS + 50):
        free.take("a", now=0)
        strict.take(str(client), now=0)
    assert len(strict._left) == CLIENTS and not free._left
