"""A served collection, with the verbs of an embedded one: `stillhash.open(path)` becomes `stillhash.Client(url)`.

What can be checked without the server is checked here, by the same checks, and the server's errors come back as the
same classes. Rows of features are sent as they are, float32.
"""

from __future__ import annotations

import base64
import json
import random
import time
from collections.abc import Iterable
from functools import cached_property
from itertools import islice
from typing import Any, Self
from urllib.parse import quote

import numpy as np

from stillhash.client.transport import FIRST, JSON, LONGEST, Calls, Safe
from stillhash.collection.filters import compile_filter
from stillhash.collection.reader import as_array
from stillhash.collection.types import (
    Answer,
    Explanation,
    Hit,
    Item,
    check_ids,
    check_labels,
    check_metadata,
    check_pictures,
    check_thumbs,
)
from stillhash.errors import Busy, InvalidInput, StillhashError, WrongType
from stillhash.numeric.validation import Floats, check_features, check_integer

NDJSON, RAW = "application/x-ndjson", "application/octet-stream"
LONG = 2**63 - 1
STREAMED = 1000  # rows of a stream in one request


class Client:
    """All verbs may be called from any thread. They are `Collection`'s, and so are their arguments and answers.

    url, key : of the server, as http://HOST:PORT; and a key, if it wants one.
    collection : the name of one; may be left out where the server has only one.
    timeout, retries : seconds that an answer may take, and how often a call is tried again.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        collection: str | None = None,
        timeout: float = 30.0,
        retries: int = 4,
    ) -> None:
        if collection is not None and not (isinstance(collection, str) and collection):
            raise InvalidInput(f"collection is {collection!r}; the name of one is wanted")
        self._named = collection
        self._calls = Calls(url, key, timeout, retries)

    def __repr__(self) -> str:
        return f"Client({self._calls.url!r}" + (f", collection={self._named!r})" if self._named else ")")

    def __len__(self) -> int:
        return self.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the connections. The server goes on."""
        self._calls.close()

    def health(self) -> dict[str, Any]:
        """Whether the server can answer, and how many items each collection has."""
        return self._calls.call("GET", "/v1/health")

    @cached_property
    def collection(self) -> str:
        """The name of the collection."""
        if self._named is None:
            names = self._calls.call("GET", "/v1/collections")["collections"]
            if len(names) != 1:
                raise InvalidInput(f"collection is not given, and the server has {', '.join(names)}")
            return str(names[0])
        return self._named

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return self.stats()

    @property
    def dim(self) -> int:
        return int(self._settings["dim"])

    @property
    def bits(self) -> int:
        return int(self._settings["bits"])

    # ---- items ----

    def add(
        self,
        ids: Any,
        features: Any,
        labels: Any = None,
        metadata: Any = None,
        *,
        pictures: Any = None,
        learn: bool = True,
    ) -> int:
        """Adds items, and says how many. When it returns they are on the server's disk."""
        return self._put("add", ids, features, labels, metadata, pictures, learn)

    def upsert(
        self,
        ids: Any,
        features: Any,
        labels: Any = None,
        metadata: Any = None,
        *,
        pictures: Any = None,
        learn: bool = True,
    ) -> int:
        """As `add`; items whose ids are there already are replaced."""
        return self._put("upsert", ids, features, labels, metadata, pictures, learn)

    def ingest(self, rows: Iterable[dict[str, Any]], *, replace: bool = False, learn: bool = True) -> int:
        """Adds items from a stream of any length, a dictionary each: id, features, and perhaps labels and metadata.

        If something is wrong, the error's `acknowledged` says how many rows from the beginning are on disk at least.
        """
        done, tries, numbered = 0, 0, enumerate(rows)
        lines: list[bytes] = []
        while True:
            try:
                lines = lines or [_line(row, number) for number, row in islice(numbered, STREAMED)]
                if not lines:
                    return done
                done += self._stream(lines, replace, learn)
                lines, tries = [], 0
            except StillhashError as error:
                kept = vars(error).get("acknowledged", 0)  # of these lines
                done, lines, tries = done + kept, lines[kept:], tries + 1
                vars(error)["acknowledged"] = done
                if not isinstance(error, Busy) or tries > self._calls.retries:
                    raise
                time.sleep(min(LONGEST, max(error.retry_after, FIRST * 2**tries)) + random.uniform(0, FIRST))

    def relabel(self, ids: Any, labels: Any, *, learn: bool = True) -> int:
        """Gives items other labels, and learns from them unless `learn` is false; says how many."""
        names = check_ids(ids)
        told = {"ids": names, "labels": check_labels(labels, len(names)), "learn": bool(learn)}
        return int(self._post("relabel", told, safe="unless kept")["count"])

    def delete(self, ids: Any) -> int:
        """Deletes these items, and says how many were there."""
        return int(self._post("delete", {"ids": check_ids(ids)})["count"])

    def get(self, ids: Any) -> list[Item | None]:
        """One entry for each id, None where there is no such item."""
        items = self._post("get", {"ids": check_ids(ids, distinct=False)})["items"]
        return [None if item is None else _item(item) for item in items]

    def picture(self, id: Any) -> bytes | None:
        """The small image that an item came with, if it did."""
        (name,) = check_ids([id])
        found = self._post("picture", {"id": name})["picture"]
        return None if found is None else base64.b64decode(found)

    def reconstruct(self, ids: Any) -> Floats:
        """Features (n, D) that stand for these items, to ask for more like them."""
        features = self._post("reconstruct", {"ids": check_ids(ids, distinct=False)})["features"]
        return np.array(features, np.float32).reshape(-1, self.dim)

    def sample(self, count: int = 1) -> list[Item]:
        """Some items at random, at most so many."""
        items = self._get(f"sample?count={check_integer(count, 'count', 1, 10_000)}")["items"]
        return [_item(item) for item in items]

    def count(self) -> int:
        return int(self._get("count")["count"])

    # ---- search ----

    def encode(self, asked: bytes | str) -> Floats:
        """The features (D,) of an image file's bytes, or of words, by the collection's encoder: what to search for."""
        if not isinstance(asked, (bytes, str)) or not asked:
            raise WrongType(f"asked is {asked!r}; the bytes of an image file, or words, are wanted")
        data, kind = (asked.encode(), "text/plain") if isinstance(asked, str) else (asked, "image/*")
        found = self._calls.call("POST", self._path("encode"), data, kind)["features"]
        return np.array(found[0], np.float32)

    def search(
        self, query: Any, k: int = 10, *, where: Any = None, version: int | None = None, explain: bool | int = False
    ) -> Any:
        """The k best items for a query (D,), as an Answer; for queries (m, D), a list of Answers."""
        told = {"k": check_integer(k, "k", 1)}
        other = explain if isinstance(explain, bool) else check_integer(explain, "version", 0, LONG)
        return self._asked("search", query, where, version, {**told, "explain": other})

    def range_search(
        self, query: Any, threshold: float, *, where: Any = None, version: int | None = None, most: int | None = None
    ) -> Any:
        """All items of at least this score, best first; otherwise as `search`. More than `most` of them are refused."""
        floor = np.asarray(threshold)
        if floor.dtype.kind not in "fiu" or floor.shape or np.isnan(floor):
            raise InvalidInput(f"threshold is {threshold!r}; a number is wanted")
        told = {"threshold": float(floor), "most": None if most is None else check_integer(most, "most", 1)}
        return self._asked("range_search", query, where, version, told)

    # ---- learning ----

    def fit(self, features: Any = None, labels: Any = None) -> None:
        """Fixes the hash functions now, for ever: by a sample, or by the rows that wait."""
        if features is None and labels is not None:
            raise InvalidInput("labels is given without features; rows that wait have their own labels")
        X = None if features is None else self._features(features, "features", least=2)
        told = {} if X is None else {"labels": check_labels(labels, len(X))}
        self._post("fit", told, X, safe="unless kept")

    def learn(self, features: Any, labels: Any) -> int:
        """Learns from labelled rows that are no items, and publishes a version: its number."""
        X = self._features(features, "features")
        return int(self._post("learn", {"labels": check_labels(labels, len(X))}, X, safe="unless kept")["version"])

    def feedback(self, query: Any, id: Any, relevant: Any, *, weight: float = 1.0, source: str = "") -> int:
        """Learns from a thumb up (`relevant`) or down on an item, or on a list of items, for a query (D,)."""
        asked = self._features(as_array(query)[None], "query")
        likes = check_thumbs(id, relevant, weight, source)
        told = {"id": [*likes], "relevant": [*likes.values()], "weight": float(weight), "source": source}
        return int(self._post("feedback", told, asked, safe="unless kept")["version"])

    def flush(self) -> int:
        """Learns the labelled items that wait for a full step; the version that is then current."""
        return int(self._post("flush", safe="unless kept")["version"])

    def versions(self) -> list[dict[str, Any]]:
        """The versions of the model that are kept, the latest last."""
        return list(self._get("versions")["versions"])

    def quality(self) -> dict[str, Any]:
        """How well it did over the stream: each chunk of labelled rows is asked before it is learnt."""
        return self._get("quality")

    def tag(self, version: int, name: str) -> None:
        """Names a version; one that has a name is kept."""
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise InvalidInput(f"name is {name!r}; a text that can be printed is wanted")
        self._post("tag", {"version": check_integer(version, "version", 1, LONG), "name": name})

    def rollback(self, version: int) -> int:
        """Publishes an earlier version anew, with the same answers to the byte, and says under which number."""
        told = {"version": check_integer(version, "version", 1, LONG)}
        return int(self._post("rollback", told, safe="unless kept")["version"])

    # ---- upkeep ----

    def stats(self) -> dict[str, Any]:
        """How it stands."""
        return self._get("stats")

    def verify(self) -> list[str]:
        """Looks at all that is stored and says what is wrong; an empty list means nothing is."""
        return list(self._post("verify")["problems"])

    def snapshot(self) -> dict[str, Any]:
        """Copies the collection, as it stands at one commit, to the server's folder of snapshots: name and bytes."""
        return self._post("snapshot", safe="unless kept")

    # ---- on a cluster ----

    def cluster(self) -> dict[str, Any]:
        """Where the codes are: nodes, shards and their actors. NotFound if they are with the server itself."""
        return self._get("cluster")

    def add_shard(self) -> int:
        """One more shard, with its share of the rows; its number."""
        return int(self._post("cluster/add_shard", safe="unless kept")["shard"])

    def drain(self, node: str) -> int:
        """Moves every actor off a node; how many moved."""
        return int(self._post("cluster/drain", {"node": str(node)})["moved"])

    # ---- inside ----

    def _put(self, verb: str, ids: Any, features: Any, labels: Any, metadata: Any, pictures: Any, learn: bool) -> int:
        names = check_ids(ids)
        X = self._features(features, "features")
        if len(X) != len(names):
            raise InvalidInput(f"features has {len(X)} rows for {len(names)} ids; one each is wanted")
        told = {"ids": names, "labels": check_labels(labels, len(X)), "learn": bool(learn)}
        images = check_pictures(pictures, len(X))
        if images is not None:
            told["pictures"] = [None if data is None else base64.b64encode(data).decode() for data in images]
        data = [text or "null" for text in check_metadata(metadata, len(X))]
        line = f'{json.dumps(told)[:-1]}, "metadata": [{", ".join(data)}]}}'
        return int(self._post(verb, line, X, safe="again" if verb == "upsert" else "unless kept")["count"])

    def _features(self, value: Any, name: str, least: int = 0) -> Floats:
        return check_features(value, name, columns=self.dim, whose="this collection", least=least)

    def _asked(self, verb: str, query: Any, where: Any, version: Any, told: dict[str, Any]) -> Any:
        array = as_array(query)
        Q = self._features(array[None] if array.ndim == 1 else array, "query")
        if where is not None:
            compile_filter(where)
        if version is not None:
            version = check_integer(version, "version", 0, LONG)
        answers = [_answer(one) for one in self._post(verb, {**told, "where": where, "version": version}, Q)["answers"]]
        return answers[0] if array.ndim == 1 else answers

    def _path(self, verb: str) -> str:
        return f"/v1/collections/{quote(self.collection, safe='')}/{verb}"

    def _get(self, verb: str) -> dict[str, Any]:
        return self._calls.call("GET", self._path(verb))

    def _post(self, verb: str, told: Any = None, rows: Floats | None = None, safe: Safe = "again") -> dict[str, Any]:
        """`told` is an object, or the text of one; rows go raw after it."""
        line = None if told is None else (told if isinstance(told, str) else json.dumps(told)).encode()
        if line is None or rows is None:
            return self._calls.call("POST", self._path(verb), line, JSON, safe)
        body = b"%b\n%b" % (line, rows.astype("<f4", copy=False).tobytes())
        return self._calls.call("POST", self._path(verb), body, RAW, safe)

    def _stream(self, lines: list[bytes], replace: bool, learn: bool) -> int:
        path = self._path(f"ingest?replace={bool(replace)}&learn={bool(learn)}".lower())
        return int(self._calls.call("POST", path, b"\n".join(lines), NDJSON, "unless reached")["count"])


def _line(row: Any, number: int) -> bytes:
    """A row of a stream as JSON."""
    if not isinstance(row, dict) or not {"id", "features"} <= row.keys() <= {"id", "features", "labels", "metadata"}:
        raise InvalidInput(
            f"row {number}: a dictionary with id and features, and perhaps labels and metadata, is wanted"
        )
    try:
        return json.dumps(row, allow_nan=False, default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"row {number} cannot be sent: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"{value!r} is nothing that JSON can hold")


def _item(told: dict[str, Any]) -> Item:
    return Item(told["id"], told["labels"], told["metadata"])


def _answer(told: dict[str, Any]) -> Answer:
    return Answer([_hit(hit) for hit in told["hits"]], told["version"], told["ranking"], told["missing"])


def _hit(told: dict[str, Any]) -> Hit:
    about = told.get("explanation")
    explanation = None if about is None else Explanation(**about)
    return Hit(told["id"], told["labels"], told["metadata"], told["score"], told["version"], explanation)
