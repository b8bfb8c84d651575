"""Commands on the shards of a served collection: each is a request to the server that writes it."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

from typer import Argument, Option, Typer

import stillhash
from stillhash.cli.cluster_tables import show_cluster
from stillhash.cli.options import CollectionName, ServerKey
from stillhash.cli.output import AsJson, answer, count_of

app = Typer()
LOCAL_SERVER = "http://127.0.0.1:8000"

Url = Annotated[str, Option(metavar="URL", help="Server that was started with --cluster.")]
NodeName = Annotated[str, Argument(metavar="NODE", help="Id of the node, or its beginning, from 'cluster status'.")]
ShardNumber = Annotated[int, Argument(metavar="N", min=0, help="Number of the shard, from 'cluster status'.")]
Reported = tuple[Any, Any]  # what --json prints, and what is printed otherwise


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


SERVER_OPTIONS = (
    _option("url", Url, LOCAL_SERVER),
    _option("key", ServerKey, None),
    _option("collection", CollectionName, None),
    _option("as_json", AsJson, False),
)


def server_command(request: Callable[..., Reported]) -> Callable[..., None]:
    """Make a command of a function of a client and its own arguments: with the options of the server, and --json."""

    def command(url: str, key: str | None, collection: str | None, as_json: bool, **arguments: Any) -> None:
        with stillhash.Client(url, key, collection=collection) as client:
            result, message = request(client, **arguments)
        answer(result, as_json, message)

    _, *own = inspect.signature(request).parameters.values()
    signature = inspect.Signature([*own, *SERVER_OPTIONS])
    command.__name__, command.__doc__ = request.__name__, request.__doc__
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return app.command()(command)


@server_command
def status(client: "stillhash.Client") -> Reported:
    """Show nodes, shards, actors (the processes of shards), moves with their progress, and problems.

    \b
    Examples:
      stillhash cluster status
      stillhash cluster status --url http://127.0.0.1:8080 --json
    """
    return client.cluster(), show_cluster


@server_command
def add_shard(client: "stillhash.Client") -> Reported:
    """Add a shard and move its share of the rows to it; searches continue meanwhile.

    \b
    Examples:
      stillhash cluster add-shard --collection films
    """
    number = client.add_shard()
    return {"shard": number}, f"shard {number} added"


@server_command
def remove_shard(client: "stillhash.Client", shard: ShardNumber) -> Reported:
    """Move the rows of a shard to the others, and stop it; searches continue meanwhile.

    \b
    Examples:
      stillhash cluster remove-shard 3
    """
    client.remove_shard(shard)
    return {"shard": shard}, f"shard {shard} removed"


@server_command
def drain(client: "stillhash.Client", node: NodeName) -> Reported:
    """Move all actors (the processes of shards) off a node, so that it can be removed.

    \b
    Examples:
      stillhash cluster drain 3f2a9c
    """
    moved = client.drain(_whole_id(client, node))
    return {"moved": moved}, f"{count_of(moved, 'actor')} moved"


@server_command
def undrain(client: "stillhash.Client", node: NodeName) -> Reported:
    """Use a drained node again, and move actors (the processes of shards) to it.

    \b
    Examples:
      stillhash cluster undrain 3f2a9c
    """
    moved = client.undrain(_whole_id(client, node))
    return {"moved": moved}, f"{count_of(moved, 'actor')} moved"


@server_command
def rebalance(client: "stillhash.Client") -> Reported:
    """Move actors between nodes, then segments between shards, until they are even.

    \b
    Examples:
      stillhash cluster rebalance
    """
    moved = client.rebalance()
    return {"moved": moved}, f"{moved:,} moved"


@server_command
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
