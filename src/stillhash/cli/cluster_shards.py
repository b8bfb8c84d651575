"""Commands on the shards of a served collection: they ask the server that writes it."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

from typer import Argument, Option, Typer

import stillhash
from stillhash.cli.cluster_tables import show_cluster
from stillhash.cli.options import CollectionName, ServerKey
from stillhash.cli.output import AsJson, UpdateProgress, answer, count_of, progress_bar
from stillhash.errors import StillhashError

app = Typer()
LOCAL_SERVER = "http://127.0.0.1:8000"
MOVE_TIMEOUT = 86_400.0  # seconds; the server ends a move that does not go on
WATCH_SECONDS = 0.5  # between two looks at the progress of a move

Url = Annotated[str, Option(metavar="URL", help="Server that was started with --cluster.")]
NodeName = Annotated[str, Argument(metavar="NODE", help="Id of the node, or its beginning, from 'cluster status'.")]


@app.command()
def status(
    url: Url = LOCAL_SERVER, key: ServerKey = None, collection: CollectionName = None, as_json: AsJson = False
) -> None:
    """Show nodes, shards, actors, moves with their progress, and problems.

    \b
    Examples:
      stillhash cluster status
      stillhash cluster status --url http://127.0.0.1:8080 --json
    """
    with stillhash.Client(url, key, collection=collection) as client:
        answer(client.cluster(), as_json, show_cluster)


@app.command()
def add_shard(
    url: Url = LOCAL_SERVER, key: ServerKey = None, collection: CollectionName = None, as_json: AsJson = False
) -> None:
    """Add a shard and move its share of the rows to it; searches continue meanwhile.

    \b
    Examples:
      stillhash cluster add-shard --collection films
    """
    with moving_client(url, key, collection) as client:
        number = client.add_shard()
    answer({"shard": number}, as_json, f"shard {number} added")


@app.command()
def remove_shard(
    shard: Annotated[int, Argument(metavar="N", min=0, help="Number of the shard, from 'cluster status'.")],
    url: Url = LOCAL_SERVER,
    key: ServerKey = None,
    collection: CollectionName = None,
    as_json: AsJson = False,
) -> None:
    """Give the rows of a shard to the others, and stop it; searches continue meanwhile.

    \b
    Examples:
      stillhash cluster remove-shard 3
    """
    with moving_client(url, key, collection) as client:
        client.remove_shard(shard)
    answer({"shard": shard}, as_json, f"shard {shard} removed")


@app.command()
def drain(
    node: NodeName,
    url: Url = LOCAL_SERVER,
    key: ServerKey = None,
    collection: CollectionName = None,
    as_json: AsJson = False,
) -> None:
    """Move all actors off a node, before it is removed.

    \b
    Examples:
      stillhash cluster drain 3f2a9c
    """
    with stillhash.Client(url, key, collection=collection, timeout=MOVE_TIMEOUT) as client:
        moved = client.drain(_whole_id(client, node))
    answer({"moved": moved}, as_json, f"{count_of(moved, 'actor')} moved")


@app.command()
def undrain(
    node: NodeName,
    url: Url = LOCAL_SERVER,
    key: ServerKey = None,
    collection: CollectionName = None,
    as_json: AsJson = False,
) -> None:
    """Use a drained node again, and move actors to it.

    \b
    Examples:
      stillhash cluster undrain 3f2a9c
    """
    with stillhash.Client(url, key, collection=collection, timeout=MOVE_TIMEOUT) as client:
        moved = client.undrain(_whole_id(client, node))
    answer({"moved": moved}, as_json, f"{count_of(moved, 'actor')} moved")


@app.command()
def rebalance(
    url: Url = LOCAL_SERVER, key: ServerKey = None, collection: CollectionName = None, as_json: AsJson = False
) -> None:
    """Replace lost actors, move actors between nodes, then segments between shards, until they are even.

    Segments move in steps, while searches and writes continue. Ctrl-C ends this command; the server goes on.

    \b
    Examples:
      stillhash cluster rebalance
    """
    with moving_client(url, key, collection) as client:
        moved = client.rebalance()
    answer({"moved": moved}, as_json, f"{moved:,} moved")


@app.command()
def compact(
    url: Url = LOCAL_SERVER, key: ServerKey = None, collection: CollectionName = None, as_json: AsJson = False
) -> None:
    """Join small segments and drop deleted rows, on all shards; searches and writes continue meanwhile.

    \b
    Examples:
      stillhash cluster compact --collection films
    """
    with stillhash.Client(url, key, collection=collection, timeout=MOVE_TIMEOUT) as client:
        result = client.compact_shards()
    answer(result, as_json, f"{count_of(result['files'], 'file')} fewer")


@contextmanager
def moving_client(url: str, key: str | None, collection: str | None) -> Iterator["stillhash.Client"]:
    """Yield a client for a call that moves segments; meanwhile, show their progress if stderr is a terminal."""
    ended = threading.Event()
    options = {"key": key, "collection": collection}
    with (
        stillhash.Client(url, **options, timeout=MOVE_TIMEOUT) as client,  # type: ignore[arg-type]
        stillhash.Client(url, **options) as watcher,  # type: ignore[arg-type]
        progress_bar("moving", None) as update,
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


def _whole_id(client: "stillhash.Client", node: str) -> str:
    """Return the one id that begins so; what fits none or several is for the server to refuse."""
    matches = [each for each in client.cluster().get("nodes", ()) if each.startswith(node)]
    return str(matches[0]) if len(matches) == 1 else node
