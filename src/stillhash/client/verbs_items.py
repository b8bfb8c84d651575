"""Verbs on items, for both clients: those of `server.routes_items`.

To add a verb:
1. Write it here, or in `verbs_learning` or `verbs_server`, as a coroutine with the signature that it has in
   `Collection`. It validates what the server cannot, awaits `_get` or `_post` and converts the answer. `_post` takes
   `retry="not stored"` unless sending the request twice has the effect of sending it once. A verb uses `self` only for
   the methods of `CollectionRequests`, never for another verb.
2. `AsyncClient` has it by inheritance. Add one line to `Client`: `verb = blocking(ItemVerbs.verb)`.
3. Add calls of it to `tests/contracts/collections.py`.
"""

import base64
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from stillhash.client.requests import CollectionRequests
from stillhash.client.serialization import row_to_json, selection_to_json, to_answer, to_item, to_json
from stillhash.codes import from_hex
from stillhash.collection.types import (
    Answer,
    Filter,
    Id,
    IdLike,
    Item,
    ItemIds,
    RangeOptions,
    SearchOptions,
    Vector,
    Vectors,
    VersionName,
    Weights,
)
from stillhash.collection.validation import (
    ItemFilter,
    check_ids,
    check_label_lists,
    check_metadata,
    check_metadata_changes,
    check_pictures,
    check_shared_labels,
)
from stillhash.collection.values import is_single_id
from stillhash.errors import WrongType
from stillhash.numeric.validation import Codes, Floats, check_integer, check_weights

Rows = Iterable[dict[str, Any]]
AsyncRows = AsyncIterable[dict[str, Any]]


