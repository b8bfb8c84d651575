"""A served collection with the verbs of a local one: `stillhash.open(path)` becomes `stillhash.Client(url)`.

The verbs are in `verbs_facets`, `verbs_items`, `verbs_labels`, `verbs_lexical`, `verbs_learning`, `verbs_probe` and
`verbs_server`, as coroutines, which `blocking` runs.
"""

import functools
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from stillhash.client.requests import CollectionRequests
from stillhash.client.transport import MAX_POOLED, MAX_RESPONSE_BYTES, ConnectionFailed, HttpResponse, tls_context
from stillhash.client.verbs_facets import FacetVerbs
from stillhash.client.verbs_items import ItemVerbs, Rows
from stillhash.client.verbs_labels import LabelVerbs
from stillhash.client.verbs_learning import LearningVerbs
from stillhash.client.verbs_lexical import LexicalVerbs
from stillhash.client.verbs_probe import ProbeVerbs
from stillhash.client.verbs_server import ServerVerbs
from stillhash.collection.types import Filter, Id, Item
from stillhash.errors import MissingExtra, WrongType

try:
    import urllib3
    from urllib3.exceptions import ConnectTimeoutError, HTTPError, LocationValueError, SSLError
except ImportError as error:
    raise MissingExtra("The client needs urllib3: pip install 'stillhash[client]'") from error


