"""A served collection with the verbs of a local one: `stillhash.open(path)` becomes `stillhash.Client(url)`.

Features and labels are converted here. The server validates the rest, and its errors are raised as the same classes.
"""

import base64
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Unpack, overload
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from stillhash.client.requests import CollectionRequests
from stillhash.client.transport import row_to_json, to_answer, to_json
from stillhash.collection.actor import check_actor
from stillhash.collection.types import (
    Answer,
    AuditEntry,
    DoubtfulItem,
    Filter,
    Id,
    Item,
    ItemIds,
    RangeOptions,
    SearchOptions,
    Vector,
    Vectors,
    VersionName,
    Vote,
)
from stillhash.collection.validation import check_ids, check_label_lists, check_metadata, check_pictures, check_query
from stillhash.errors import WrongType
from stillhash.numeric.validation import Floats, check_features, check_integer


class Client(CollectionRequests):
    """Call a served collection. The verbs are `Collection`'s, with its arguments and results; any thread may call them.

    url, key : of the server, as http://HOST:PORT or https://HOST:PORT; and a key, if it needs one.
    collection : its name; optional if the server has only one.
    timeout, retries : seconds until a request fails, and how often it is sent again.
    ca : file of certificates in PEM to trust, if the server's is not of an authority that the system trusts.
    """

    def __len__(self) -> int:
        return self.count()

    @cached_property
    def dim(self) -> int:
        return int(self.stats()["dim"])

    @cached_property
    def bits(self) -> int:
        return int(self.stats()["bits"])

    def add(
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
        return self._put("add", ids, features, labels, metadata, pictures, learn)

    def upsert(
        self,
        ids: ItemIds,
        features: Any,
        labels: Any = None,
        metadata: Any = None,
        *,
        pictures: Any = None,
        learn: bool = True,
    ) -> int:
        """Add items, and replace those whose ids exist."""
        return self._put("upsert", ids, features, labels, metadata, pictures, learn)

    def ingest(self, rows: Iterable[dict[str, Any]], *, replace: bool = False, learn: bool = True) -> int:
        """Add items from a stream of any length: dictionaries with id, features, and optional labels and metadata.

        If a row is invalid, the error's `acknowledged` counts the first rows that are certainly on disk.
        """
        path = self._path(f"ingest?replace={bool(replace)}&learn={bool(learn)}".lower())
        return self._transport.post_lines(path, (row_to_json(row, number) for number, row in enumerate(rows)))

    def relabel(self, ids: ItemIds, labels: Any, *, learn: bool = True) -> int:
        """Replace the labels of items, learn from them unless `learn` is false, and return how many."""
        names = check_ids(ids)
        body = {"ids": names, "labels": check_label_lists(labels, len(names)), "learn": bool(learn)}
        return int(self._post("relabel", body, retry="not stored")["count"])

    def delete(self, ids: ItemIds) -> int:
        """Delete items, and return how many existed."""
        return int(self._post("delete", {"ids": ids})["count"])

    def get(self, ids: ItemIds) -> list[Item | None]:
        """Return one item for each id, None where there is none."""
        return [None if item is None else Item(**item) for item in self._post("get", {"ids": ids})["items"]]

    def picture(self, id: Id) -> bytes | None:
        """Return the small image that was added with an item, if any."""
        picture = self._post("picture", {"id": id})["picture"]
        return None if picture is None else base64.b64decode(picture)

    def reconstruct(self, ids: ItemIds) -> Floats:
        """Return features (n, D) rebuilt from the codes of items, to search for similar ones."""
        return np.array(self._post("reconstruct", {"ids": ids})["features"], np.float32).reshape(-1, self.dim)

    def sample(self, count: int = 1) -> list[Item]:
        """Return at most `count` random items."""
        return [Item(**item) for item in self._get(f"sample?count={check_integer(count, 'count', 1)}")["items"]]

    def count(self, where: Filter | None = None) -> int:
        """Return the number of items, or of those that meet a condition."""
        return int((self._get("count") if where is None else self._post("count", {"where": where}))["count"])

    def ids(self, where: Filter | None = None, *, after: Id | None = None, limit: int = 1000) -> list[Id]:
        """Return the ids of items, in order, at most `limit`; `after` is the last one of the list before."""
        return list(self._post("ids", {"where": where, "after": after, "limit": limit})["ids"])

    def encode(self, query: bytes | str) -> Floats:
        """Return the features (D,) of an image file's bytes, or of a text, by the collection's encoder."""
        if not isinstance(query, (bytes, str)) or not query:
            raise WrongType(f"query: expected the bytes of an image file, or a text, got {query!r}")
        data, kind = (query.encode(), "text/plain") if isinstance(query, str) else (query, "image/*")
        return np.array(self._transport.request("POST", self._path("encode"), data, kind)["features"][0], np.float32)

    @overload
    def search(self, query: Vector, k: int = ..., **options: Unpack[SearchOptions]) -> Answer: ...
    @overload
    def search(self, query: Vectors, k: int = ..., **options: Unpack[SearchOptions]) -> list[Answer]: ...
    @overload  # the type of an array does not say how many dimensions it has
    def search(self, query: NDArray[Any], k: int = ..., **options: Unpack[SearchOptions]) -> Any: ...
    def search(
        self,
        query: Vector | Vectors | NDArray[Any],
        k: int = 10,
        *,
        where: Filter | None = None,
        version: VersionName | None = None,
        balance: float | None = None,
        explain: bool | int = False,
    ) -> Answer | list[Answer]:
        """Return the k best items for a query (D,), as an Answer; for queries (m, D), a list of Answers."""
        options = {"where": where, "version": version, "balance": balance, "explain": explain}
        return self._search("search", query, {"k": k, **options})

    @overload
    def range_search(self, query: Vector, threshold: float, **options: Unpack[RangeOptions]) -> Answer: ...
    @overload
    def range_search(self, query: Vectors, threshold: float, **options: Unpack[RangeOptions]) -> list[Answer]: ...
    @overload
    def range_search(self, query: NDArray[Any], threshold: float, **options: Unpack[RangeOptions]) -> Any: ...
    def range_search(
        self,
        query: Vector | Vectors | NDArray[Any],
        threshold: float,
        *,
        where: Filter | None = None,
        version: VersionName | None = None,
        most: int | None = None,
    ) -> Answer | list[Answer]:
        """Return all items of at least this score, best first; more than `most` of them are an error."""
        options = {"where": where, "version": version, "most": most}
        return self._search("range_search", query, {"threshold": threshold, **options})

    def fit(self, features: Any = None, labels: Any = None) -> None:
        """Fit the hash functions now, permanently: by a sample, or by the rows that await codes."""
        X = None if features is None else self._features(features)
        self._post("fit", {"labels": labels if X is None else check_label_lists(labels, len(X))}, X, "not stored")

    def learn(self, features: Any, labels: Any) -> int:
        """Learn from labelled rows that are not stored as items; return the new version."""
        X = self._features(features)
        return int(self._post("learn", {"labels": check_label_lists(labels, len(X))}, X, "not stored")["version"])

    def feedback(
        self, query: Vector | NDArray[Any], id: Id | ItemIds, vote: Any, *, source: str = "", position: Any = None
    ) -> int:
        """Vote on an item, or on a list of items, as hits of a query (D,); return the new version."""
        body = {"id": id, "vote": vote, "source": source, "position": position}
        Q, _ = check_query(query, self.dim)
        return int(self._post("feedback", body, Q, "not stored")["version"])

    def feedback_many(self, votes: Iterable[Vote | dict[str, Any]]) -> int:
        """Send votes on any number of queries in one request; return the new version. On an error nothing changes."""
        return self._transport.post_votes(self._path("feedback_many"), votes)

    def flush(self) -> int:
        """Learn the labelled items that wait for a full chunk; return the current version."""
        return int(self._post("flush", retry="not stored")["version"])

    def versions(self) -> list[dict[str, Any]]:
        """List the kept versions of the model, the latest last."""
        return list(self._get("versions")["versions"])

    def quality(self) -> dict[str, Any]:
        """Return the quality on each step of labelled rows, measured before it was learnt."""
        return self._get("quality")

    def doubtful_labels(self, count: int = 100) -> list[DoubtfulItem]:
        """Return the items whose labels are least plausible, at most `count`, the most doubtful first."""
        verb = f"doubtful_labels?count={check_integer(count, 'count', 1)}"
        return [DoubtfulItem(**item) for item in self._get(verb)["items"]]

    def audit(self, after: int | None = None, limit: int = 100, *, who: str | None = None) -> list[AuditEntry]:
        """Return the entries of the audit log, the latest last: the latest, or the first past the number `after`."""
        options: dict[str, Any] = {"limit": check_integer(limit, "limit", 1)}
        options |= {} if after is None else {"after": check_integer(after, "after", 0)}
        verb = f"audit?{urlencode(options | ({} if who is None else {'who': check_actor(who, 'who')}))}"
        return [AuditEntry(**entry) for entry in self._get(verb)["entries"]]

    def tag(self, version: int, name: str) -> None:
        """Name a version, which keeps it permanently."""
        self._post("tag", {"version": version, "name": name})

    def rollback(self, version: int) -> int:
        """Restore an earlier version with identical results; return its new number."""
        return int(self._post("rollback", {"version": version}, retry="not stored")["version"])

    def stats(self) -> dict[str, Any]:
        """Return settings, counts and disk use."""
        return self._get("stats")

    def verify(self) -> list[str]:
        """Check everything that is stored, and return the problems; an empty list means none."""
        return list(self._post("verify")["problems"])

    def snapshot(self) -> dict[str, Any]:
        """Copy the collection at one commit to the server's folder of snapshots; return name and bytes."""
        return self._post("snapshot", retry="not stored")

    def cluster(self) -> dict[str, Any]:
        """Return nodes, shards and their actors; NotFound if the collection is not on a cluster."""
        return self._get("cluster")

    def add_shard(self) -> int:
        """Add a shard, and move its share of the rows to it; return its number."""
        return int(self._post("cluster/add_shard", retry="not stored")["shard"])

    def drain(self, node: str) -> int:
        """Move every actor off a node; return how many moved."""
        return int(self._post("cluster/drain", {"node": str(node)})["moved"])

    def _put(
        self, verb: str, ids: ItemIds, features: Any, labels: Any, metadata: Any, pictures: Any, learn: bool
    ) -> int:
        X = self._features(features)
        body: dict[str, Any] = {"ids": ids, "labels": check_label_lists(labels, len(X)), "learn": bool(learn)}
        if (images := check_pictures(pictures, len(X))) is not None:
            body["pictures"] = [None if data is None else base64.b64encode(data).decode() for data in images]
        texts = ", ".join(text or "null" for text in check_metadata(metadata, len(X)))  # JSON already
        line = f'{to_json(body)[:-1]}, "metadata": [{texts}]}}'
        return int(self._post(verb, line, X, "always" if verb == "upsert" else "not stored")["count"])

    def _features(self, value: Any) -> Floats:
        return check_features(value, "features", columns=self.dim, whose="this collection")

    def _search(self, verb: str, query: Any, body: dict[str, Any]) -> Answer | list[Answer]:
        Q, single = check_query(query, self.dim)
        answers = [to_answer(answer) for answer in self._post(verb, body, Q)["answers"]]
        return answers[0] if single else answers
