"""Collections over HTTP, and the page that shows them learn: a skin over `stillhash.collection`."""

from __future__ import annotations

from stillhash.server.app import create_app
from stillhash.server.auth import Keys, is_loopback, keys_from
from stillhash.server.run import log_to_stderr, serve
from stillhash.server.settings import Settings

__all__ = ["Keys", "Settings", "create_app", "is_loopback", "keys_from", "log_to_stderr", "serve"]
