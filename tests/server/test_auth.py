"""Keys, Host and Origin checks, and the rate limit."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi import Request

import stillhash
from stillhash.errors import InvalidInput, TooMany
from stillhash.server import ROLES, Keys, Settings, add_key, load_keys
from stillhash.server.auth import Role, is_loopback
from stillhash.server.dependencies import actor
from stillhash.server.limits import MAX_CLIENTS, RateLimiter
from stillhash.server.run import _JsonFormatter, log_to_stderr
from tests.collection.fixtures import copied
from tests.server.live_server import LiveServer, Reply, live_server
from tests.support.waiting import until

READ, WRITE = "a-key-that-may-read", "a-key-that-may-write"
KEYS = Keys((READ, "another-key-that-may-read"), (WRITE,))
KEY_OF = {role: f"a-key-of-the-role-{role}" for role in ROLES}
KEYS_BY_ROLE = Keys(**{role: (key,) for role, key in KEY_OF.items()})  # type: ignore[arg-type]
PATH = "/v1/collections/c"
READ_ROUTES = [("GET", "/v1/collections"), ("GET", f"{PATH}/count"), ("POST", f"{PATH}/get"), ("GET", "/v1/metrics")]
WRITE_ROUTES = [("POST", f"{PATH}/delete"), ("POST", f"{PATH}/flush")]
BODY = {"ids": [999]}
GUIDE = Path(__file__).parents[2] / "docs" / "http.md"


def send(server: LiveServer, method: str, path: str, **headers: str) -> Reply:
    return server.request(method, path, BODY if path.endswith(("get", "delete")) else None, **headers)


# ---- keys ----


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_unknown_keys_are_refused(sharing: Callable[..., LiveServer]) -> None:
    server = sharing(keys=KEYS)
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


def documented_roles() -> dict[tuple[str, str], str]:
    """Return the role of each route, by method and path, from the table of the guide."""
    rows = re.findall(r"^\|[^|]*\| `(GET|POST|DELETE) (/[^`?]*)[^`]*` \| (\w*) *\|", GUIDE.read_text(), re.MULTILINE)
    prefix = "/v1/collections/{name}"
    paths = {path: path.replace("NAME", "{name}") if path.startswith("/v1/") else prefix + path for _, path, _ in rows}
    return {(way, paths[path]): role for way, path, role in rows}


def test_every_route_requires_the_documented_role(serving: Callable[..., LiveServer], tmp_path: Path) -> None:
    server = serving(keys=KEYS_BY_ROLE)
    paths = server.request("GET", "/v1/openapi.json").json["paths"]
    routes = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    documented = documented_roles()
    assert documented.keys() == routes and len(documented) > 30
    assert documented.pop(("GET", "/v1/health")) == documented.pop(("GET", "/v1/ready")) == ""
    for (method, path), role in documented.items():
        assert server.request(method, path.replace("{name}", "c")).status == 401, path
        for place, name in enumerate(ROLES):
            reply = server.request(method, path.replace("{name}", "c"), **bearer(KEY_OF[name]))
            refused = place < ROLES.index(role)
            assert (reply.status == 403) is refused and reply.status not in (401, 500), (path, name, reply)


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        *(("GET", path, "read") for path in ("/c/c", "/c/c/learning", "/c/c/collection", "/c/c/versions")),
        *(("GET", path, "read") for path in ("/c/c/doubtful_labels", "/c/c/picture?id=1", "/c/c/explain?id=1&like=2")),
        *(("GET", path, "read") for path in ("/c/c/compare", "/c/c/steps", "/c/c/label_quality")),
        ("POST", "/c/c/upload", "read"),
        ("POST", "/c/c/thumb", "feedback"),
        ("POST", "/c/c/labels", "write"),
        *(("POST", f"/c/c/{path}", "write") for path in ("teach/answer", "teach/learn", "select", "doubtful_labels")),
        *(("GET", f"/c/c/{path}?sitting=a", "write") for path in ("teach/items", "teach/progress", "select")),
        ("GET", "/c/c/teach?sitting=a", "read"),
        ("POST", "/c/c/tag", "write"),
        ("POST", "/c/c/rollback", "write"),
        *(("POST", path, "write") for path in ("/c/c/import", "/c/c/fit", "/c/c/duplicates/delete")),
        ("POST", "/c/c/duplicates", "read"),
        *((method, path, "admin") for method, path in (("POST", "/c/c/tasks"), ("GET", "/new"), ("POST", "/new"))),
    ],
)
def test_pages_require_a_role(sharing: Callable[..., LiveServer], method: str, path: str, role: str) -> None:
    server = sharing(keys=KEYS_BY_ROLE)
    assert server.request(method, path, hx_request="true").status == 401
    for place, name in enumerate(ROLES):
        reply = server.request(
            method, path, b"" if method == "POST" else None, hx_request="true", **bearer(KEY_OF[name])
        )
        assert (reply.status == 403) is (place < ROLES.index(role)) and reply.status not in (401, 500), name


def test_the_page_offers_what_the_key_may_do(sharing: Callable[..., LiveServer]) -> None:
    server = sharing(keys=KEYS_BY_ROLE)
    offers = [("/c/c?like=7", "/thumb", "feedback"), ("/c/c?like=7", "/labels", "write")]
    offers += [("/c/c/learning", f"/{verb}", "write") for verb in ("tag", "rollback")]
    offers += [("/c/c/collection", "/duplicates", "read"), ("/c/c/collection", "/tasks", "admin")]
    for path, action, role in offers:
        for place, name in enumerate(ROLES):
            page = server.request("GET", path, **bearer(KEY_OF[name])).data.decode()
            assert (f'hx-post="/c/c{action}"' in page) is (place >= ROLES.index(role)), (path, action, name)


def test_health_needs_no_key_and_counts_with_one(sharing: Callable[..., LiveServer]) -> None:
    server = sharing(keys=KEYS)
    for headers in ({}, bearer("nonsense")):
        assert server.request("GET", "/v1/health", **headers).json["collections"] == {}
    assert server.request("GET", "/v1/health", **bearer(READ)).json["collections"] == {"c": 320}


def test_the_key_is_checked_first(sharing: Callable[..., LiveServer]) -> None:
    """Without a key, a client learns no names of collections."""
    server = sharing(keys=KEYS)
    assert server.request("GET", "/v1/collections/none/count").status == 401
    assert server.request("GET", "/v1/collections/none/count", **bearer(READ)).status == 404
    assert server.request("POST", f"{PATH}/add", b"nonsense").status == 401
    large = server.request("POST", "/login", b"x" * 100_000, content_type="application/x-www-form-urlencoded")
    assert large.status == 413 and b'href="/c/' not in large.data


# ---- collections of a key ----

Headers = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def two(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveServer, Headers]]:
    """Start a server of cats and dogs; return headers of keys that see dogs, by role, and of some others."""
    folder = tmp_path_factory.mktemp("two")
    file = folder / "keys"
    collections = {name: stillhash.open(copied(template, folder / name)) for name in ("cats", "dogs")}
    keys = {role: add_key(file, f"key-{role}", role, ["dogs", "not-served"]) for role in ROLES}
    others = {"all": add_key(file, "all", "read"), "elsewhere": add_key(file, "elsewhere", "admin", ["elsewhere"])}
    settings = Settings(keys=load_keys(file, {}), snapshots=folder)
    with live_server(collections, settings) as server:
        yield server, {name: bearer(key) for name, key in {**keys, **others}.items()}


def test_a_key_sees_only_its_collections(two: tuple[LiveServer, Headers]) -> None:
    server, headers = two
    for role in ROLES:
        header = headers[role]
        assert server.request("GET", "/v1/collections", **header).json["collections"] == ["dogs"]
        assert server.request("GET", "/v1/health", **header).json["collections"] == {"dogs": 320}
        assert server.request("GET", "/v1/collections/dogs/count", **header).json == {"count": 320}
        reply = server.request("GET", "/v1/metrics", **header)
        assert reply.status == 403 and "collections" in reply.json["message"]
        assert server.request("GET", "/", **header).headers["location"] == "/c/dogs"
        page = server.request("GET", "/c/dogs", **header).data
        assert b"/c/dogs" in page and b"/c/cats" not in page
    everything = headers["all"]
    assert server.request("GET", "/v1/collections", **everything).json["collections"] == ["cats", "dogs"]
    assert server.request("GET", "/v1/metrics", **everything).status == 200
    assert b"/c/cats" in server.request("GET", "/c/dogs", **everything).data


@pytest.mark.parametrize("role", ROLES)
def test_a_hidden_collection_is_as_one_that_does_not_exist(two: tuple[LiveServer, Headers], role: Role) -> None:
    server, header = two[0], two[1][role]
    before = server.executor("cats").collection.stats()

    def replies(name: str) -> list[tuple[int, bytes]]:
        paths = server.request("GET", "/v1/openapi.json").json["paths"]
        some = [(method.upper(), path) for path, methods in paths.items() if "{name}" in path for method in methods]
        some += [("GET", f"/c/{{name}}{path}") for path in ("", "?like=7", "/learning", "/collection", "/events")]
        some += [
            ("GET", f"/c/{{name}}{path}")
            for path in (
                "/versions",
                "/doubtful_labels",
                "/compare",
                "/steps",
                "/label_quality",
                "/picture?id=1",
                "/explain",
            )
        ]
        some += [("POST", f"/c/{{name}}/{verb}") for verb in ("upload", "thumb", "labels", "tag", "rollback", "verify")]
        answers = []
        for method, path in some:
            for body in (None,) if method == "GET" else (None, {}, {"ids": [1]}, {"version": 1, "name": "a"}, b"x"):
                reply = server.request(method, path.replace("{name}", name), body, **header)
                plain = re.sub(rb'"request_id":"[^"]*"', b"", reply.data).replace(name.encode(), b"NAME")
                answers.append((reply.status, plain))
        return answers

    hidden, missing = replies("cats"), replies("owls")
    assert hidden == missing and {404} <= {status for status, _ in hidden} <= {403, 404, 422}
    assert server.executor("cats").collection.stats() == before


def test_a_key_without_a_collection_of_this_server(two: tuple[LiveServer, Headers]) -> None:
    server, header = two[0], two[1]["elsewhere"]
    assert server.request("GET", "/v1/collections", **header).json == {"collections": [], "items": {}}
    assert server.request("GET", "/v1/health", **header).json["collections"] == {}
    reply = server.request("GET", "/", **header)
    assert reply.status == 404 and b"no collection" in reply.data


def logged(caplog: pytest.LogCaptureFixture, request_id: str) -> list[logging.LogRecord]:
    """Return the lines of the requests with this id. A line follows its answer, so others may come meanwhile."""
    lines = [record for record in caplog.records if record.getMessage() == "request"]
    return [record for record in lines if vars(record)["fields"]["request_id"] == request_id]


def test_the_log_names_the_actor(two: tuple[LiveServer, Headers], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stillhash.server")
    server, header, named = two[0], two[1]["read"], {"x_request_id": "named"}
    server.request("GET", "/v1/collections/dogs/count", **named, **header)
    server.request("POST", "/v1/collections/dogs/flush", **named, **header)
    server.request("GET", "/v1/collections/dogs/count", **named, **bearer("nonsense"))
    server.request("GET", "/v1/openapi.json", **named)
    until(lambda: len(logged(caplog, "named")) == 4)
    lines = [vars(record)["fields"] for record in logged(caplog, "named")]
    assert [(fields["actor"], fields["status"]) for fields in lines] == [
        ("key-read", 200),
        ("key-read", 403),
        (None, 401),
        (None, 200),
    ]


def test_the_log_has_what_the_guide_shows(shared: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """The address of the client among it."""
    caplog.set_level(logging.INFO, "stillhash.server")
    shared.request("GET", f"{PATH}/count", x_request_id="shown")
    shown = re.search(r'^(\{"time".*?"message": "request".*?\})$', GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    assert shown is not None
    until(lambda: logged(caplog, "shown"))
    line = json.loads(_JsonFormatter().format(logged(caplog, "shown")[0]))
    assert line.keys() == json.loads(shown[1]).keys() and line["client"] == "127.0.0.1"


def test_actor_is_anonymous_without_keys(shared: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stillhash.server")
    shared.request("GET", f"{PATH}/count", x_request_id="keyless")
    until(lambda: logged(caplog, "keyless"))
    assert vars(logged(caplog, "keyless")[0])["fields"]["actor"] == "anonymous"
    assert actor(Request({"type": "http"})) == "anonymous"


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


def test_without_keys_only_localhost_is_answered(shared: LiveServer) -> None:
    for host in ("localhost", "localhost:8000", "127.0.0.1", "127.0.0.1:1", "[::1]:8000"):
        assert shared.request("GET", "/v1/health", host=host).status == 200, host
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.1", "", "[::1", "[", "a:b:c"):
        reply = shared.request("GET", "/v1/health", host=host)
        assert reply.status == 403 and reply.json["error"] == "Forbidden", host
        assert reply.headers["x-request-id"] == reply.json["request_id"]


def test_with_keys_any_host_is_answered(sharing: Callable[..., LiveServer]) -> None:
    server = sharing(keys=KEYS)
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


def test_many_headers_are_refused(shared: LiveServer) -> None:
    many = {f"x_{number}": "y" for number in range(101)}
    reply = shared.request("GET", "/v1/health", **many)
    assert reply.status == 413 and reply.json["error"] == "TooLarge" and "headers" in reply.json["message"]
    assert shared.request("GET", "/v1/health", **dict(list(many.items())[:80])).status == 200


def test_a_redirect_does_not_repeat_the_host(sharing: Callable[..., LiveServer]) -> None:
    server = sharing(keys=KEYS)
    for path in ("/v1/health/", "/login/", "/"):
        reply = server.request("GET", path, host="evil.example", **bearer(READ))
        assert "evil" not in reply.headers.get("location", "/")
        assert reply.status not in (301, 302, 303, 307, 308) or reply.headers["location"].startswith("/")
    assert server.request("GET", "/v1/health/").headers["location"] == "/v1/health"


def test_a_text_log_escapes_what_is_not_printable(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    with log_to_stderr("info", "text"):
        fields = {"status": 404, "ms": 1.0, "method": "GET", "path": "/\x1b[2J\r\nforged\u202e"}
        logging.getLogger("stillhash.server").info("request", extra={"fields": fields})
    assert (root.handlers, root.level) == before  # nothing writes to the stream afterwards
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and line.rstrip("\n").isprintable() and r"\x1b[2J\r\nforged\u202e" in line
