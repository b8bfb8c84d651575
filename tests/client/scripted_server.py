"""A server that sends what a test says, whatever it is."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress


def whole(connection: socket.socket) -> bytes:
    """Read a request, however many packets it comes in."""
    head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
    (length,) = map(int, re.findall(rb"content-length: (\d+)", head.lower()) or [0])
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@contextmanager
def answering(*responses: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Run a server that sends one response to each connection and closes it; yield its address and the requests."""
    requests: list[bytes] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def work() -> None:
            for reply in responses:
                with closing(listener.accept()[0]) as connection:
                    requests.append(whole(connection))
                    with suppress(ConnectionError):  # a client may refuse a large response
                        connection.sendall(reply)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
        finally:
            thread.join(60)
            assert not thread.is_alive()


def response(status: int, body: str, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", f"content-length: {len(body)}", "connection: close", *headers]
    return "\r\n".join([*lines, "", body]).encode()
