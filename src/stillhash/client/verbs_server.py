"""Verbs on the server, for both clients: those of `server.routes_server` and `server.routes_collections`.

`verbs_items` says how to add one.
"""

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlencode

from stillhash.client.requests import CollectionRequests, collection_path
from stillhash.client.serialization import selection_to_json, to_json
from stillhash.collection.storage.audit import check_actor
from stillhash.collection.types import AuditEntry, ForgetReport, ItemIds
from stillhash.collection.validation import ItemFilter, check_ids
from stillhash.errors import InvalidInput
from stillhash.hashers import DEFAULT_HASHER
from stillhash.numeric.validation import check_integer


class ServerVerbs(CollectionRequests):
    async def health(self) -> dict[str, Any]:
        """Return whether the server can answer, and the number of items of each collection."""
        return await self._transport.request("GET", "/v1/health")

    async def ready(self) -> dict[str, Any]:
        """Return which shards lack replicas; Busy, with the reason, while some collection cannot be searched."""
        return await self._transport.request("GET", "/v1/ready")

    async def collections(self) -> dict[str, int]:
        """Return the collections that the key has, and the number of items of each."""
        return dict((await self._transport.request("GET", "/v1/collections"))["items"])

    async def create_collection(
        self,
        name: str,
        dim: int | None = None,
        bits: int | None = None,
        *,
        method: str = DEFAULT_HASHER.name,
        params: dict[str, Any] | None = None,
        codes_see_labels: bool = True,
        codes_only: bool = False,
        init_rows: int = 3000,
        learn_rows: int = 1000,
        keep_versions: int = 32,
        source_cap: float = 1000.0,
        filter_fields: Iterable[str] | None = None,
        lexical_field: str | None = None,
        keep_features: bool = False,
        rescore_bits: int | None = None,
        encoder: str | None = None,
    ) -> dict[str, Any]:
        """Create an empty collection in the server's folder of collections, and return its stats; admin keys only.

        The arguments are those of `stillhash.open`; encoder is "classic" for images, or "words" for texts. A client of
        it is `Client(url, key, collection=name)`.
        """
        body: dict[str, Any] = {"name": name, "dim": dim, "bits": bits, "method": method, "params": params}
        body |= {"codes_see_labels": codes_see_labels, "init_rows": init_rows, "learn_rows": learn_rows}
        body |= {"keep_versions": keep_versions, "source_cap": source_cap, "filter_fields": filter_fields}
        body |= {"keep_features": keep_features, "codes_only": codes_only}
        new: dict[str, Any] = {"lexical_field": lexical_field, "encoder": encoder}  # which an earlier server refuses
        new["rescore_bits"] = rescore_bits
        body |= {name: value for name, value in new.items() if value is not None}
        return await self._transport.request("POST", "/v1/collections", to_json(body).encode(), retry="not stored")

    async def delete_collection(self, name: str, *, confirm: str) -> None:
        """Delete a collection and all its files, permanently; `confirm` is its name again. Admin keys only."""
        path, body = collection_path(name), to_json({"confirm": confirm}).encode()
        await self._transport.request("DELETE", path, body, retry="not stored")

    async def stats(self) -> dict[str, Any]:
        """Return settings, counts and disk use."""
        return await self._get("stats")

    async def verify(self) -> list[str]:
        """Check everything that is stored, and return the problems; an empty list means none."""
        return list((await self._post("verify"))["problems"])

    async def compact(self, *, progress: Callable[[float], object] | None = None) -> int:
        """Rewrite the segments that have deleted or changed rows, or are small; return how many deleted rows they had.

        The server runs it as a task, beside searches and writes, and goes on if the client ends. progress: called with
        the share that is done.
        """
        return int((await self._run_task({"kind": "compact"}, progress))["dropped"])

    async def build_rescoring(
        self,
        ids: ItemIds | None = None,
        features: Any = None,
        *,
        rescore_bits: int | None = None,
        progress: Callable[[float], object] | None = None,
    ) -> int:
        """Build rescoring codes in a collection that has none; return how many items still have none.

        ids, features: items, with the features that they were added with, any number in a call. Once all items have a
        code, a call without them lets the collection have them: a task at the server, as `compact` is.
        """
        if ids is None and features is None:
            task = {"kind": "build_rescoring"} | ({} if rescore_bits is None else {"rescore_bits": rescore_bits})
            return int((await self._run_task(task, progress))["missing"])
        if ids is None or features is None:
            raise InvalidInput("features: expected ids with their features, or neither, got one of both")
        rows, body = await self._features(features), {"ids": check_ids(ids), "rescore_bits": rescore_bits}
        return int((await self._post("build_rescoring", body, rows))["missing"])

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
        self, ids: ItemIds | None = None, *, where: ItemFilter | None = None, source: str | None = None
    ) -> ForgetReport:
        """Remove items, or all votes of a source, so that no file of the collection holds anything of them.

        The report names the server's snapshots that do.
        """
        body = {} if ids is None and where is None else selection_to_json(ids, where)
        return ForgetReport(**await self._post("forget", body | {"source": source}))

    async def cluster(self) -> dict[str, Any]:
        """Return nodes, shards, actors, moves and problems; NotFound if the collection is not on a cluster."""
        return await self._get("cluster")

    async def add_shard(self) -> int:
        """Add a shard, and move its share of the rows to it; return its number."""
        return int((await self._post("cluster/add_shard", retry="not stored"))["shard"])

    async def drain(self, node: str) -> int:
        """Move every actor off a node; return how many moved."""
        return int((await self._post("cluster/drain", {"node": str(node)}))["moved"])

    async def undrain(self, node: str) -> int:
        """Use a drained node again; return how many actors moved."""
        return int((await self._post("cluster/undrain", {"node": str(node)}))["moved"])

    async def remove_shard(self, shard: int) -> None:
        """Give the rows of a shard to the others, and stop it."""
        await self._post("cluster/remove_shard", {"shard": check_integer(shard, "shard", 0)}, retry="not stored")

    async def rebalance(self) -> int:
        """Move actors between nodes and segments between shards until they are even; return how many moved."""
        return int((await self._post("cluster/rebalance"))["moved"])

    async def compact_shards(self) -> dict[str, Any]:
        """Join small segments and drop deleted rows, on all shards; return how many `files` are fewer."""
        return await self._post("cluster/compact")
