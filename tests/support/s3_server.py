"""An S3 server on this machine (moto), and a way to it that can be closed: it is then away, hangs, or has no space.

The server is a process of its own. It answers one request at a time, so that a conditional upload is atomic, as it
is on S3, and forgets everything when it ends; so what stops and returns is the way to it.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fsspec import get_filesystem_class

S3_SECONDS = 60  # until it listens
REFUSALS = {  # status and code by which servers refuse an upload
    "full": (b"507 Insufficient Storage", b"XMinioStorageFull"),
    "exists": (b"412 Precondition Failed", b"PreconditionFailed"),
    "conflict": (b"409 Conflict", b"ConditionalRequestConflict"),
}
REFUSAL = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>refused</Message></Error>"
REPLY = b"HTTP/1.1 %s\r\nContent-Type: application/xml\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
SERVE = """
import io, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
from werkzeug.wsgi import get_input_stream
moto, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()
def serve(environ, start_response):
    body = get_input_stream(environ).read()
    environ.update({"wsgi.input": io.BytesIO(body), "wsgi.input_terminated": False, "CONTENT_LENGTH": str(len(body))})
    with lock:
        return [b"".join(moto(environ, start_response))]
server = make_server("127.0.0.1", 0, serve, threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""
SETTINGS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Forwarder:
    """Forward connections to a port, from a port of its own; `mode` is open, away, silent, or one of REFUSALS.

    So many of the next replies to uploads as `lost_replies` says do not arrive, although the server has the data.
    """

    def __init__(self, target: int) -> None:
        self.target, self.mode = target, "open"
        self.lost_replies = self.refused = 0
        self._listener = self._listen(0)
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def change(self, mode: str) -> None:
        """Change what becomes of connections, and end those that there are."""
        if mode == "away" != self.mode:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        if self.mode == "away" != mode:
            self._listener = self._listen(self.port)
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        self.mode = mode
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        listener.listen(64)
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._open.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            if self.mode == "silent":
                while client.recv(1 << 16):
                    pass
            elif self.mode in REFUSALS:
                self._refuse(client)
            else:
                self._forward(client)
        except OSError:
            pass
        finally:
            self._open.discard(client)
            client.close()

    def _refuse(self, client: socket.socket) -> None:
        """Read one request, and refuse it."""
        data = b""
        while b"\r\n\r\n" not in data:
            if not (part := client.recv(1 << 16)):
                return
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        if b"100-continue" not in head.lower():
            length = next((int(h[15:]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length:")), 0)
            while len(body) < length and (part := client.recv(1 << 16)):
                body += part
        status, code = REFUSALS[self.mode]
        self.refused += 1
        client.sendall(REPLY % (status, len(REFUSAL % code), REFUSAL % code))

    def _forward(self, client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self.target)) as server:
            if self.lost_replies and client.recv(3, socket.MSG_PEEK) == b"PUT":
                self.lost_replies -= 1
                threading.Thread(target=_copy, args=(client, server), daemon=True).start()
                while (reply := server.recv(1 << 16)).startswith(b"HTTP/1.1 100"):
                    client.sendall(reply)  # "go on", before the data
                client.shutdown(socket.SHUT_RDWR)
                return
            back = threading.Thread(target=_copy, args=(server, client), daemon=True)
            back.start()
            _copy(client, server)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextmanager
def running_s3() -> Iterator[Forwarder]:
    """Run a server on a port that it chooses itself, so that nobody else can have it, and yield the way to it."""
    command = [sys.executable, "-c", SERVE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8") as server:
        try:
            assert server.stdout is not None
            ready, _, _ = select.select([server.stdout], [], [], S3_SECONDS)
            if not ready or not (port := server.stdout.readline().strip()):
                raise RuntimeError(f"moto: expected its port within {S3_SECONDS} s, got exit code {server.poll()}")
            get_filesystem_class("s3").clear_instance_cache()  # which remembers the address of an earlier server
            yield Forwarder(int(port))
        finally:
            server.terminate()
