"""The command that serves collections over HTTP, with the page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

import stillhash
from stillhash.cli.collection import optional_module
from stillhash.errors import InvalidInput, StillhashError

app = typer.Typer()
PORT = 8000
OUTSIDE = 100.0  # requests a second of one client, if others than this machine can be one


@app.command(rich_help_panel="Collections: serving")
def serve(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Folders of collections.", show_default=False)],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; other than this machine's own wants keys.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes one that is free.")] = PORT,
    keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Lines 'read KEY' and 'write KEY'; also STILLHASH_READ_KEYS and STILLHASH_WRITE_KEYS.",
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Search only; another process may write.")] = False,
    encoder: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What describes images that are searched for, if not the collections' own."),
    ] = None,
    images: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the items' metadata 'image' are paths from.")
    ] = None,
    snapshots: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where snapshots may be made.")] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A Ray cluster that holds the codes: see 'stillhash cluster'.")
    ] = None,
    shards: Annotated[int, typer.Option(min=1, help="With --cluster: parts that the codes are cut into.")] = 4,
    replicas: Annotated[int, typer.Option(min=1, help="With --cluster: how often each part is held.")] = 1,
    partial: Annotated[
        bool, typer.Option("--partial", help="With --cluster: answer without parts that are away, and say their share.")
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="N",
            help=f"Requests a second of a client, 0 for no limit: {OUTSIDE:g} where other machines can be one, else 0.",
            show_default=False,
        ),
    ] = None,
    queue: Annotated[int, typer.Option(min=1, metavar="N", help="Writes that may wait.")] = 64,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long a request may wait.")] = 30.0,
    most_mib: Annotated[int, typer.Option(min=1, metavar="MIB", help="Largest body of a request.")] = 64,
    log: Annotated[str, typer.Option(metavar="FORMAT", help="json, text or off; text on a terminal.")] = "",
) -> None:
    """Serve collections over HTTP: the API under /v1, and a page that shows them learn."""
    server = optional_module("server", "server")
    named = {path.resolve().name: path for path in paths}
    if len(named) < len(paths):
        raise InvalidInput("two of the paths end in the same name, by which the server would know them")
    if log not in ("", "json", "text", "off"):
        raise InvalidInput(f"log is {log!r}; json, text or off is wanted")
    for name, folder in (("images", images), ("snapshots", snapshots)):
        if folder is not None and not folder.is_dir():
            raise InvalidInput(f"{name} is {str(folder)!r}; a folder that exists is wanted")
    settings = server.Settings(
        host=host,
        port=port,
        keys=server.keys_from(keys),
        rate=rate if rate is not None else 0.0 if server.is_loopback(host) else OUTSIDE,
        queue=queue,
        timeout=timeout,
        most_bytes=most_mib << 20,
        images=images and images.resolve(),
        snapshots=snapshots and snapshots.resolve(),
    )
    settings.check()
    server.log_to_stderr("warning" if log == "off" else "info", log if log in ("json", "text") else _kind())
    open_ones: dict[str, stillhash.Collection] = {}
    try:
        crews = _crews(named, cluster, shards, replicas, partial) if cluster is not None else {}
        for name, path in named.items():
            searcher = {"searcher": crews[name]} if name in crews else {}
            open_ones[name] = stillhash.open(path, read_only=read_only, **searcher)
        server.serve(open_ones, settings, announce, _eyes(open_ones, encoder), crews)
    finally:
        for collection in open_ones.values():
            collection.close()


def _crews(named: dict[str, Path], address: str, shards: int, replicas: int, partial: bool) -> dict[str, Any]:
    """What spreads the codes of each collection over a cluster; pieces of it lie beside the collection's folder."""
    spreading = optional_module("cluster", "cluster").HybridIndexFactory
    return {
        name: spreading(path.resolve().with_name(f"{name}.shards"), shards, replicas, address, partial=partial)
        for name, path in named.items()
    }


def _eyes(collections: dict[str, stillhash.Collection], encoder: str | None) -> dict[str, Any]:
    """What describes images, for those collections that have an encoder; one that cannot be opened is said."""
    found = {}
    for name, collection in collections.items():
        if encoder is not None or collection.encoder is not None:
            try:
                found[name] = optional_module("images", "images").open_query_encoder(collection, encoder)
            except StillhashError as error:
                told = f"{name} is served without image search: {error}"
                Console(stderr=True).print(Text(told, style="yellow"), soft_wrap=True)
    return found


def _kind() -> str:
    return "text" if sys.stderr.isatty() else "json"


def announce(address: str) -> None:
    """Says where the page is, as soon as it can be opened."""
    told = Text.assemble("The page is at ", (address, "bold underline"), "; Ctrl-C stops the server.")
    Console().print(told, soft_wrap=True)
    sys.stdout.flush()
