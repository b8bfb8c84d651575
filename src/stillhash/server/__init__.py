"""Serve collections over HTTP: a JSON API, and a page that shows them learn."""

from stillhash.server.app import create_app
from stillhash.server.auth import ROLES, Keys, add_key, is_loopback, load_keys, read_keys, remove_key
from stillhash.server.run import log_to_stderr, serve
from stillhash.server.settings import Settings

__all__ = [
    "ROLES",
    "Keys",
    "Settings",
    "add_key",
    "create_app",
    "is_loopback",
    "load_keys",
    "log_to_stderr",
    "read_keys",
    "remove_key",
    "serve",
]
