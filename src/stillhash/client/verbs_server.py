"""Verbs on the server, for both clients: those of `server.routes_server`. `verbs_items` says how to add one."""

from typing import Any
from urllib.parse import urlencode

from stillhash.client.requests import CollectionRequests
from stillhash.collection.actor import check_actor
from stillhash.collection.types import AuditEntry, Filter, ForgetReport, ItemIds
from stillhash.collection.validation import check_ids
from stillhash.numeric.validation import check_integer


class ServerVerbs(CollectionRequests):
    async def health(self) -> dict[str, Any]:
        """Return whether the server can answer, and the number of items of each collection."""
        return await self._transport.request("GET", "/v1/health")

    async def stats(self) -> dict[str, Any]:
        """Return settings, counts and disk use."""
        return await self._get("stats")

    async def verify(self) -> list[str]:
        """Check everything that is stored, and return the problems; an empty list means none."""
        return list((await self._post("verify"))["problems"])

    async def audit(self, after: int | None = None, limit: int = 100, *, who: str | None = None) -> list[AuditEntry]:
        """Return the entries of the audit log, the latest last: the latest, or the first past the number `after`."""
        options: dict[str, Any] = {"limit": check_integer(limit, "limit", 1)}
        options |= {} if after is None else {"after": check_integer(after, "after", 0)}
        options |= {} if who is None else {"who": check_actor(who, "who")}
        return [AuditEntry(**entry) for entry in (await self._get(f"audit?{urlencode(options)}"))["entries"]]

    async def snapshot(self) -> dict[str, Any]:
        """Copy the collection at one commit to the server's folder of snapshots; return name and bytes."""
        return await self._post("snapshot", retry="not stored")

    async def forget(
        self, ids: ItemIds | None = None, *, where: Filter | None = None, source: str | None = None
    ) -> ForgetReport:
        """Remove items, or all votes of a source, so that no file of the collection holds anything of them.

        The report names the server's snapshots that do.
        """
        body = {"ids": None if ids is None else check_ids(ids), "where": where, "source": source}
        return ForgetReport(**await self._post("forget", body))

    async def cluster(self) -> dict[str, Any]:
        """Return nodes, shards and their actors; NotFound if the collection is not on a cluster."""
        return await self._get("cluster")

    async def add_shard(self) -> int:
        """Add a shard, and move its share of the rows to it; return its number."""
        return int((await self._post("cluster/add_shard", retry="not stored"))["shard"])

    async def drain(self, node: str) -> int:
        """Move every actor off a node; return how many moved."""
        return int((await self._post("cluster/drain", {"node": str(node)}))["moved"])
