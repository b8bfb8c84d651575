"""The commands of images: a folder into a collection, and a bridge to another encoder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

import stillhash
from stillhash.cli.collection import At, opened, optional_module
from stillhash.cli.output import AsJson, answer, sentence
from stillhash.errors import InvalidInput
from stillhash.io import IMAGE_SUFFIXES, list_images, read_features

app = typer.Typer()
IMAGES = "Collections: images"
MANY = 20  # broken files that are named
FEWEST, MOST = 300, 3000  # images that the hash functions are fitted on
ENCODER = "classic, onnx:PATH[:OUTPUT], timm:NAME, clip:NAME or vectors:DIM"

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of images.", show_default=False)]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; one for each core if not given.")]


@app.command(rich_help_panel=IMAGES)
def index(
    folder: Folder,
    path: At,
    encoder: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"{ENCODER}. The collection's own if it is there, else classic."),
    ] = None,
    bits: Annotated[int, typer.Option(min=8, max=512, help="Length of the codes, if the collection is new.")] = 64,
    labels: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="folders, sidecar, none, or a .csv, .json or .jsonl file, COCO's annotations too; auto looks.",
        ),
    ] = "auto",
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Take a folder of images into a collection, with labels and thumbnails. What is there already is skipped."""
    images, encoders = optional_module("images", "images"), optional_module("encoders", "images")
    files = list_images(folder)
    if not files:
        raise InvalidInput(f"{folder} holds no images; files that end in {', '.join(IMAGE_SUFFIXES)} are wanted")
    found = images.open_labels(folder, labels)
    new = not (path / "store.db").is_file()
    rows = max(FEWEST, min(MOST, len(files)))
    with stillhash.open(
        path, bits=bits if new else None, encoder=_encoder(encoders, encoder, path), init_rows=rows
    ) as collection:
        name = encoder or collection.encoder.name  # type: ignore[union-attr]
        done = _watched(images.index_folder, folder, collection, name, found, files, workers)
        if not collection.stats()["fitted"] and collection.count() >= FEWEST:  # some files were no images
            collection.fit()
        collection.flush()
        result = {**asdict(done), "items": collection.count(), "fitted": collection.stats()["fitted"]}
    result["images_per_second"] = round((done.added + done.updated + len(done.broken)) / max(done.seconds, 1e-9), 1)
    answer(result, as_json, lambda told, console: _show(told, path, console))


def _encoder(encoders: Any, name: str | None, path: Path) -> Any:
    """The encoder that is asked for; else the one that the collection remembers."""
    if name is None and (path / "store.db").is_file():
        with opened(path) as collection:
            if collection.encoder is None:
                raise InvalidInput(f"{path} was made from ready vectors; images want a collection of their own")
            name = collection.encoder.name
    return encoders.open_encoder(name or "classic")


def _watched(work: Any, folder: Path, collection: Any, name: str, labels: Any, files: list[str], workers: Any) -> Any:
    """Indexes, with a bar on a terminal; how far it came is said if it is stopped."""
    console = Console(stderr=True)
    parts = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*parts, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("images", total=len(files))

        def heard(done: Any) -> None:
            progress.update(task, completed=done.added + done.updated + done.skipped + len(done.broken))

        try:
            return work(folder, collection, name, labels, files=files, workers=workers, progress=heard)
        except KeyboardInterrupt:
            console.print(
                f"stopped; {collection.count():,} images are safe on disk, and the next run goes on from there"
            )
            raise


def _show(told: dict[str, Any], path: Path, console: Console) -> None:
    counts = f"{told['added']:,} added, {told['updated']:,} updated, {told['skipped']:,} already indexed"
    lines = [f"{counts}; {told['labelled']:,} with labels; {told['images_per_second']:g} a second"]
    if broken := told["broken"]:
        lines.append(f"{len(broken):,} cannot be read:")
        lines += [f"  {file}: {why}" for file, why in list(broken.items())[:MANY]]
        lines += ["  ..."] if len(broken) > MANY else []
    if not told["fitted"]:
        lines.append(f"search ranks by raw features until there are {FEWEST} images or more")
    lines.append(f"now: stillhash serve {path}")
    for line in lines:
        console.print(Text(line), soft_wrap=True)


@app.command(rich_help_panel=IMAGES)
def bridge(
    path: At,
    encoder: Annotated[str, typer.Option(metavar="NAME", help=f"The new one: {ENCODER}.", show_default=False)],
    images: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Images to describe with both.")] = None,
    theirs: Annotated[Path | None, typer.Option(metavar="FILE", help="Or features by the new one,")] = None,
    ours: Annotated[Path | None, typer.Option(metavar="FILE", help="and of the same things by the old.")] = None,
    most: Annotated[int, typer.Option(min=20, help="Images at most; a few hundred do.")] = 1000,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Let another encoder ask: fits its features to the collection's, by things described with both. Codes stay."""
    bridging = optional_module("images.alignment", "images")
    if (images is None) == (theirs is None) or (theirs is None) != (ours is None):
        raise InvalidInput("either --images FOLDER, or --theirs FILE and --ours FILE, are wanted")
    with opened(path, write=True) as collection, Console(stderr=True).status("describing with both"):
        if images is not None:
            told = bridging.align_images(collection, encoder, images, most, workers)
        elif theirs is not None and ours is not None:
            made_by = optional_module("encoders", "images").open_encoder(encoder)
            pairs = read_features(theirs, made_by.dim), read_features(ours, collection.dim)
            told = collection.align(made_by, *pairs)
    line = f"{told['name']} may ask now: {told['pairs']:,} pairs explain {told['explained']:.0%} of the variance"
    answer(told, as_json, sentence(line))
