"""Reload keys and certificate of a running server: after SIGHUP, and keys also when their file changes."""

import asyncio
import logging
import signal
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from stillhash.errors import InvalidInput
from stillhash.platform import SYSTEM
from stillhash.server.sessions import Sessions
from stillhash.server.settings import Settings
from stillhash.server.tls import load_certificate

RELOAD_POLL_SECONDS = 0.5

log = logging.getLogger("stillhash.server")


class Reloader:
    """Requests that run meanwhile go on; those that start after it see what is new."""

    def __init__(self, settings: Settings, sessions: Sessions) -> None:
        self.settings, self.sessions = settings, sessions
        self.tls: ssl.SSLContext | None = None  # of the running server
        self._requested = False

    def request(self) -> None:
        """Reload soon. A signal handler may call this at any time."""
        self._requested = True

    async def run(self) -> None:
        """Reload whenever there is a reason, until cancelled."""
        while True:
            await asyncio.sleep(RELOAD_POLL_SECONDS)
            try:
                self._reload_if_needed()
            except Exception:  # or keys that are removed later would stay valid
                log.exception("reloading failed; trying again")

    def _reload_if_needed(self) -> None:
        requested, self._requested = self._requested, False
        if requested or self.settings.keys.changed():
            self.settings.keys.reload()
            self.sessions.end_without_key()
        if requested and self.tls is not None:
            self._reload_certificate(self.tls)

    def _reload_certificate(self, context: ssl.SSLContext) -> None:
        certificate, key = self.settings.tls_cert, self.settings.tls_key
        if certificate is None or key is None:
            return
        try:
            load_certificate(certificate, key)  # into another context first: an invalid one must change nothing
            load_certificate(certificate, key, context)
        except InvalidInput as error:
            log.error("the certificate is not reloaded; the former one stays in use: %s", error)
        else:
            log.info("certificate reloaded", extra={"fields": {"file": str(certificate)}})


@contextmanager
def on_hangup(reloader: Reloader | None) -> Iterator[None]:
    """Reload on SIGHUP, which would otherwise end the process; without a reloader, ignore it. Windows has no SIGHUP."""
    hangup = SYSTEM.reload_signal()
    if hangup is None or threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        yield
        return
    handler = signal.SIG_IGN if reloader is None else lambda *_: reloader.request()
    before = signal.signal(hangup, handler)
    try:
        yield
    finally:
        signal.signal(hangup, signal.SIG_DFL if before is None else before)  # None: not set by Python
