"""Serve collections over HTTP: a JSON API, and a page that shows them learn."""

from stillhash.server.app import create_app
from stillhash.server.auth import Keys, is_loopback, load_keys
from stillhash.server.run import log_to_stderr, serve
from stillhash.server.settings import Settings

__all__ = ["Keys", "Settings", "create_app", "is_loopback", "load_keys", "log_to_stderr", "serve"]
