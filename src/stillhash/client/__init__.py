"""Client of a stillhash server: the verbs of `Collection` over HTTP."""

from __future__ import annotations

from stillhash.client.client import Client

__all__ = ["Client"]
