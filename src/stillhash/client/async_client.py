"""A served collection with the verbs of a local one, for asyncio: `await client.search(query)`.

The verbs are in `verbs_facets`, `verbs_items`, `verbs_labels`, `verbs_lexical`, `verbs_learning`, `verbs_probe` and
`verbs_server`.
"""

from typing import Self

from stillhash.client.httpx_connections import AsyncConnections
from stillhash.client.verbs_facets import FacetVerbs
from stillhash.client.verbs_items import ItemVerbs
from stillhash.client.verbs_labels import LabelVerbs
from stillhash.client.verbs_learning import LearningVerbs
from stillhash.client.verbs_lexical import LexicalVerbs
from stillhash.client.verbs_probe import ProbeVerbs
from stillhash.client.verbs_server import ServerVerbs


class AsyncClient(FacetVerbs, ItemVerbs, LabelVerbs, LexicalVerbs, LearningVerbs, ProbeVerbs, ServerVerbs):
    """Call a served collection from the tasks of one event loop. The verbs are `Client`'s, as coroutines.

    The arguments are `Client`'s. At most 16 requests are sent at a time, and others wait. `ingest` also takes an
    asynchronous iterator. The attributes `collection`, `dim` and `bits` are coroutines too: `await client.dim()`.
    """

    _new_connections = AsyncConnections

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. The server goes on."""
        await self._transport.close()

    async def collection(self) -> str:
        """Return the name of the collection."""
        return await self._get_collection()

    async def dim(self) -> int:
        """Return the length of a vector."""
        return await self._get_setting("dim")

    async def bits(self) -> int:
        """Return the length of a code."""
        return await self._get_setting("bits")
