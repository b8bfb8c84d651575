"""The demo with a page: image files of digit scenes stream into a durable collection, which learns while a visitor
searches.

Scenes are written as PNG files and go the way of any folder of images: the `classic` encoder, a thumbnail, labels. Each
batch is stored and learnt, and the page shows how well it was answered before. When all are there the page stays.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console

from stillhash.collection import Collection, open
from stillhash.demo.terminal import FIXED
from stillhash.encoders import open_encoder
from stillhash.experiments.scenes import make_scenes
from stillhash.images import index_folder, open_query_encoder
from stillhash.numeric.validation import check_choice, check_integer
from stillhash.server import Settings, serve

NAME, ENCODER = "scenes", "classic"
FIRST = 500  # scenes that are there before the page is
CHUNK = 250  # scenes of a step of learning
INIT = 300  # that fix the hash functions
PER_SECOND = 250  # scenes at most, so that the curve can be watched
SCALE = 4  # pixels of a file for one of a scene, whose digits are tiny


def run(
    scenes: int,
    bits: int,
    seed: int,
    method: str,
    port: int,
    path: Path | None,
    console: Console,
    announce: Callable[[str], None],
) -> None:
    """Serves until it is interrupted; without a path the collection is gone afterwards."""
    check_integer(scenes, "scenes", 2000)
    check_choice(method, "method", FIXED)
    with _folder(path) as folder, tempfile.TemporaryDirectory(prefix="stillhash-scenes-") as files:
        encoder = open_encoder(ENCODER)
        collection = open(
            folder, bits=bits, method=method, encoder=encoder, init_rows=INIT, learn_rows=CHUNK, keep_versions=64
        )
        stream = Stream(collection, Path(files), scenes, seed, console)
        with console.status("Making the first scenes of digits"):
            stream.put(FIRST)

        def begun(address: str) -> None:
            announce(address)
            stream.start()

        try:
            serve({NAME: collection}, Settings(port=port), begun, {NAME: open_query_encoder(collection)})
        finally:
            stream.stop()
            collection.close()


@contextmanager
def _folder(path: Path | None) -> Iterator[Path]:
    if path is not None:
        yield path
        return
    folder = Path(tempfile.mkdtemp(prefix="stillhash-demo-"))
    try:
        yield folder / NAME
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Stream(threading.Thread):
    """Scene after scene into the collection, at a pace that can be watched. Those that are there are passed over."""

    def __init__(self, collection: Collection, folder: Path, scenes: int, seed: int, console: Console) -> None:
        super().__init__(name="stream", daemon=True)
        self.collection, self.folder, self.console = collection, folder, console
        self.scenes, self.seed, self.done = scenes, seed, 0
        self._stopped = threading.Event()

    def run(self) -> None:
        self.console.print(
            f"{self.scenes:,} images of 1 to 4 digits stream in, {PER_SECOND} a second at most", highlight=False
        )
        while self.done < self.scenes:
            began = time.monotonic()
            count = self.put(min(CHUNK, self.scenes - self.done))
            if self._stopped.wait(max(0.0, began + count / PER_SECOND - time.monotonic())):
                return
        self._tell()

    def put(self, count: int) -> int:
        """The next so many scenes, as files that are then taken into the collection; how many were new."""
        made = make_scenes(count, self.seed + self.done)
        labels: dict[str, list[str]] = {}
        for number, (image, shown) in enumerate(zip(made.images, made.labels, strict=True), self.done):
            name = f"{number // 1000:03d}/{number:06d}.png"
            labels[name] = [str(digit) for digit in np.flatnonzero(shown)]
            (self.folder / name).parent.mkdir(exist_ok=True)
            picture = Image.fromarray(255 - image)  # ink on paper
            picture.resize((picture.width * SCALE, picture.height * SCALE), Image.Resampling.BICUBIC).save(
                self.folder / name
            )
        found = index_folder(self.folder, self.collection, ENCODER, labels.__getitem__, files=list(labels), workers=1)
        for name in labels:
            (self.folder / name).unlink()
        self.done += count
        return found.added

    def _tell(self) -> None:
        quality = self.collection.stats()["quality"]
        if quality:
            self.console.print(
                f"All {self.done:,} scenes are in. On the last, before they were learnt: mAP {quality['hamming']:.3f} "
                f"by Hamming ranking, {quality['map']:.3f} by the learnt similarity. The page stays.",
                highlight=False,
                soft_wrap=True,
            )

    def stop(self) -> None:
        self._stopped.set()
        if self.is_alive():
            self.join()
