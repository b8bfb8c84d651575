"""Verbs on the model, for both clients: those of `server.routes_learning`. `verbs_items` says how to add one."""

from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

from stillhash.client.requests import CollectionRequests
from stillhash.client.serialization import vote_to_json
from stillhash.collection.types import DoubtfulItem, Id, ItemIds, LabelSuggestion, Vector, Vote, VoteEntry
from stillhash.collection.validation import check_ids, check_label_lists
from stillhash.numeric.validation import check_integer


class LearningVerbs(CollectionRequests):
    async def fit(self, features: Any = None, labels: Any = None) -> None:
        """Fit the hash functions now, permanently: by a sample, or by the rows that await codes."""
        X = None if features is None else await self._features(features)
        body = {"labels": labels if X is None else check_label_lists(labels, len(X))}
        await self._post("fit", body, X, "not stored")

    async def learn(self, features: Any, labels: Any) -> int:
        """Learn from labelled rows that are not stored as items; return the new version."""
        X = await self._features(features)
        body = {"labels": check_label_lists(labels, len(X))}
        return int((await self._post("learn", body, X, "not stored"))["version"])

    async def feedback(
        self, query: Vector | NDArray[Any], id: Id | ItemIds, vote: Any, *, source: str = "", position: Any = None
    ) -> int:
        """Vote on an item, or on a list of items, as hits of a query (D,); return the new version."""
        body = {"id": id, "vote": vote, "source": source, "position": position}
        Q, _ = await self._query(query)
        return int((await self._post("feedback", body, Q, "not stored"))["version"])

    async def feedback_many(self, votes: Iterable[Vote | dict[str, Any]]) -> int:
        """Send votes on any number of queries in one request; return the new version. On an error nothing changes."""
        lines = [vote_to_json(vote, number) for number, vote in enumerate(votes, 1)]
        return int((await self._post_lines("feedback_many", lines, "not stored"))["version"])

    async def votes(
        self,
        source: str | None = None,
        limit: int = 100,
        after: int | None = None,
        *,
        query: Vector | NDArray[Any] | None = None,
    ) -> list[VoteEntry]:
        """Return the votes that count, the latest first: of a source, or of all; on hits of a query, or of all."""
        body = {"source": source, "limit": limit, "after": after}
        Q = None if query is None else (await self._query(query))[0]
        return [VoteEntry(**vote) for vote in (await self._post("votes", body, Q))["votes"]]

    async def flush(self) -> int:
        """Learn the labelled items that wait for a full chunk; return the current version."""
        return int((await self._post("flush", retry="not stored"))["version"])

    async def versions(self) -> list[dict[str, Any]]:
        """List the kept versions of the model, the latest last."""
        return list((await self._get("versions"))["versions"])

    async def quality(self) -> dict[str, Any]:
        """Return the quality on each step of labelled rows, measured before it was learnt."""
        return await self._get("quality")

    async def doubtful_labels(self, count: int = 100) -> list[DoubtfulItem]:
        """Return the items whose labels are least plausible, at most `count`, the most doubtful first."""
        answer = await self._get(f"doubtful_labels?count={check_integer(count, 'count', 1)}")
        return [DoubtfulItem(**item) for item in answer["items"]]

    async def suggest_labels(
        self, count: int = 20, *, skip: ItemIds = (), seed: int | None = None
    ) -> list[LabelSuggestion]:
        """Return unlabelled items whose labels would teach most, the most useful first, with labels of them."""
        body = {"count": check_integer(count, "count", 1), "skip": check_ids(skip, distinct=False), "seed": seed}
        answer = await self._post("suggest_labels", body, retry="always")
        return [LabelSuggestion(**{**one, "labels": list(map(tuple, one["labels"]))}) for one in answer["suggestions"]]

    async def tag(self, version: int, name: str) -> None:
        """Name a version, which keeps it permanently."""
        await self._post("tag", {"version": version, "name": name})

    async def rollback(self, version: int) -> int:
        """Restore an earlier version with identical results; return its new number."""
        return int((await self._post("rollback", {"version": version}, retry="not stored"))["version"])
