"""Verbs that search for words, for both clients: those of `server.routes_lexical`."""

from typing import Any

from numpy.typing import NDArray

from stillhash.client.requests import CollectionRequests
from stillhash.client.serialization import to_answer
from stillhash.collection.ranking import DEFAULT_DEPTH
from stillhash.collection.storage.lexical import parse_terms
from stillhash.collection.types import Answer, Filter, Vector, VersionName
from stillhash.errors import InvalidInput


class LexicalVerbs(CollectionRequests):
    async def lexical_search(self, words: str, k: int = 10, *, where: Filter | None = None) -> Answer:
        """Return the k best items for words, and "phrases" in double quotes, by BM25."""
        parse_terms(words)
        response = await self._post("lexical_search", {"words": words, "k": k, "where": where})
        return to_answer(response["answers"][0])

    async def hybrid_search(
        self,
        query: Vector | NDArray[Any],
        words: str,
        k: int = 10,
        *,
        where: Filter | None = None,
        version: VersionName | None = None,
        balance: float | None = None,
        depth: int = DEFAULT_DEPTH,
        word_weight: float = 1.0,
    ) -> Answer:
        """Return the k best items for a query (D,) and words, by their ranks in `search` and in `lexical_search`."""
        parse_terms(words)
        Q, single = await self._query(query)
        if not single:
            raise InvalidInput(f"query: expected one query, got {len(Q)}")
        body = {"words": words, "k": k, "where": where, "version": version, "balance": balance}
        response = await self._post("hybrid_search", body | {"depth": depth, "word_weight": word_weight}, Q)
        return to_answer(response["answers"][0])
