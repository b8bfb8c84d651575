"""Commands of clusters: a local cluster for trials, bulk ingest, and the shards of a served collection."""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, Typer

import stillhash
from stillhash.cli.completion import one_of
from stillhash.cli.defaults import ENCODER_PREFIXES, NEW_CODE_BITS
from stillhash.cli.options import BITS_HELP, CodesSeeLabels, CollectionName, ServerKey, optional_module
from stillhash.cli.output import AsJson, answer, progress_bar, status_line
from stillhash.errors import NotFound

if TYPE_CHECKING:
    from rich.console import Console

CLUSTER_GROUP_HELP = """Distribute collections over a Ray cluster, on this machine or on many.

\b
Examples:
  stillhash cluster up --nodes 2
  stillhash cluster status
"""
app = Typer(help=CLUSTER_GROUP_HELP, no_args_is_help=True)
CLUSTER_FILE = Path(".stillhash-cluster.json")  # which process runs the local cluster of this folder

Url = Annotated[str, Option(metavar="URL", help="Server that was started with --cluster.")]
LOCAL_SERVER = "http://127.0.0.1:8000"


@app.command()
def up(nodes: Annotated[int, Option(min=1, help="Nodes besides the head.")] = 4, as_json: AsJson = False) -> None:
    """Start a head and nodes on this machine, all on loopback, and run them until Ctrl-C or 'cluster down'.

    \b
    Examples:
      stillhash cluster up --nodes 2
    """
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with status_line(f"starting a head and {nodes} nodes"):
        local = optional_module("cluster", "cluster").LocalCluster(nodes)
    try:
        CLUSTER_FILE.write_text(json.dumps({"pid": os.getpid(), "address": local.address}), encoding="utf-8")
        message = f"The cluster is up: stillhash serve PATH --cluster {local.address}; Ctrl-C ends it."
        answer({"address": local.address, "nodes": nodes, "pid": os.getpid()}, as_json, message)
        sys.stdout.flush()
        stopped.wait()
    except KeyboardInterrupt:
        pass
    finally:
        CLUSTER_FILE.unlink(missing_ok=True)
        local.down()


@app.command()
def ingest(
    source: Annotated[Path, Argument(help="A folder of .npy or .parquet files, or of images.")],
    path: Annotated[Path, Argument(metavar="PATH", help="Collection to create.")],
    address: Annotated[str | None, Option(help="Ray cluster; without it, this machine alone.")] = None,
    bits: Annotated[int, Option(min=8, max=512, help=BITS_HELP)] = NEW_CODE_BITS,
    encoder: Annotated[
        str | None,
        Option(metavar="NAME", help="Encoder of images: classic, ...", autocompletion=one_of(*ENCODER_PREFIXES)),
    ] = None,
    sample: Annotated[int, Option(min=300, help="Rows that the hash functions are fitted on.")] = 3000,
    codes_see_labels: CodesSeeLabels = True,
    learn: Annotated[bool, Option("--learn/--no-learn", help="Learn from labels.")] = True,
    as_json: AsJson = False,
) -> None:
    """Encode and learn a data set on all machines, and publish it in one commit. An interrupted run continues.

    \b
    Examples:
      stillhash cluster ingest features films --bits 256
      stillhash cluster ingest photos gallery --encoder classic
    """
    cluster = optional_module("cluster", "cluster")
    with progress_bar("connecting", None) as update:

        def show_progress(done: int, parts: int, rows: int, speed: float) -> None:
            update(description=f"{rows:,} rows, {speed:,.0f} per second", completed=done, total=parts)

        options = {"bits": bits, "encoder": encoder, "sample": sample, "learn": learn, "progress": show_progress}
        options["codes_see_labels"] = codes_see_labels
        with cluster.connected(address), cluster.ingest(source, path, **options) as collection:
            items = collection.count()
    answer({"items": items, "path": str(path)}, as_json, f"{items:,} items in {path}")


@app.command()
def down(as_json: AsJson = False) -> None:
    """Stop the cluster that 'cluster up' runs in this folder.

    \b
    Examples:
      stillhash cluster down
    """
    try:
        running = json.loads(CLUSTER_FILE.read_text(encoding="utf-8"))
        os.kill(running["pid"], signal.SIGTERM)
    except (OSError, ValueError, KeyError):
        CLUSTER_FILE.unlink(missing_ok=True)
        raise NotFound("no cluster runs in this folder. Start one with 'stillhash cluster up'.") from None
    answer({"address": running["address"]}, as_json, f"the cluster at {running['address']} is stopping")


@app.command()
def status(
    url: Url = LOCAL_SERVER, key: ServerKey = None, collection: CollectionName = None, as_json: AsJson = False
) -> None:
    """Show nodes, shards and their actors, and whether all are up to date.

    \b
    Examples:
      stillhash cluster status
      stillhash cluster status --url http://127.0.0.1:8080 --json
    """
    with stillhash.Client(url, key, collection=collection) as client:
        answer(client.cluster(), as_json, _show)


@app.command()
def add_shard(
    url: Url = LOCAL_SERVER, key: ServerKey = None, collection: CollectionName = None, as_json: AsJson = False
) -> None:
    """Add a shard and move its share of the rows to it; searches continue meanwhile.

    \b
    Examples:
      stillhash cluster add-shard --collection films
    """
    with stillhash.Client(url, key, collection=collection) as client:
        number = client.add_shard()
    answer({"shard": number}, as_json, f"shard {number} added")


@app.command()
def drain(
    node: Annotated[str, Argument(metavar="NODE", help="Id of the node, from 'cluster status'.")],
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
    with stillhash.Client(url, key, collection=collection) as client:
        moved = client.drain(node)
    answer({"moved": moved}, as_json, f"{moved} actors moved")


def _show(status: dict[str, Any], console: "Console") -> None:
    from rich.text import Text

    for name, value in status.items():
        rows = value if isinstance(value, list) else [value]
        console.print(Text(name, style="bold"))
        for row in rows:
            line = "  ".join(f"{k} {v}" for k, v in row.items()) if isinstance(row, dict) else str(row)
            console.print(Text(f"  {line}"), soft_wrap=True)
