"""The tools of a collection: search, explain, stats and feedback, each in a thread, so that the event loop goes on."""

import functools
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from mcp.server.mcpserver.exceptions import ToolError

from stillhash.collection import Answer, Collection
from stillhash.encoders import Encoder
from stillhash.errors import NotFitted, StillhashError
from stillhash.integrations.collection_threads import CollectionThreads
from stillhash.integrations.mcp import results as schemas
from stillhash.integrations.mcp.queries import MAX_ANSWER_BYTES, QuerySearch, ToolQuery

ToolArguments = ParamSpec("ToolArguments")
ToolResult = TypeVar("ToolResult")


def tool_errors(
    tool: Callable[ToolArguments, Awaitable[ToolResult]],
) -> Callable[ToolArguments, Awaitable[ToolResult]]:
    """Let a tool answer our errors as errors of the tool, with their type and message; all others are crashes."""

    @functools.wraps(tool)
    async def checked(*args: ToolArguments.args, **kwargs: ToolArguments.kwargs) -> ToolResult:
        try:
            return await tool(*args, **kwargs)
        except StillhashError as error:
            raise ToolError(f"{type(error).__name__}: {error}") from error

    return checked


class CollectionTools:
    """The tools of one collection."""

    def __init__(self, collection: Collection, name: str, encoder: Encoder | None, allow_feedback: bool) -> None:
        self._collection, self._name, self._allow_feedback = collection, name, allow_feedback
        self._queries, self._threads = QuerySearch(collection, encoder), CollectionThreads(name)

    def close(self) -> None:
        """Wait for the calls that run."""
        self._threads.close()

    @tool_errors
    async def search(
        self,
        text: schemas.QueryText = None,
        like: schemas.Likeness = None,
        vector: schemas.QueryVector = None,
        k: schemas.MaxHits = 10,
        where: schemas.ItemCondition = None,
        balance: schemas.BalanceValue = None,
    ) -> schemas.SearchResult:
        """Search by exactly one of text, like and vector."""
        query = ToolQuery(text, like, vector).check()
        answer = await self._threads.read(self._queries.search, query, k, where, balance)
        hits = [
            schemas.HitResult(id=hit.id, score=hit.score, labels=hit.labels, metadata=hit.metadata, placed=hit.placed)
            for hit in answer.hits
        ]
        return schemas.SearchResult(hits=hits, version=answer.version, ranking=answer.ranking)

    @tool_errors
    async def explain(
        self,
        text: schemas.QueryText = None,
        like: schemas.Likeness = None,
        vector: schemas.QueryVector = None,
        k: schemas.ExplainedCount = 5,
        where: schemas.ItemCondition = None,
    ) -> schemas.ExplainResult:
        """Explain the first hits for exactly one of text, like and vector."""
        answer = await self._threads.read(self._explained, ToolQuery(text, like, vector).check(), k, where)
        return schemas.ExplainResult(hits=list(map(_explained_hit, answer.hits)), version=answer.version)

    def _explained(self, query: ToolQuery, k: int, where: Any) -> Answer:
        features: Any = self._queries.known_features(query)
        answer: Answer = self._collection.search(features, k, where=where, explain=True, max_bytes=MAX_ANSWER_BYTES)
        if any(hit.explanation is None for hit in answer.hits):
            raise NotFitted("explain: the hash functions are not fitted yet: add more rows, or call fit")
        return answer

    @tool_errors
    async def stats(self) -> schemas.StatsResult:
        """Describe the collection."""
        return await self._threads.read(self._stats)

    def _stats(self) -> schemas.StatsResult:
        stats, encoder = self._collection.stats(), self._collection.encoder
        quality = stats["quality"] or {}
        return schemas.StatsResult(
            name=self._name,
            items=stats["items"],
            dim=stats["dim"],
            bits=stats["bits"],
            fitted=stats["fitted"],
            version=stats["version"],
            text_search=self._queries.text_search,
            feedback=self._allow_feedback,
            encoder=None if encoder is None else encoder.name,
            quality=quality.get("map"),
        )

    @tool_errors
    async def feedback(
        self,
        id: schemas.VotedItem,
        vote: schemas.VoteValue,
        text: schemas.QueryText = None,
        like: schemas.Likeness = None,
        vector: schemas.QueryVector = None,
        source: schemas.VoteSource = "mcp",
    ) -> schemas.FeedbackResult:
        """Vote on a hit of exactly one of text, like and vector."""
        query = ToolQuery(text, like, vector).check()
        return schemas.FeedbackResult(version=await self._threads.write(self._vote, query, id, vote, source))

    def _vote(self, query: ToolQuery, id: str | int, vote: Any, source: str) -> int:
        return self._collection.feedback(self._queries.known_features(query), id, vote, source=source)


def _explained_hit(hit: Any) -> schemas.ExplainedHit:
    why = hit.explanation
    return schemas.ExplainedHit(
        id=hit.id,
        score=hit.score,
        placed=hit.placed,
        rank=why.rank,
        rank_before=why.other_rank,
        score_before=why.other_score,
        version_before=why.other_version,
        similarity=why.similarity,
        labels=why.labels,
        label_weight=why.label_weight,
    )
