"""Check a running server of the image: health, requests, what it may write, restarts, and how it stops."""

from __future__ import annotations

import errno
import json
import secrets
import shlex
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rehearse import Container

ADDRESS = "http://127.0.0.1:8000"
START_SECONDS = 60.0  # as --start-period of the HEALTHCHECK
INVALID_ARGUMENT = 2  # exit code
DIM, BITS, ROWS = 8, 16, 300
ADD_KEY = "keys add /data/keys --name ann --role admin --json"


def request(method: str, path: str, key: str | None = None, body: Any = None) -> tuple[int, Any]:
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(ADDRESS + path, data, headers, method=method)) as response:
            status, text = response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    return status, text if path.endswith("/metrics") else json.loads(text)


def expect(what: str, expected: object, value: object) -> None:
    if expected != value:
        raise SystemExit(f"{what}: expected {expected!r}, got {value!r}")
    print(f"ok: {what}")


@contextmanager
def running(container: Container, **environment: str) -> Iterator[None]:
    """Start the server, wait until the HEALTHCHECK passes, and stop it at the end as an engine does."""
    begin = time.monotonic()
    server = container.serve(**environment)
    try:
        check = container.stage.command("HEALTHCHECK")
        while container.start(check).wait() != 0:
            if server.poll() is not None or time.monotonic() > begin + START_SECONDS:
                server.kill()
                raise SystemExit(f"the server did not start:\n{server.communicate()[0]}")
            time.sleep(0.1)
        print(f"ok: health check passes after {time.monotonic() - begin:.1f} s")
        yield
        begin = time.monotonic()
        server.send_signal(getattr(signal, container.stage.last("STOPSIGNAL")))
        output = server.communicate(timeout=container.grace)[0]
        print(f"ok: SIGTERM stops it in {time.monotonic() - begin:.1f} s")
        expect("exit code after SIGTERM", 0, server.returncode)
        expect("the log is JSON", True, all(json.loads(line) for line in output.splitlines() if line.startswith("{")))
        expect("the log ends with `stopped`", True, '"message": "stopped"' in output)
    finally:
        server.kill()


def check_writes(container: Container) -> None:
    """The user of the image writes to the volume and to /tmp, and nowhere else."""
    for path, allowed in (("/data/x", True), ("/tmp/x", True), ("/opt/stillhash/x", False), ("/x", False)):
        status = container.start(["/bin/sh", "-c", f"touch {path} && rm {path}"]).wait()
        expect(f"writing {path} is {'allowed' if allowed else 'refused'}", allowed, status == 0)
    try:
        (container.root / "x").touch()
    except OSError as error:
        expect("the root is read-only, also for root", errno.EROFS, error.errno)
    else:
        raise SystemExit("the root: expected a read-only file system, got one that can be written")


def check_server(container: Container, version: str) -> None:
    """Run all checks; the first that fails ends the program."""
    check_writes(container)
    refused = container.serve()
    message = refused.communicate(timeout=START_SECONDS)[0]
    expect("without keys it does not start", INVALID_ARGUMENT, refused.returncode)
    expect("and says so", True, "keys" in message)

    key = secrets.token_urlsafe(32)
    container.set_secret(key)
    environment = {"STILLHASH_ADMIN_KEYS_FILE": "/run/secrets/admin_key"}
    items = [[float((row * column) % 7) for column in range(DIM)] for row in range(ROWS)]
    films, query = "/v1/collections/films", {"query": items[3], "k": 5}
    with running(container, **environment):
        status, health = request("GET", "/v1/health")
        expect("version", (200, version), (status, health["stillhash"]))
        expect("a request without a key", 401, request("GET", "/v1/collections")[0])
        settings = {"name": "films", "dim": DIM, "bits": BITS, "init_rows": ROWS}
        expect("a collection is created", 200, request("POST", "/v1/collections", key, settings)[0])
        ids = [f"film-{row}" for row in range(ROWS)]
        expect("rows are added", 200, request("POST", f"{films}/add", key, {"ids": ids, "features": items})[0])
        answer = request("POST", f"{films}/search", key, query)
        expect("a search", 200, answer[0])
        expect("metrics", True, 'stillhash_rows{collection="films"} 300.0' in request("GET", "/v1/metrics", key)[1])
        expect("a snapshot", 200, request("POST", f"{films}/snapshot", key, {})[0])
    with running(container, **environment):
        expect("the data is there after a restart", answer, request("POST", f"{films}/search", key, query))

    entrypoint = " ".join(container.stage.command("ENTRYPOINT"))
    added: subprocess.Popen[str] = container.start(shlex.split(f"{entrypoint} {ADD_KEY}"))
    line = next(line for line in added.communicate()[0].splitlines() if line.startswith("{"))
    expect("a key is added to the volume", 0, added.returncode)
    with running(container):
        expect("and opens the server", 200, request("GET", "/v1/collections", json.loads(line)["key"])[0])