class BlockingConnections:
    """Coroutines that never suspend: any thread can run them without an event loop."""

    def __init__(self, url: str, timeout: float, ca: str | os.PathLike[str] | None) -> None:
        tls = None if ca is None and not url.startswith("https:") else tls_context(ca)
        self._pool = urllib3.PoolManager(maxsize=MAX_POOLED, timeout=timeout, ssl_context=tls, retries=False)

    async def send(self, method: str, url: str, body: bytes | None, headers: dict[str, str]) -> HttpResponse:
        try:
            response = self._pool.request(
                method, url, body=body, headers=headers, redirect=False, preload_content=False
            )
            try:
                data = response.read(MAX_RESPONSE_BYTES + 1, decode_content=True)
            except BaseException:
                response.close()
                raise
            if len(data) > MAX_RESPONSE_BYTES:
                response.close()
                raise ConnectionFailed(f"more than {MAX_RESPONSE_BYTES} bytes came", sent=True, permanent=True)
            response.release_conn()
        except (ConnectTimeoutError, LocationValueError) as error:  # which includes refused connections
            raise ConnectionFailed(error, sent=False, permanent=isinstance(error, LocationValueError)) from error
        except HTTPError as error:
            raise ConnectionFailed(error, sent=True, permanent=isinstance(error, SSLError)) from error
        return HttpResponse(response.status, response.headers.get("retry-after", ""), data)

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)

    async def close(self) -> None:
        self._pool.clear()


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def run(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine that never suspends, because its connections block, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("expected a coroutine that never suspends")


def blocking(
    verb: Callable[Concatenate[Any, _Arguments], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[Any, _Arguments], _Result]:
    """Return a method that runs a verb to its end."""

    @functools.wraps(verb)
    def method(client: Any, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        return run(verb(client, *args, **kwargs))

    return method


class Client(CollectionRequests):
    """Call a served collection. The verbs are `Collection`'s, with its arguments and results; any thread may call them.

    url, key : of the server, as http://HOST:PORT or https://HOST:PORT; and a key, if it needs one.
    collection : its name; optional if the server has only one.
    timeout, retries : seconds until a request fails, and how often it is sent again.
    ca : file of certificates in PEM to trust, if the server's is not of an authority that the system trusts.
    """

    _new_connections = BlockingConnections

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.count()

    def close(self) -> None:
        """Close the connections. The server goes on."""
        run(self._transport.close())

    @property
    def collection(self) -> str:
        """The name of the collection."""
        return run(self._get_collection())

    @property
    def dim(self) -> int:
        """The length of a vector."""
        return run(self._get_setting("dim"))

    @property
    def bits(self) -> int:
        """The length of a code."""
        return run(self._get_setting("bits"))

    def ingest(self, rows: Rows, *, replace: bool = False, learn: bool = True) -> int:
        if not hasattr(rows, "__iter__"):
            raise WrongType(f"rows: expected an iterable of dictionaries, got {type(rows).__name__}")
        return run(ItemVerbs.ingest(self, rows, replace=replace, learn=learn))  # type: ignore[arg-type]

    ingest.__doc__ = ItemVerbs.ingest.__doc__

    def items(
        self, where: Filter | None = None, *, after: Id | None = None, limit: int | None = None, batch: int = 1000
    ) -> Iterator[Item]:
        items = ItemVerbs.items(self, where, after=after, limit=limit, batch=batch)  # type: ignore[arg-type]
        with suppress(StopAsyncIteration):
            while True:
                yield run(anext(items))  # type: ignore[arg-type]

    items.__doc__ = ItemVerbs.items.__doc__

    add = blocking(ItemVerbs.add)
    upsert = blocking(ItemVerbs.upsert)
    relabel = blocking(ItemVerbs.relabel)
    add_labels = blocking(LabelVerbs.add_labels)
    remove_labels = blocking(LabelVerbs.remove_labels)
    update_metadata = blocking(ItemVerbs.update_metadata)
    delete = blocking(ItemVerbs.delete)
    get = blocking(ItemVerbs.get)
    picture = blocking(ItemVerbs.picture)
    reconstruct = blocking(ItemVerbs.reconstruct)
    sample = blocking(ItemVerbs.sample)
    count = blocking(ItemVerbs.count)
    ids = blocking(ItemVerbs.ids)
    list_items = blocking(ItemVerbs.list_items)
    list_coded_items = blocking(ItemVerbs.list_coded_items)
    encode = blocking(ItemVerbs.encode)
    search = blocking(ItemVerbs.search)
    range_search = blocking(ItemVerbs.range_search)
    facets = blocking(FacetVerbs.facets)
    suggest = blocking(FacetVerbs.suggest)
    lexical_search = blocking(LexicalVerbs.lexical_search)
    hybrid_search = blocking(LexicalVerbs.hybrid_search)

    fit = blocking(LearningVerbs.fit)
    learn = blocking(LearningVerbs.learn)
    feedback = blocking(LearningVerbs.feedback)
    feedback_many = blocking(LearningVerbs.feedback_many)
    votes = blocking(LearningVerbs.votes)
    flush = blocking(LearningVerbs.flush)
    versions = blocking(LearningVerbs.versions)
    quality = blocking(LearningVerbs.quality)
    probe = blocking(ProbeVerbs.probe)
    compare_versions = blocking(ProbeVerbs.compare_versions)
    doubtful_labels = blocking(LearningVerbs.doubtful_labels)
    suggest_labels = blocking(LearningVerbs.suggest_labels)
    tag = blocking(LearningVerbs.tag)
    rollback = blocking(LearningVerbs.rollback)

    health = blocking(ServerVerbs.health)
    ready = blocking(ServerVerbs.ready)
    collections = blocking(ServerVerbs.collections)
    create_collection = blocking(ServerVerbs.create_collection)
    delete_collection = blocking(ServerVerbs.delete_collection)
    stats = blocking(ServerVerbs.stats)
    verify = blocking(ServerVerbs.verify)
    compact = blocking(ServerVerbs.compact)
    build_rescoring = blocking(ServerVerbs.build_rescoring)
    audit = blocking(ServerVerbs.audit)
    snapshot = blocking(ServerVerbs.snapshot)
    forget = blocking(ServerVerbs.forget)
    cluster = blocking(ServerVerbs.cluster)
    add_shard = blocking(ServerVerbs.add_shard)
    drain = blocking(ServerVerbs.drain)
    undrain = blocking(ServerVerbs.undrain)
    remove_shard = blocking(ServerVerbs.remove_shard)
    rebalance = blocking(ServerVerbs.rebalance)
    compact_shards = blocking(ServerVerbs.compact_shards)
