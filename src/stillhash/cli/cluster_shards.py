"""Commands on the shards of a served collection: each is a request to the server that writes it."""

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

from typer import Argument, Typer

import stillhash
from stillhash.cli.cluster_tables import show_cluster
from stillhash.cli.options import CollectionName, ServerKey, ServerUrl
from stillhash.cli.output import AsJson, UpdateProgress, answer, count_of, progress_bar
from stillhash.errors import StillhashError

app = Typer()
LOCAL_SERVER = "http://127.0.0.1:8000"
LONG_TIMEOUT = 86_400.0  # seconds; the server ends what does not go on
WATCH_SECONDS = 0.5  # between two looks at the progress of a move

NodeName = Annotated[str, Argument(metavar="NODE", help="Id of the node, or its beginning, from 'cluster status'.")]
ShardNumber = Annotated[int, Argument(metavar="N", min=0, help="Number of the shard, from 'cluster status'.")]
Reported = tuple[Any, Any]  # what --json prints, and what is printed otherwise


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


SERVER_OPTIONS = (
    _option("url", ServerUrl, LOCAL_SERVER),
    _option("key", ServerKey, None),
    _option("collection", CollectionName, None),
    _option("as_json", AsJson, False),
)


def server_command(doing: str = "") -> Callable[[Callable[..., Reported]], Callable[..., None]]:
    """Make a command of a function of a client and its own arguments: with the options of the server, and --json.

    doing: what the server does meanwhile, if that may take long.
    """

    def decorate(request: Callable[..., Reported]) -> Callable[..., None]:
        def command(url: str, key: str | None, collection: str | None, as_json: bool, **arguments: Any) -> None:
            options: dict[str, Any] = {"url": url, "key": key, "collection": collection}
            with patient_client(doing, options) if doing else stillhash.Client(**options) as client:
                result, message = request(client, **arguments)
            answer(result, as_json, message)

        _, *own = inspect.signature(request).parameters.values()
        signature = inspect.Signature([*own, *SERVER_OPTIONS])
        command.__name__, command.__doc__ = request.__name__, request.__doc__
        command.__signature__ = signature  # type: ignore[attr-defined]
        command.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
        return app.command()(command)

    return decorate


@contextmanager
def patient_client(doing: str, options: dict[str, Any]) -> Iterator["stillhash.Client"]:
    """Yield a client that waits long; meanwhile, show the progress of moved segments if stderr is a terminal."""
    ended = threading.Event()
    with (
        stillhash.Client(**options, timeout=LONG_TIMEOUT) as client,
        stillhash.Client(**options) as watcher,
        progress_bar(doing, None) as update,
    ):
        thread = threading.Thread(target=_watch_moves, args=(watcher, update, ended), daemon=True)
        if sys.stderr.isatty():
            thread.start()
        try:
            yield client
        finally:
            ended.set()
            if thread.ident is not None:
                thread.join()


def _watch_moves(client: "stillhash.Client", update: UpdateProgress, ended: threading.Event) -> None:
    while not ended.wait(WATCH_SECONDS):
        with suppress(StillhashError):  # the call itself reports what is wrong
            moves = client.cluster().get("segment_moves")
            if moves is not None:
                segments = f"{moves['segments']:,} of {moves['of_segments']:,} segments moved, rows:"
                update(description=segments, completed=moves["rows"], total=moves["of_rows"])


@server_command()
def status(client: "stillhash.Client") -> Reported:
    """Show nodes, shards, actors (the processes of shards), moves with their progress, and problems.

    \b
    Examples:
      stillhash cluster status
      stillhash cluster status --url http://127.0.0.1:8080 --json
    """
    return client.cluster(), show_cluster


@server_command("moving")
def add_shard(client: "stillhash.Client") -> Reported:
    """Add a shard and move its share of the rows to it; searches continue meanwhile.

    \b
    Examples:
      stillhash cluster add-shard --collection films
    """
    number = client.add_shard()
    return {"shard": number}, f"shard {number} added"


@server_command("moving")
def remove_shard(client: "stillhash.Client", shard: ShardNumber) -> Reported:
    """Move the rows of a shard to the others, and stop it; searches continue meanwhile.

    \b
    Examples:
      stillhash cluster remove-shard 3
    """
    client.remove_shard(shard)
    return {"shard": shard}, f"shard {shard} removed"


@server_command("moving")
def drain(client: "stillhash.Client", node: NodeName) -> Reported:
    """Move all actors (the processes of shards) off a node, so that it can be removed.

    \b
    Examples:
      stillhash cluster drain 3f2a9c
    """
    moved = client.drain(_whole_id(client, node))
    return {"moved": moved}, f"{count_of(moved, 'actor')} moved"


@server_command("moving")
def undrain(client: "stillhash.Client", node: NodeName) -> Reported:
    """Use a drained node again, and move actors (the processes of shards) to it.

    \b
    Examples:
      stillhash cluster undrain 3f2a9c
    """
    moved = client.undrain(_whole_id(client, node))
    return {"moved": moved}, f"{count_of(moved, 'actor')} moved"


@server_command("moving")
def rebalance(client: "stillhash.Client") -> Reported:
    """Move actors between nodes, then segments between shards, until they are even.

    \b
    Examples:
      stillhash cluster rebalance
    """
    moved = client.rebalance()
    return {"moved": moved}, f"{moved:,} moved"


@server_command("compacting")
def compact(client: "stillhash.Client") -> Reported:
    """Join small segments and drop deleted rows, on all shards; searches and writes continue meanwhile.

    \b
    Examples:
      stillhash cluster compact --collection films
    """
    result = client.compact_shards()
    return result, f"{count_of(result['files'], 'file')} fewer"


def _whole_id(client: "stillhash.Client", node: str) -> str:
    """Return the one id that begins so; the server refuses what fits none or several."""
    matches = [each for each in client.cluster().get("nodes", ()) if each.startswith(node)]
    return str(matches[0]) if len(matches) == 1 else node
