"""Commands for images: index a folder, and align another encoder."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, Typer

import stillhash
from stillhash.cli.completion import one_of
from stillhash.cli.defaults import ENCODER_PREFIXES, LABEL_SOURCES, NEW_CODE_BITS, STORE_FILE
from stillhash.cli.options import BITS_HELP, CodesSeeLabels, CollectionPath, optional_module
from stillhash.cli.output import AsJson, answer, note, progress_bar, status_line
from stillhash.errors import InvalidInput

app = Typer()
IMAGES_PANEL = "Collections: images"
MAX_LISTED_FILES = 20
MIN_FIT_IMAGES, MAX_FIT_IMAGES = 300, 3000
DEFAULT_HELP = "default: the collection's own, or classic if it is new"
LABEL_SOURCE_HELP = "folders, sidecar, none, or a .csv, .json (also COCO) or .jsonl file; auto tries them in turn."
ENCODER_HELP = "classic, onnx:PATH[:OUTPUT], timm:NAME, clip:NAME or vectors:DIM"

ImageFolder = Annotated[Path, Argument(metavar="FOLDER", help="A folder of images.")]
Workers = Annotated[int | None, Option(min=1, help="Processes; default: one for each core.")]


@app.command(rich_help_panel=IMAGES_PANEL)
def index(
    folder: ImageFolder,
    path: CollectionPath,
    encoder: Annotated[
        str | None,
        Option(metavar="NAME", help=f"{ENCODER_HELP}; {DEFAULT_HELP}.", autocompletion=one_of(*ENCODER_PREFIXES)),
    ] = None,
    bits: Annotated[int, Option(min=8, max=512, help=f"Of a new collection: {BITS_HELP}")] = NEW_CODE_BITS,
    codes_see_labels: CodesSeeLabels = True,
    labels: Annotated[
        str, Option(metavar="SOURCE", help=LABEL_SOURCE_HELP, autocompletion=one_of(*LABEL_SOURCES))
    ] = "auto",
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Index a folder of images, with labels and thumbnails. Images that are already indexed are skipped.

    \b
    Examples:
      stillhash index photos gallery
      stillhash index photos gallery --encoder clip:ViT-B-32 --labels folders
    """
    from stillhash.io import IMAGE_SUFFIXES, list_images

    images, encoders = optional_module("images", "images"), optional_module("encoders", "images")
    files = list_images(folder)
    if not files:
        raise InvalidInput(f"folder: expected files that end in {', '.join(IMAGE_SUFFIXES)}, got none in {folder}")
    source = images.open_labels(folder, labels)
    new = not (path / STORE_FILE).is_file()
    name = encoder or ("classic" if new else _own_encoder(path))
    rows = max(MIN_FIT_IMAGES, min(MAX_FIT_IMAGES, len(files)))
    opened = encoders.open_encoder(name)
    settings: dict[str, Any] = {"init_rows": rows, "codes_see_labels": codes_see_labels}
    with stillhash.open(path, bits=bits if new else None, encoder=opened, **settings) as collection:
        try:
            with progress_bar("images", len(files)) as update:
                options = {"files": files, "workers": workers, "progress": lambda report: update(completed=report.done)}
                report = images.index_folder(folder, collection, name, source, **options)
        except KeyboardInterrupt:
            stored = f"{collection.count():,} images are stored"
            note(f"stopped; {stored}, and the next run continues from there")
            raise
        if not collection.stats()["fitted"] and collection.count() >= MIN_FIT_IMAGES:  # some could not be decoded
            collection.fit()
        collection.flush()
        result = {**asdict(report), "items": collection.count(), "fitted": collection.stats()["fitted"]}
    encoded = report.added + report.updated + len(report.broken)
    result["images_per_second"] = round(encoded / max(report.seconds, 1e-9), 1)
    answer(result, as_json, _report_text(result, path))


def _own_encoder(path: Path) -> str:
    with stillhash.open(path, read_only=True) as collection:
        if collection.encoder is None:
            raise InvalidInput(f"path: expected a collection of images, got {path}, which was made from vectors")
        return collection.encoder.name


def _report_text(result: dict[str, Any], path: Path) -> str:
    counts = f"{result['added']:,} added, {result['updated']:,} updated, {result['skipped']:,} already indexed"
    lines = [f"{counts}; {result['labelled']:,} with labels; {result['images_per_second']:g} per second"]
    if broken := result["broken"]:
        lines.append(f"{len(broken):,} cannot be read:")
        lines += [f"  {file}: {reason}" for file, reason in list(broken.items())[:MAX_LISTED_FILES]]
        lines += ["  ..."] if len(broken) > MAX_LISTED_FILES else []
    if not result["fitted"]:
        lines.append(f"search compares features until there are {MIN_FIT_IMAGES} images")
    return "\n".join([*lines, f"next: stillhash serve {path}"])


@app.command(rich_help_panel=IMAGES_PANEL)
def align(
    path: CollectionPath,
    encoder: Annotated[
        str, Option(metavar="NAME", help=f"New encoder: {ENCODER_HELP}.", autocompletion=one_of(*ENCODER_PREFIXES))
    ],
    images: Annotated[Path | None, Option(metavar="FOLDER", help="Images to encode with both encoders.")] = None,
    theirs: Annotated[Path | None, Option(metavar="FILE", help="Or: features by the new encoder,")] = None,
    ours: Annotated[Path | None, Option(metavar="FILE", help="and of the same images by the old one.")] = None,
    max_images: Annotated[int, Option(min=20, help="Most images to encode; a few hundred are enough.")] = 1000,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Query with a different encoder: map its features to the collection's. Codes do not change.

    \b
    Examples:
      stillhash align gallery --encoder clip:ViT-B-32 --images photos
      stillhash align films --encoder vectors:768 --theirs new.npy --ours old.npy
    """
    from stillhash.io import read_features

    if (images is None) == (theirs is None) or (theirs is None) != (ours is None):
        raise InvalidInput("images: expected either --images FOLDER, or --theirs FILE and --ours FILE")
    with stillhash.open(path) as collection, status_line("encoding with both"):
        if images is not None:
            result = optional_module("images", "images").align_images(collection, encoder, images, max_images, workers)
        elif theirs is not None and ours is not None:
            opened = optional_module("encoders", "images").open_encoder(encoder)
            features = read_features(theirs, opened.dim), read_features(ours, collection.dim)
            result = collection.align(opened, *features)
    text = f"{result['name']} is aligned: {result['pairs']:,} pairs explain {result['explained']:.0%} of the variance"
    answer(result, as_json, text)
