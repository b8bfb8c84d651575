"""The commands of clusters: a trial of several nodes on this machine, and what a served collection does on one."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

import stillhash
from stillhash.cli.collection import optional_module
from stillhash.cli.output import AsJson, answer, sentence
from stillhash.errors import NotFound

app = typer.Typer(help="Spread collections over a Ray cluster: a trial here, or the real thing.", no_args_is_help=True)
NOTE = Path(".stillhash-cluster.json")  # which process holds the trial of this folder

Url = Annotated[str, typer.Option(metavar="URL", help="Of a server that was started with --cluster.")]
Key = Annotated[str | None, typer.Option(envvar="STILLHASH_KEY", help="A key of that server, if it wants one.")]
Named = Annotated[str | None, typer.Option("--collection", metavar="NAME", help="Which one, if it has several.")]
HERE = "http://127.0.0.1:8000"
PARTS = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()


@app.command()
def up(nodes: Annotated[int, typer.Option(min=1, help="Nodes besides the head.")] = 4) -> None:
    """Start a head and nodes on this machine, all on loopback, and hold them until Ctrl-C or 'cluster down'."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    console = Console()
    with Console(stderr=True).status(f"starting a head and {nodes} nodes"):
        trial = optional_module("cluster", "cluster").LocalCluster(nodes)
    try:
        NOTE.write_text(json.dumps({"pid": os.getpid(), "address": trial.address}))
        told = f"The cluster is up: stillhash serve PATH --cluster {trial.address}; Ctrl-C ends it."
        console.print(Text(told), soft_wrap=True)
        stopped.wait()
    except KeyboardInterrupt:
        pass
    finally:
        NOTE.unlink(missing_ok=True)
        trial.down()


@app.command()
def ingest(
    source: Annotated[
        Path, typer.Argument(help="A folder of .npy or .parquet files, or of images.", show_default=False)
    ],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The collection to make.", show_default=False)],
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; this machine alone if not given.")] = None,
    bits: Annotated[int, typer.Option(min=8, max=512, help="Length of the codes.")] = 64,
    encoder: Annotated[str | None, typer.Option(metavar="NAME", help="What describes images: classic, ...")] = None,
    sample: Annotated[int, typer.Option(min=300, help="Rows that fix the hash functions.")] = 3000,
    learn: Annotated[bool, typer.Option("--learn/--no-learn", help="Whether labels are learnt from.")] = True,
    as_json: AsJson = False,
) -> None:
    """Encode and learn a whole dataset on all machines, and publish it in one commit. A run that stopped goes on."""
    cluster = optional_module("cluster", "cluster")
    console = Console(stderr=True)
    with Progress(*PARTS, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("connecting", total=None)

        def heard(done: int, parts: int, rows: int, pace: float) -> None:
            progress.update(task, description=f"{rows:,} rows, {pace:,.0f} a second", completed=done, total=parts)

        with (
            cluster.connected(address),
            cluster.ingest(
                source, path, bits=bits, encoder=encoder, sample=sample, learn=learn, progress=heard
            ) as made,
        ):
            items = made.count()
    answer({"items": items, "path": str(path)}, as_json, sentence(f"{items:,} items in {path}"))


@app.command()
def down() -> None:
    """End the trial that 'cluster up' holds in this folder."""
    try:
        note = json.loads(NOTE.read_text())
        os.kill(note["pid"], signal.SIGTERM)
    except (OSError, ValueError, KeyError):
        NOTE.unlink(missing_ok=True)
        raise NotFound("no cluster is up in this folder; 'stillhash cluster up' starts one") from None
    Console().print(Text(f"the cluster at {note['address']} is told to end"))


@app.command()
def status(url: Url = HERE, key: Key = None, collection: Named = None, as_json: AsJson = False) -> None:
    """Say what runs where: nodes, shards, their actors, and whether all are up to date."""
    with stillhash.Client(url, key, collection=collection) as client:
        answer(client.cluster(), as_json, _show)


@app.command()
def add_shard(url: Url = HERE, key: Key = None, collection: Named = None, as_json: AsJson = False) -> None:
    """Add a shard, and give it its share of the rows; searches go on meanwhile."""
    with stillhash.Client(url, key, collection=collection) as client:
        number = client.add_shard()
    answer({"shard": number}, as_json, sentence(f"shard {number} is there"))


@app.command()
def drain(
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="Its id, as 'cluster status' has it.", show_default=False)
    ],
    url: Url = HERE,
    key: Key = None,
    collection: Named = None,
    as_json: AsJson = False,
) -> None:
    """Move all actors off a node, before it is taken away."""
    with stillhash.Client(url, key, collection=collection) as client:
        moved = client.drain(node)
    answer({"moved": moved}, as_json, sentence(f"{moved} actors moved"))


def _show(told: dict[str, Any], console: Console) -> None:
    for name, value in told.items():
        rows = value if isinstance(value, list) else [value]
        console.print(Text(name, style="bold"))
        for row in rows:
            line = "  ".join(f"{k} {v}" for k, v in row.items()) if isinstance(row, dict) else str(row)
            console.print(Text(f"  {line}"), soft_wrap=True)
