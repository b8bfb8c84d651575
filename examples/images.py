"""Search a folder of pictures without any label, and let labels arrive late.

A picture shows coloured shapes on a textured ground. It is indexed once, as a code of 16 bytes with a thumbnail beside
it. Before any label, search finds pictures that look alike, which is mostly the ground. Then people say which colours
they see, a few pictures at a time. The codes stay as they are; the similarity learns what people mean, and the first
ten hits of pictures that it has never seen get better.

    pip install 'stillhash[images]'
    python examples/images.py --out gallery     # gallery/sheet.png shows hits before and after
"""

import argparse
import io
import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

import stillhash
from stillhash.encoders import index_folder, open_encoder, open_query_encoder
from stillhash.experiments.shapes import SHAPE_COLOURS, write_shapes
from stillhash.io import open_labels

SIZE = 64  # pixels, the side of a picture
STEPS = (0, 50, 200, 500, 1000)  # pictures that have labels, at each step
SHEET_QUERIES = 4


def run(folder: Path) -> dict[str, Any]:
    """Index, search, label and search again; return P@10 at each step."""
    pictures = write_shapes(folder / "pictures", 1000, seed=1, size=SIZE)
    queries = write_shapes(folder / "queries", 200, seed=2, size=SIZE)
    colours = {file.name: only_colours(labels) for file, labels in zip(*pictures, strict=True)}
    truth = [only_colours(labels) for labels in queries.labels]

    encoder = open_encoder("classic")  # colour, edges and texture: no weights, no download
    with stillhash.open(folder / "index", encoder=encoder, init_rows=500) as gallery:
        index_folder(folder / "pictures", gallery, "classic", open_labels(folder / "pictures", "none"), workers=1)
        query_encoder = open_query_encoder(gallery)
        features = np.stack([query_encoder.image_file(file) for file in queries.files])

        curve = [{"labelled": 0, "p10": precision(gallery.search(features, k=10), colours, truth)}]
        for start, end in pairwise(STEPS):
            late = [file.name for file in pictures.files[start:end]]
            gallery.relabel(late, [colours[name] for name in late])
            gallery.flush()  # learn now, however few labels are pending
            curve.append({"labelled": end, "p10": precision(gallery.search(features, k=10), colours, truth)})

        strips = []
        for file, query, labels in zip(queries.files[:SHEET_QUERIES], features, truth, strict=False):
            for version in (0, None):  # before learning, and now
                hits = gallery.search(query, k=10, version=version).hits
                strip = [frame(Image.open(file), "black")]
                for hit in hits:
                    thumbnail = Image.open(io.BytesIO(gallery.picture(hit.id)))
                    strip.append(frame(thumbnail, "limegreen" if shares(colours[hit.id], labels) else "lightgray"))
                strips.append(strip)
        paste(strips).save(folder / "sheet.png")
    return {"before": curve[0]["p10"], "after": curve[-1]["p10"], "curve": curve}


def only_colours(labels: list[str]) -> list[str]:
    """Return what people are interested in here; shapes and grounds get no label."""
    return [label for label in labels if label in SHAPE_COLOURS]


def shares(labels: list[str], others: list[str]) -> bool:
    return not set(labels).isdisjoint(others)


def precision(answers: list[stillhash.Answer], colours: dict[str, list[str]], truth: list[list[str]]) -> float:
    """Return P@10: the share of the first ten hits that have a colour of the query, over all queries."""
    pages = zip(answers, truth, strict=True)
    right = [shares(colours[hit.id], labels) for answer, labels in pages for hit in answer.hits]
    return round(float(np.mean(right)), 3)


def frame(picture: Image.Image, colour: str) -> Image.Image:
    return ImageOps.expand(picture.convert("RGB"), border=4, fill=colour)


def paste(strips: list[list[Image.Image]]) -> Image.Image:
    """Return one picture of all: a row for each search, with the query on the left."""
    cell = SIZE + 12
    sheet = Image.new("RGB", (11 * cell, len(strips) * cell), "white")
    for row, strip in enumerate(strips):
        for column, picture in enumerate(strip):
            sheet.paste(picture, (column * cell + 2, row * cell + 2))
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a new folder for the pictures, the collection and sheet.png")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    options = parser.parse_args()
    if options.out and options.out.exists():
        parser.error(f"--out: expected a new folder, got {options.out}, which exists")
    with tempfile.TemporaryDirectory() as temporary:
        result = run(options.out or Path(temporary) / "gallery")
    if options.json:
        print(json.dumps(result))
        return
    print("1,000 pictures, 200 others as queries; a hit is right if it has a colour of the query")
    print("pictures with labels   P@10")
    for step in result["curve"]:
        print(f"{step['labelled']:20,}   {step['p10']:.3f}")
    if options.out:
        print(f"{options.out / 'sheet.png'}: {SHEET_QUERIES} queries, each before learning (above) and now (below)")


if __name__ == "__main__":
    main()
