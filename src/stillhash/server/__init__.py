"""Collections over HTTP, and the page that shows them learn: a skin over `stillhash.collection`."""

from __future__ import annotations

from stillhash.server.access import Keys, keys_from
from stillhash.server.app import create_app
from stillhash.server.settings import Settings

__all__ = ["Keys", "Settings", "create_app", "keys_from"]
