"""Clients of a stillhash server: the verbs of `Collection` over HTTP, blocking or asynchronous.

A verb is written once, as a coroutine of `verbs_items`, `verbs_learning` or `verbs_server`. See `verbs_items` for how
to add one.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # type checkers see plain imports
    from stillhash.client.async_client import AsyncClient
    from stillhash.client.client import Client
else:

    def __getattr__(name: str) -> object:
        """Import a client on first use: each needs a library of its own, which is optional."""
        if name == "Client":
            from stillhash.client.client import Client

            return Client
        if name == "AsyncClient":
            from stillhash.client.async_client import AsyncClient

            return AsyncClient
        raise AttributeError(f"module 'stillhash.client' has no attribute {name!r}")


__all__ = ["AsyncClient", "Client"]