class ItemVerbs(CollectionRequests):
    async def add(
        self,
        ids: ItemIds,
        features: Any,
        labels: Any = None,
        metadata: Any = None,
        *,
        pictures: Any = None,
        learn: bool = True,
    ) -> int:
        """Add items, and return how many. They are on the server's disk when this returns."""
        rows = await self._features(features)
        body = _items_to_json(ids, len(rows), labels, metadata, pictures, learn)
        return int((await self._post("add", body, rows, "not stored"))["count"])

    async def upsert(
        self,
        ids: ItemIds,
        features: Any = None,
        labels: Any = None,
        metadata: Any = None,
        *,
        pictures: Any = None,
        learn: bool = True,
    ) -> int:
        """Add items, and replace those whose ids exist; without features, only their labels or metadata."""
        if features is None:
            names = check_ids(ids)
            body = _items_to_json(names, len(names), labels, metadata, pictures, learn)
            return int((await self._post("upsert", body, retry="not stored"))["count"])
        rows = await self._features(features)
        body = _items_to_json(ids, len(rows), labels, metadata, pictures, learn)
        return int((await self._post("upsert", body, rows))["count"])

    async def ingest(self, rows: Rows | AsyncRows, *, replace: bool = False, learn: bool = True) -> int:
        """Add items from a stream of any length: dictionaries with id, features, and optional labels and metadata.

        If a row is invalid, the error's `acknowledged` counts the first rows that are certainly on disk.
        """
        path = await self._path(f"ingest?replace={bool(replace)}&learn={bool(learn)}".lower())
        return await self._transport.post_lines(path, _to_lines(rows))

    async def relabel(
        self,
        ids: ItemIds | None = None,
        labels: Any = None,
        *,
        where: ItemFilter | None = None,
        learn: bool = True,
    ) -> int:
        """Replace the labels of items, by their ids or by a condition; learn from them unless `learn` is false."""
        body = selection_to_json(ids, where)
        if where is None:
            body["labels"] = check_label_lists(labels, len(body["ids"]))
        else:
            body["labels"] = check_label_lists(check_shared_labels(labels), 1)[0]
        return int((await self._post("relabel", body | {"learn": bool(learn)}, retry="not stored"))["count"])

    async def update_metadata(
        self,
        ids: ItemIds | None = None,
        metadata: Any = None,
        *,
        where: ItemFilter | None = None,
        replace: bool = False,
    ) -> int:
        """Merge fields into the metadata of items, by their ids or by a condition, and return how many."""
        body = selection_to_json(ids, where)
        check_metadata_changes(metadata, len(body["ids"]) if where is None else None, replace)
        body |= {"metadata": metadata, "replace": bool(replace)}
        return int((await self._post("update_metadata", body, retry="not stored"))["count"])

    async def delete(self, ids: ItemIds | None = None, *, where: ItemFilter | None = None) -> int:
        """Delete items by their ids, or those that meet a condition, and return how many existed."""
        return int((await self._post("delete", selection_to_json(ids, where)))["count"])

    @overload
    async def get(self, ids: IdLike) -> Item | None: ...  # type: ignore[overload-overlap]
    @overload
    async def get(self, ids: ItemIds) -> list[Item | None]: ...
    async def get(self, ids: IdLike | ItemIds) -> Item | list[Item | None] | None:
        """Return the item with this id, or for a list of ids a list of items; None where there is none."""
        names = check_ids([ids] if is_single_id(ids) else ids, distinct=False)
        items = [to_item(item) for item in (await self._post("get", {"ids": names}))["items"]]
        return items[0] if is_single_id(ids) else items

    async def picture(self, id: Id) -> bytes | None:
        """Return the small image that was added with an item, if any."""
        picture = (await self._post("picture", {"id": check_ids([id])[0]}))["picture"]
        return None if picture is None else base64.b64decode(picture)

    async def reconstruct(self, ids: ItemIds) -> NDArray[Any]:
        """Return features (n, D) rebuilt from the codes of items, to search for similar ones; or ready codes."""
        features = (await self._post("reconstruct", {"ids": check_ids(ids, distinct=False)}))["features"]
        if await self._get_setting("codes_only"):
            return from_hex(features, await self._get_setting("bits"))
        return np.array(features, np.float32).reshape(-1, await self._get_setting("dim"))

    async def sample(self, count: int = 1) -> list[Item]:
        """Return at most `count` random items."""
        answer = await self._get(f"sample?count={check_integer(count, 'count', 1)}")
        return [Item(**item) for item in answer["items"]]

    async def count(self, where: Filter | None = None) -> int:
        """Return the number of items, or of those that meet a condition."""
        answer = await self._get("count") if where is None else await self._post("count", {"where": where})
        return int(answer["count"])

    async def ids(self, where: Filter | None = None, *, after: Id | None = None, limit: int = 1000) -> list[Id]:
        """Return the ids of items, in order, at most `limit`; `after` is the last one of the list before."""
        return list((await self._post("ids", {"where": where, "after": after, "limit": limit}))["ids"])

    async def list_items(
        self, where: Filter | None = None, *, after: Id | None = None, limit: int = 1000
    ) -> list[Item]:
        """Return items in the order of `ids`, at most `limit`; `after` is the last id of the list before."""
        entries, _ = await self._list({"where": where, "after": after, "limit": limit})
        return [Item(**entry) for entry in entries]

    async def list_coded_items(
        self, where: Filter | None = None, *, after: Id | None = None, limit: int = 1000, codes: bool = True
    ) -> tuple[list[Item], Codes | None]:
        """Return items as `list_items` does, and their codes; None while items wait for hash functions."""
        entries, _ = await self._list({"where": where, "after": after, "limit": limit, "codes": codes})
        texts = [entry.pop("code", None) for entry in entries]
        fitted = codes and (texts[0] is not None if texts else (await self._get("stats"))["fitted"])
        packed = b"".join(map(base64.b64decode, texts if fitted else []))
        shape = len(entries), (await self._get_setting("bits") + 7) // 8
        items = [Item(**entry) for entry in entries]
        return items, np.frombuffer(packed, np.uint8).reshape(shape) if fitted else None

    async def items(
        self, where: Filter | None = None, *, after: Id | None = None, limit: int | None = None, batch: int = 1000
    ) -> AsyncIterator[Item]:
        """Iterate over items in the order of `ids`, all or at most `limit`, requesting `batch` at a time."""
        check_integer(batch, "batch", 1)
        left = None if limit is None else check_integer(limit, "limit", 1)
        while left is None or left > 0:
            size = batch if left is None else min(batch, left)
            entries, after = await self._list({"where": where, "after": after, "limit": size})
            for entry in entries:
                yield Item(**entry)
            if after is None:
                return
            left = None if left is None else left - len(entries)

    async def encode(self, query: bytes | str) -> Floats:
        """Return the features (D,) of an image file's bytes, or of a text, by the collection's encoder."""
        if not isinstance(query, (bytes, str)) or not query:
            raise WrongType(f"query: expected the bytes of an image file, or a text, got {query!r}")
        data, kind = (query.encode(), "text/plain") if isinstance(query, str) else (query, "image/*")
        return np.array((await self._post_bytes("encode", data, kind))["features"][0], np.float32)

    @overload
    async def search(self, query: Vector, k: int = ..., **options: Unpack[SearchOptions]) -> Answer: ...
    @overload
    async def search(self, query: Vectors, k: int = ..., **options: Unpack[SearchOptions]) -> list[Answer]: ...
    @overload  # the type of an array does not say how many dimensions it has
    async def search(self, query: NDArray[Any] | None = ..., k: int = ..., **options: Unpack[SearchOptions]) -> Any: ...
    async def search(
        self,
        query: Vector | Vectors | NDArray[Any] | None = None,
        k: int = 10,
        *,
        weights: Weights | None = None,
        where: Filter | None = None,
        version: VersionName | None = None,
        balance: float | None = None,
        explain: bool | int = False,
    ) -> Answer | list[Answer]:
        """Return the k best items for a query (D,), as an Answer; for queries (m, D), a list of Answers.

        weights: of the bits, in place of queries.
        """
        body = {"k": k, "where": where, "version": version, "balance": balance, "explain": explain}
        if weights is None:
            Q, single = await self._query(query)
            response = await self._post("search", body, Q)
        else:
            W = check_weights(weights, await self._get_setting("bits"))
            response = await self._post("search", {**body, "query": query, "weights": W})
            single = np.ndim(weights) == 1
        answers = [to_answer(answer) for answer in response["answers"]]
        return answers[0] if single else answers

    @overload
    async def range_search(
        self, query: Vector, threshold: float | None = ..., **options: Unpack[RangeOptions]
    ) -> Answer: ...
    @overload
    async def range_search(
        self, query: Vectors, threshold: float | None = ..., **options: Unpack[RangeOptions]
    ) -> list[Answer]: ...
    @overload
    async def range_search(
        self, query: NDArray[Any], threshold: float | None = ..., **options: Unpack[RangeOptions]
    ) -> Any: ...
    async def range_search(
        self,
        query: Vector | Vectors | NDArray[Any],
        threshold: float | None = None,
        *,
        distance: int | None = None,
        where: Filter | None = None,
        version: VersionName | None = None,
        most: int | None = None,
    ) -> Answer | list[Answer]:
        """Return all items of at least this score, or within this Hamming distance; more than `most` are an error."""
        Q, single = await self._query(query)
        body = {"threshold": threshold, "distance": distance, "where": where, "version": version, "most": most}
        answers = [to_answer(answer) for answer in (await self._post("range_search", body, Q))["answers"]]
        return answers[0] if single else answers


def _items_to_json(ids: ItemIds, rows: int, labels: Any, metadata: Any, pictures: Any, learn: bool) -> str:
    """Serialise everything of new items but their features."""
    names = None if labels is None else check_label_lists(labels, rows)
    body: dict[str, Any] = {"ids": check_ids(ids), "labels": names, "learn": bool(learn)}
    if (images := check_pictures(pictures, rows)) is not None:
        body["pictures"] = [None if data is None else base64.b64encode(data).decode() for data in images]
    if metadata is None:
        return to_json(body)
    texts = ", ".join(text or "null" for text in check_metadata(metadata, rows))  # JSON already
    return f'{to_json(body)[:-1]}, "metadata": [{texts}]}}'


async def _to_lines(rows: Rows | AsyncRows) -> AsyncIterator[bytes]:
    number = 0
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row_to_json(row, number)
            number += 1
    else:
        for row in rows:
            yield row_to_json(row, number)
            number += 1
