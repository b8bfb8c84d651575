"""Take the pictures of the pages in docs/images, and the recording in README.md, in a real browser.

python tools/screenshots.py [--out docs/images] [--only search,teach] [--recording]

It makes a collection of 1,600 drawn pictures, 60 % of them with labels, serves it on this machine, and visits every
page in light, in dark and on a phone. It needs `pip install -e '.[dev]'` and Debian's chromium.
"""

import argparse
import io
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

import stillhash
from stillhash.collection import Collection
from stillhash.encoders import index_folder, open_encoder, open_query_encoder
from stillhash.experiments.shapes import write_shapes
from stillhash.io import open_labels
from stillhash.server import Settings
from tests.server.live_server import live_server

PICTURES, LABELLED_SHARE = 1600, 0.6
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDE = {"viewport": {"width": 1280, "height": 900}}
THEMES: dict[str, dict[str, Any]] = {
    "light": {**WIDE, "color_scheme": "light"},
    "dark": {**WIDE, "color_scheme": "dark"},
    "phone": {
        "viewport": {"width": 390, "height": 844},
        "is_mobile": True,
        "has_touch": True,
        "device_scale_factor": 2,
    },
}
PAGES = {
    "start": "/c/shapes",
    "search": "/c/shapes?like=000003.jpg",
    "why": "/c/shapes?like=000003.jpg",
    "label": "/c/shapes?search=star",
    "nothing-found": "/c/shapes?search=stra",
    "votes": "/c/shapes/votes",
    "teach": "/c/shapes/teach",
    "labels-to-check": "/c/shapes/doubtful_labels",
    "learning": "/c/shapes/learning",
    "compare": "/c/shapes/compare?a=2&b=5",
    "collection": "/c/shapes/collection",
    "collections": "/collections",
    "new": "/new",
    "api": "/docs",
}
RECORDING_WIDTH, RECORDING_COLOURS = 880, 128
LOADED = "() => [...document.images].every(image => image.complete || image.getBoundingClientRect().top > innerHeight)"
HOLD_MS, STEP_MS = 1600, 220  # how long a frame is held at the end of an act, and within one


def fill(folder: Path) -> Collection:
    """Index drawn pictures, most of them with labels, and vote a little."""
    write_shapes(folder / "images", PICTURES, 0, size=96, fmt="JPEG")
    labels, chance = open_labels(folder / "images"), random.Random(0)
    collection = stillhash.open(
        folder / "shapes", encoder=open_encoder("classic"), init_rows=600, learn_rows=100, codes_see_labels=False
    )
    index_folder(
        folder / "images",
        collection,
        "classic",
        lambda name: labels(name) if chance.random() < LABELLED_SHARE else [],
        workers=1,
    )
    collection.flush()
    (query,) = collection.reconstruct(["000003.jpg"])
    for hit in collection.search(query, 4).hits[1:]:
        collection.feedback(query, hit.id, "up", source="page")
    return collection


@contextmanager
def served(folder: Path) -> Iterator[str]:
    collection = fill(folder)
    for name in ("collections", "snapshots"):
        (folder / name).mkdir()
    settings = Settings(collections_folder=folder / "collections", snapshots=folder / "snapshots")
    with live_server({"shapes": collection}, settings, {"shapes": open_query_encoder(collection)}) as server:
        yield server.url


def take_pictures(browser: Any, url: str, out: Path, only: set[str]) -> None:
    for theme, options in THEMES.items():
        context = browser.new_context(**options)
        page = context.new_page()
        for name, path in PAGES.items():
            if only and name not in only:
                continue
            page.goto(url + path)
            if name == "why":
                page.locator(".now .why").first.click()
                page.locator("#why[open]").wait_for()
            page.wait_for_timeout(1500)
            picture = Image.open(io.BytesIO(page.screenshot()))
            picture.convert("RGB").save(out / f"page-{name}-{theme}.webp", quality=80, method=6)
        context.close()


class Recording:
    """Frames of a page, as an animated GIF."""

    def __init__(self, page: Any) -> None:
        self.page, self.frames, self.times = page, list[Image.Image](), list[int]()

    def take(self, milliseconds: int = STEP_MS) -> None:
        self.page.wait_for_function(LOADED)
        frame = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        height = round(frame.height * RECORDING_WIDTH / frame.width)
        self.frames.append(frame.resize((RECORDING_WIDTH, height), Image.Resampling.LANCZOS))
        self.times.append(milliseconds)

    def type(self, selector: str, text: str) -> None:
        for letter in text:
            self.page.locator(selector).press_sequentially(letter)
            self.take()

    def save(self, path: Path) -> None:
        frames = [frame.quantize(RECORDING_COLOURS, dither=Image.Dither.NONE) for frame in self.frames]
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=self.times, loop=0, optimize=True)


def record(browser: Any, url: str, path: Path) -> None:
    """Search for a label, look for similar items, vote, ask why, and teach."""
    page = browser.new_context(viewport={"width": 1180, "height": 760}, reduced_motion="reduce").new_page()
    page.goto(f"{url}/c/shapes")
    film = Recording(page)
    film.take(HOLD_MS)
    page.locator("input[name=search]").click()
    film.type("input[name=search]", "star")
    page.wait_for_timeout(500)
    film.take(HOLD_MS // 2)
    page.keyboard.press("Enter")
    page.wait_for_load_state("networkidle")
    film.take(HOLD_MS)
    page.locator(".card .look").nth(1).click()
    page.wait_for_load_state("networkidle")
    film.take(HOLD_MS)
    page.locator(".now .thumb.up").nth(6).click()
    page.locator(".now .thumb[aria-pressed=true]").first.wait_for()
    page.wait_for_timeout(400)
    film.take(HOLD_MS)
    page.locator(".now .why").first.click()
    page.locator("#why[open]").wait_for()
    page.wait_for_timeout(600)
    film.take(HOLD_MS)
    page.goto(f"{url}/c/shapes/teach")
    page.wait_for_timeout(1500)
    film.take(HOLD_MS)
    for _ in range(4):
        if not page.locator(".teach [aria-pressed=true], .teach :checked").count():
            page.keyboard.press("1")
            page.wait_for_timeout(200)
            film.take()
        page.keyboard.press("Enter")
        page.wait_for_timeout(400)
        film.take(HOLD_MS // 3)
    page.goto(f"{url}/c/shapes/learning")
    page.wait_for_timeout(2500)
    film.take(2 * HOLD_MS)
    film.save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--only", default="", help="Names of pages, separated by commas.")
    parser.add_argument("--recording", action="store_true", help="Only the recording.")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    with (
        tempfile.TemporaryDirectory(prefix="stillhash-screenshots-") as name,
        served(Path(name)) as url,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        if not options.recording:
            take_pictures(browser, url, options.out, only)
        if not only:
            record(browser, url, options.out / "page.gif")
        browser.close()


if __name__ == "__main__":
    main()
