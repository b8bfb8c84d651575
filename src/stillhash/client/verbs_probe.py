"""Verbs that measure and compare versions of the model, for both clients: those of `server.routes_probe`."""

from typing import Any

from stillhash.client.requests import CollectionRequests
from stillhash.collection.learning.probe import (
    PROBE_ITEMS,
    PROBE_QUERIES,
    LabelQuality,
    ProbeQuality,
    ProbeReport,
    QueryComparison,
    VersionComparison,
)
from stillhash.collection.types import ItemIds, VersionName
from stillhash.collection.validation import check_ids


class ProbeVerbs(CollectionRequests):
    async def probe(
        self,
        version: VersionName | None = None,
        *,
        queries: int = PROBE_QUERIES,
        items: int = PROBE_ITEMS,
        seed: int = 0,
    ) -> ProbeReport:
        """Measure a version on stored items, in total and for each label, the worst first."""
        body = {"version": version, "queries": queries, "items": items, "seed": seed}
        report = await self._post("probe", body)
        qualities = {name: ProbeQuality(**report[name]) for name in ("quality", "before", "gain", "gain_error")}
        labels = [LabelQuality(**row) for row in report["labels"]]
        return ProbeReport(**{**report, **qualities, "labels": labels})

    async def compare_versions(
        self,
        one: VersionName,
        other: VersionName | None = None,
        *,
        queries: int = PROBE_QUERIES,
        items: int = PROBE_ITEMS,
        seed: int = 0,
        ids: ItemIds | None = None,
    ) -> VersionComparison:
        """Compare the first ten hits of stored items by two versions, the largest gain first."""
        names = None if ids is None else check_ids(ids, distinct=False)
        body = {"one": one, "other": other, "queries": queries, "items": items, "seed": seed, "ids": names}
        answer = await self._post("compare_versions", body)
        quality = tuple(ProbeQuality(**each) for each in answer["quality"])
        rows = [QueryComparison(**_with_pairs(row)) for row in answer["queries"]]
        return VersionComparison(tuple(answer["versions"]), answer["items"], quality, answer["differing"], rows)  # type: ignore[arg-type]


def _with_pairs(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose pairs are tuples; JSON has lists."""
    return {**row, **{name: tuple(row[name]) for name in ("precision", "ndcg", "hits")}}
