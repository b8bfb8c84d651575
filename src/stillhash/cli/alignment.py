"""The command that aligns another encoder with a collection."""

from pathlib import Path
from typing import Annotated

from typer import Option, Typer

import stillhash
from stillhash.cli.completion import one_of
from stillhash.cli.defaults import ENCODER_PREFIXES
from stillhash.cli.options import ENCODER_HELP, FILES_PANEL, CollectionPath, Workers
from stillhash.cli.output import AsJson, answer, status_line
from stillhash.errors import InvalidInput

app = Typer()


@app.command(rich_help_panel=FILES_PANEL)
def align(
    path: CollectionPath,
    encoder: Annotated[
        str, Option(metavar="NAME", help=f"New encoder: {ENCODER_HELP}.", autocompletion=one_of(*ENCODER_PREFIXES))
    ],
    images: Annotated[Path | None, Option(metavar="FOLDER", help="Images to encode with both encoders.")] = None,
    texts: Annotated[bool, Option("--texts", help="Or: encode the texts of items with both encoders.")] = False,
    theirs: Annotated[Path | None, Option(metavar="FILE", help="Or: features by the new encoder,")] = None,
    ours: Annotated[Path | None, Option(metavar="FILE", help="and of the same images by the old one.")] = None,
    max_images: Annotated[int, Option(min=20, help="Most to encode, also of texts; a few hundred are enough.")] = 1000,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Query with a different encoder: map its features to the collection's. Codes do not change.

    \b
    Examples:
      stillhash align gallery --encoder clip:ViT-B-32 --images photos
      stillhash align notes --encoder static:wordllama --texts
      stillhash align films --encoder vectors:768 --theirs new.npy --ours old.npy
    """
    from stillhash import encoders
    from stillhash.io import read_features

    if (images is not None) + texts + (theirs is not None) != 1 or (theirs is None) != (ours is None):
        raise InvalidInput("images: expected either --images FOLDER, or --texts, or --theirs FILE and --ours FILE")
    with stillhash.open(path) as collection, status_line("encoding with both"):
        if images is not None:
            result = encoders.align_images(collection, encoder, images, max_images, workers)
        elif texts:
            result = encoders.align_texts(collection, encoder, max_images)
        elif theirs is not None and ours is not None:
            opened = encoders.open_encoder(encoder)
            features = read_features(theirs, opened.dim), read_features(ours, collection.dim)
            result = collection.align(opened, *features)
    text = f"{result['name']} is aligned: {result['pairs']:,} pairs explain {result['explained']:.0%} of the variance"
    answer(result, as_json, text)
