"""The demo with a page: images of digit scenes stream into a durable collection, which learns while a visitor searches.

Scenes are written as PNG files and indexed like any folder of images: the `classic` encoder, a thumbnail, labels. Each
batch is evaluated, stored and learnt, and the page shows the quality over time. At the end the page stays.
"""

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

from stillhash.collection import Collection, open
from stillhash.demo.terminal import DEMO_METHODS
from stillhash.encoders import open_encoder
from stillhash.experiments.scenes import make_scenes
from stillhash.images import index_folder, open_query_encoder
from stillhash.numeric.validation import check_choice, check_integer
from stillhash.server import Settings, serve

DEMO_ENCODER = "classic"
FIRST_SCENES = 500  # scenes indexed before the page is served
LEARN_ROWS = 250  # scenes of a step of learning
INIT_SCENES = 1000  # other scenes, which fix the hash functions
MAX_SCENES_PER_SECOND = 250  # scenes at most, so that the curve can be watched
PIXEL_SCALE = 4  # pixels of a file for one of a scene, whose digits are tiny


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
    """Serve until interrupted; without a path the collection is temporary and deleted."""
    check_integer(scenes, "scenes", 2000)
    check_choice(method, "method", DEMO_METHODS)
    with tempfile.TemporaryDirectory(prefix="stillhash-demo-", ignore_cleanup_errors=True) as temporary:
        encoder = open_encoder(DEMO_ENCODER)
        # The first steps would flatter the ranking if their rows had fixed the hash functions.
        sample = make_scenes(INIT_SCENES, seed + scenes)
        collection = open(
            path or Path(temporary) / "collection",
            bits=bits,
            method=method,
            codes_see_labels=False,  # so that all the page shows is learnt
            encoder=encoder,
            init=(encoder.encode([_picture(image) for image in sample.images]), sample.labels),
            learn_rows=LEARN_ROWS,
            keep_versions=64,
        )
        stream = Stream(collection, Path(temporary) / "files", scenes, seed, console)
        with console.status("Making the first scenes of digits"):
            stream.put(FIRST_SCENES)

        def listening(address: str) -> None:
            announce(address)
            stream.start()

        try:
            serve({"scenes": collection}, Settings(port=port), listening, {"scenes": open_query_encoder(collection)})
        finally:
            stream.stop()
            collection.close()


class Stream(threading.Thread):
    """Adds scene after scene to the collection, at a pace that can be watched; skips those already indexed."""

    def __init__(self, collection: Collection, folder: Path, scenes: int, seed: int, console: Console) -> None:
        super().__init__(name="stream", daemon=True)
        self.collection, self.folder, self.console = collection, folder, console
        self.scenes, self.seed, self.done = scenes, seed, 0
        self._stopped = threading.Event()

    def run(self) -> None:
        sizes = f"{self.scenes:,} images of 1 to 4 digits stream in, at most {MAX_SCENES_PER_SECOND} a second"
        self.console.print(sizes, highlight=False)
        while self.done < self.scenes:
            began = time.monotonic()
            count = self.put(min(LEARN_ROWS, self.scenes - self.done))
            if self._stopped.wait(max(0.0, began + count / MAX_SCENES_PER_SECOND - time.monotonic())):
                return
        if quality := self.collection.stats()["quality"]:
            before = quality["before"]
            self.console.print(
                f"All {self.done:,} scenes indexed. On the last, before learning them: P@10 {quality['precision']:.3f} "
                f"({before['precision']:.3f} without labels), nDCG@10 {quality['ndcg']:.3f} ({before['ndcg']:.3f}). "
                "The page stays; Ctrl+C ends it.",
                highlight=False,
                soft_wrap=True,
            )

    def put(self, count: int) -> int:
        """Write the next `count` scenes as files and index them; return how many were new."""
        batch = make_scenes(count, self.seed + self.done)
        labels: dict[str, list[str]] = {}
        for number, (image, digits) in enumerate(zip(batch.images, batch.labels, strict=True), self.done):
            name = f"{number // 1000:03d}/{number:06d}.png"
            labels[name] = [str(digit) for digit in np.flatnonzero(digits)]
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            _picture(image).save(self.folder / name)
        files, label_of = list(labels), labels.__getitem__
        counts = index_folder(self.folder, self.collection, DEMO_ENCODER, label_of, files=files, workers=1)
        for name in files:
            (self.folder / name).unlink()
        self.done += count
        return counts.added

    def stop(self) -> None:
        self._stopped.set()
        if self.is_alive():
            self.join()


def _picture(scene: NDArray[np.uint8]) -> Image.Image:
    """Return a scene as ink on paper, large enough to see."""
    picture = Image.fromarray(255 - scene)
    return picture.resize((picture.width * PIXEL_SCALE, picture.height * PIXEL_SCALE), Image.Resampling.BICUBIC)
