"""Verbs that add and remove labels, for both clients: those of `server.routes_labels`."""

from typing import Any

from stillhash.client.requests import CollectionRequests
from stillhash.collection.types import ItemIds, LabelsOfItems
from stillhash.collection.validation import check_ids, check_shared


class LabelVerbs(CollectionRequests):
    # Sent twice, both would answer that nothing changed, so they are sent again only where nothing was stored.

    async def add_labels(self, ids: ItemIds, labels: Any, *, learn: bool = True) -> LabelsOfItems:
        """Add labels, one list for all, to these items; return what labels those had that changed."""
        return _to_labels(await self._post("add_labels", _to_body(ids, labels, learn), retry="not stored"))

    async def remove_labels(self, ids: ItemIds, labels: Any, *, learn: bool = True) -> LabelsOfItems:
        """Remove labels, one list for all, from these items; return what labels those had that changed."""
        return _to_labels(await self._post("remove_labels", _to_body(ids, labels, learn), retry="not stored"))


def _to_body(ids: ItemIds, labels: Any, learn: bool) -> dict[str, Any]:
    return {"ids": check_ids(ids), "labels": check_shared(labels), "learn": bool(learn)}


def _to_labels(response: dict[str, Any]) -> LabelsOfItems:
    return {entry["id"]: entry["labels"] for entry in response["before"]}
