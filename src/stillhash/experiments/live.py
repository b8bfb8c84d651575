"""The demo with a page: scenes of digits stream into a durable collection, which learns while a visitor searches.

Each chunk is stored, then learnt, in one commit; the page shows how well it was answered before. When all scenes are
there the page stays.
"""

from __future__ import annotations

import base64
import io
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError
from rich.console import Console

from stillhash.collection import Collection, open
from stillhash.errors import Conflict, InvalidInput
from stillhash.experiments.demo import FIXED
from stillhash.experiments.scenes import SIZE, Images, Scenes, describe, make_scenes
from stillhash.numeric.checks import Floats, check_choice, check_integer
from stillhash.server import Settings, serve

NAME = "scenes"
FIRST = 500  # scenes that are there before the page is
CHUNK = 250  # scenes of a step of learning
INIT = 300  # that fix the hash functions; they are not learnt from
PER_SECOND = 250  # scenes, so that the curve can be watched
PIXELS = 20_000_000  # of an image that is uploaded
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")


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
    with _folder(path) as folder:
        with console.status("Making the first scenes of digits"):
            collection = open(folder, 128, bits, method=method, init_rows=INIT, learn_rows=CHUNK, keep_versions=64)
            count = collection.count()
            if not count:
                count = put(collection, 0, FIRST, seed)
        stream = Stream(collection, count, scenes, seed, console)

        def begun(address: str) -> None:
            announce(address)
            stream.start()

        settings = Settings(port=port)
        try:
            serve({NAME: collection}, settings, begun, {NAME: described})
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
    """Scene after scene into the collection, at a pace that can be watched."""

    def __init__(self, collection: Collection, done: int, scenes: int, seed: int, console: Console) -> None:
        super().__init__(name="stream", daemon=True)
        self.collection, self.done, self.scenes, self.seed, self.console = collection, done, scenes, seed, console
        self._stopped = threading.Event()

    def run(self) -> None:
        began, first = time.monotonic(), self.done
        self.console.print(f"{self.scenes:,} scenes of 1 to 4 digits stream in, {PER_SECOND} a second", highlight=False)
        while self.done < self.scenes:
            due = began + (self.done - first) / PER_SECOND
            if self._stopped.wait(max(0.0, due - time.monotonic())):
                return
            self.done += self._put(min(CHUNK, self.scenes - self.done))
        self._tell()

    def _put(self, count: int) -> int:
        try:
            return put(self.collection, self.done, count, self.seed)
        except Conflict:
            if self._stopped.is_set() or self.collection.get([self.done]) == [None]:
                raise
            return count  # they are there already

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


def put(collection: Collection, start: int, count: int, seed: int) -> int:
    """Adds scenes as items numbered from `start`, with their pictures."""
    made = make_scenes(count, seed + start)
    metadata: list[dict[str, Any]] = [{"image": picture(image), "digits": int(n)} for image, n in _counted(made)]
    labels = [[int(name) for name in np.flatnonzero(row)] for row in made.labels]
    return collection.add(range(start, start + count), made.features, labels, metadata)


def _counted(made: Scenes) -> Iterator[tuple[Images, Any]]:
    return zip(made.images, made.labels.sum(axis=1), strict=True)


def picture(image: Images) -> str:
    """A PNG as a data URI; ink on paper, as digits are written."""
    file = io.BytesIO()
    Image.fromarray(255 - image).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def described(data: bytes) -> Floats:
    """The features (128,) of an uploaded image, shrunk to the size of a scene; dark on light, or light on dark."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > PIXELS:
                raise InvalidInput(f"image has {image.width} x {image.height} pixels; at most {PIXELS:,} are taken")
            grey = np.asarray(image.convert("L").resize((SIZE, SIZE), Image.Resampling.BOX))
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidInput(f"image cannot be read: {error}") from None
    ink = 255 - grey if np.median(grey) > 127 else grey
    features: Floats = describe(ink[None])[0]
    return features
