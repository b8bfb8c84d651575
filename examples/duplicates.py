"""Find copies of pictures that were shrunk, compressed again or brightened, by perceptual hashes.

A perceptual hash (here dHash: is each pixel of a tiny grey picture brighter than the one before it?) is a code already,
so there is nothing to encode and nothing to learn: the collection stores ready codes. `duplicates` returns all groups
of codes that differ in at most so many bits, exactly, without comparing every pair. A greater distance finds more
copies, until it joins pictures that only look similar: the program raises it up to there, and deletes the copies.

    pip install 'stillhash[images]'
    python examples/duplicates.py
"""

import argparse
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

import stillhash
from stillhash import codes
from stillhash.experiments.shapes import image

PICTURES, COPIES = 500, 150
HASH_SIDE = 16  # 256 bits
DISTANCES = (0, 4, 8, 16, 24, 32)


def run(folder: Path) -> dict[str, Any]:
    """Store the hashes of pictures and of copies; return what each distance finds, and delete by the best one."""
    pictures = [image(seed=1, n=number)[0] for number in range(PICTURES)]
    copies = [change(picture, number) for number, picture in enumerate(pictures[:COPIES])]
    originals = {f"copy-{number}": f"picture-{number}" for number in range(COPIES)}
    ids = [*(f"picture-{number}" for number in range(PICTURES)), *originals]
    hashes = np.stack([difference_hash(picture) for picture in pictures + copies])

    with stillhash.open(folder / "hashes", bits=HASH_SIDE**2, codes_only=True) as collection:
        collection.add(ids, hashes)
        table = []
        for distance in DISTANCES:
            groups = collection.duplicates(distance=distance)
            right = sum(originals.get(str(group[1])) == group[0] and len(group) == 2 for group in groups)
            table.append({"distance": distance, "copies": right, "wrong": len(groups) - right})

        chosen = max(line["distance"] for line in table if line["wrong"] == 0)
        for group in collection.duplicates(distance=chosen):
            collection.delete(group[1:])  # the first one was added first
        left = collection.count()
    before = PICTURES + COPIES
    return {"before": before, "after": left, "table": table, "chosen": chosen, "hex": codes.to_hex(hashes[:1])[0]}


def difference_hash(picture: Image.Image) -> NDArray[np.uint8]:
    """Return the packed bits (32,) of dHash, which depend on the picture's coarse forms and not on its size."""
    grey = np.asarray(picture.convert("L").resize((HASH_SIDE + 1, HASH_SIDE), Image.Resampling.BOX), np.int16)
    return codes.from_bits((np.diff(grey, axis=1) > 0).reshape(1, -1))[0]


def change(picture: Image.Image, number: int) -> Image.Image:
    """Return a copy as it comes back from the web: smaller, compressed again, or brighter."""
    if number % 3 == 0:
        return picture.resize((64, 64))
    if number % 3 == 1:
        return ImageEnhance.Brightness(picture).enhance(1.2)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=50)
    return Image.open(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a new folder for the collection; a temporary one without")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    options = parser.parse_args()
    if options.out and options.out.exists():
        parser.error(f"--out: expected a new folder, got {options.out}, which exists")
    with tempfile.TemporaryDirectory() as temporary:
        result = run(options.out or Path(temporary) / "duplicates")
    if options.json:
        print(json.dumps(result))
        return
    print(f"{PICTURES} pictures and {COPIES} changed copies; the first hash is {result['hex'][:24]}...")
    print("distance   copies with their original   other groups")
    for line in result["table"]:
        print(f"{line['distance']:8} {line['copies']:28} {line['wrong']:14}")
    print(f"by distance {result['chosen']}, {result['before'] - result['after']} of {COPIES} copies are deleted")


if __name__ == "__main__":
    main()
