"""Client of a stillhash server: the verbs of `Collection` over HTTP."""

from stillhash.client.client import Client

__all__ = ["Client"]
