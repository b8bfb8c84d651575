"""Verbs that count and suggest labels and values, for both clients: those of `server.routes_facets`."""

from collections.abc import Iterable
from typing import Any

from stillhash.client.requests import CollectionRequests
from stillhash.collection.filters.facets import Facet, Facets, FacetValue, Suggestion, check_fields, check_typed
from stillhash.collection.types import Filter


class FacetVerbs(CollectionRequests):
    async def facets(
        self, where: Filter | None = None, *, fields: Iterable[str] | None = None, limit: int = 20
    ) -> Facets:
        """Return how many items have each label, and each value of fields of the metadata, with an item for each."""
        names = check_fields(fields)
        body = {"where": where, "fields": None if names is None else list(names), "limit": limit}
        response = await self._post("facets", body)
        return Facets(response["items"], _to_facet(response["labels"]), [_to_facet(one) for one in response["fields"]])

    async def suggest(self, text: str, limit: int = 10) -> list[Suggestion]:
        """Return labels, values of fields and ids for what somebody types, at most `limit`."""
        response = await self._post("suggest", {"text": check_typed(text), "limit": limit})
        return [Suggestion(**one) for one in response["suggestions"]]


def _to_facet(data: dict[str, Any]) -> Facet:
    return Facet(**{**data, "values": [FacetValue(**one) for one in data["values"]]})
