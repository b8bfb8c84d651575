"""Commands of clusters: a local cluster for trials, bulk ingest, and the shards of a served collection."""

import functools
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from stillhash.cli import cluster_shards
from stillhash.cli.completion import ENCODER_PREFIXES, NEW_CODE_BITS, PORT, one_of
from stillhash.cli.options import BITS_HELP, RESCORE_HELP, CodesSeeLabels, optional_module
from stillhash.cli.output import AsJson, answer, count_of, progress_bar, status_line
from stillhash.cli.serve import (
    AddressAsJson,
    Host,
    KeyFile,
    LogFormat,
    Port,
    RequestRate,
    announce,
    log_requests,
    rate_limit,
)
from stillhash.errors import NotFound

CLUSTER_GROUP_HELP = """Distribute collections over a Ray cluster, on this machine or on many.

'stillhash serve PATH --cluster ADDRESS' starts the shards of a collection; these commands show and change them.

\b
Examples:
  stillhash cluster up --nodes 2
  stillhash cluster status
"""
app = Typer(help=CLUSTER_GROUP_HELP, no_args_is_help=True)
app.add_typer(cluster_shards.app)
CLUSTER_FILE = Path(".stillhash-cluster.json")  # which process runs the local cluster of this folder

CPUS_HELP = "CPUs that Ray counts for each node; all nodes share those of this machine."
REDIS_HELP = "Redis server that stores the state of the head, for the next one; such as 127.0.0.1:6379."
FRONT_NAME_HELP = "Name of the collection in URLs; default: the last part of STORAGE."
WRITER_HELP = "URL of the server that writes the collection, for requests that change it; default: the published one."
COPIES_HELP = "Folder for copies of files, if STORAGE is a URL."
PARTIAL_HELP = "Answer even if shards are missing, and report which share of the rows that is."


@app.command()
def up(
    nodes: Annotated[int, Option(min=1, help="Nodes to start besides the head.")] = 4,
    cpus: Annotated[int, Option(min=1, help=CPUS_HELP)] = 1,
    port: Annotated[int, Option(min=0, max=65535, help="Port of the head; 0 picks a free one.")] = 0,
    redis: Annotated[str | None, Option(metavar="ADDRESS", help=REDIS_HELP)] = None,
    as_json: AsJson = False,
) -> None:
    """Start a Ray cluster on this machine, on loopback addresses, and run it until Ctrl-C or 'cluster down'.

    \b
    Examples:
      stillhash cluster up --nodes 2
      stillhash cluster up --port 6379
    """
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with status_line(f"starting a head and {nodes} nodes"):
        local = optional_module("cluster", "cluster").LocalCluster(nodes, cpus=cpus, port=port, redis=redis)
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
    source: Annotated[Path, Argument(metavar="SOURCE", help="A folder of .npy or .parquet files, or of images.")],
    path: Annotated[Path, Argument(metavar="PATH", help="Collection to create.")],
    address: Annotated[str | None, Option(help="Address of a Ray cluster; default: this machine alone.")] = None,
    bits: Annotated[int, Option(min=8, max=512, help=BITS_HELP)] = NEW_CODE_BITS,
    encoder: Annotated[
        str | None,
        Option(metavar="NAME", help="Encoder of images: classic, ...", autocompletion=one_of(*ENCODER_PREFIXES)),
    ] = None,
    sample: Annotated[int, Option(min=300, help="Rows that the hash functions are fitted on.")] = 3000,
    codes_see_labels: CodesSeeLabels = True,
    learn: Annotated[bool, Option("--learn/--no-learn", help="Learn from labels.")] = True,
    rescore_bits: Annotated[int | None, Option(help=RESCORE_HELP)] = None,
    as_json: AsJson = False,
) -> None:
    """Encode a data set on all nodes, learn from its labels, and create a collection of it, in one commit.

    After an interruption, the same command continues.

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
        options |= {"codes_see_labels": codes_see_labels, "rescore_bits": rescore_bits}
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
def stop(
    storage: Annotated[str, Argument(metavar="STORAGE", help="Folder or URL that the shards are stored at.")],
    address: Annotated[str, Option(help="Address of the Ray cluster that they run on.")],
    as_json: AsJson = False,
) -> None:
    """Stop shards that keep running after their server has ended. Stop the server first; no data is deleted.

    \b
    Examples:
      stillhash cluster stop films.shards --address 127.0.0.2:6379
    """
    control, files = optional_module("cluster.controller", "cluster"), optional_module("cluster.storage", "cluster")
    controller = control.Controller(files.Storage(storage, create=False), address=address)
    stopped = len(controller.status()["actors"])
    controller.close(stop=True)
    answer({"stopped": stopped}, as_json, f"{count_of(stopped, 'actor')} stopped")


@app.command()
def front(
    storage: Annotated[str, Argument(metavar="STORAGE", help="Folder or URL that a server publishes to.")],
    name: Annotated[str | None, Option(metavar="NAME", help=FRONT_NAME_HELP)] = None,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    keys: KeyFile = None,
    writer: Annotated[str | None, Option(metavar="URL", help=WRITER_HELP)] = None,
    deadline: Annotated[float, Option(min=0.1, metavar="SECONDS", help="How long shards may take to reply.")] = 10.0,
    partial: Annotated[bool, Option("--partial", help=PARTIAL_HELP)] = False,
    cache: Annotated[Path | None, Option(metavar="FOLDER", help=COPIES_HELP)] = None,
    rate: RequestRate = None,
    log: LogFormat = "",
    as_json: AddressAsJson = False,
) -> None:
    """Serve a published collection from its shards; any number of these fronts can run, on any machine.

    \b
    Examples:
      stillhash cluster front films.shards --port 8001
      stillhash cluster front s3://bucket/films --host 0.0.0.0 --keys keys.json
    """
    server = optional_module("server", "server")
    settings = server.Settings(
        host=host, port=port, keys=server.load_keys(keys), rate_limit=rate_limit(server, host, rate)
    )
    settings.validate()
    title = name or storage.rstrip("/").rpartition("/")[2].removesuffix(".shards") or "collection"
    options = {"deadline": deadline, "partial": partial, "writer": writer, "cache": cache}
    serve_front = optional_module("cli.front", "cluster,server").serve_front
    with log_requests(server, log):
        serve_front(storage, title, settings, functools.partial(announce, as_json=as_json), **options)
