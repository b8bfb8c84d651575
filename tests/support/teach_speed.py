"""Label 100 items of a collection of 10,000 in a real browser, a key every 0.4 seconds, and report how that went.

`python -m tests.support.teach_speed [ITEMS] [SECONDS]` prints whether all answers were acknowledged and stored, and the
longest time until the next item was there after a key.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright

import stillhash
from stillhash import Collection
from stillhash.experiments.scenes import make_scenes
from tests.server.live_server import live_server

ANSWERS, LABELLED_FIRST = 100, 400
NEXT_ITEM = """([before]) => new Promise((resolve) => {
  const start = performance.now();
  const look = () => {
    const item = [...document.querySelectorAll(".teach-item")].find((one) => one.offsetParent);
    const picture = item?.querySelector("img");
    if (item && item.dataset.id !== before && (!picture || picture.complete)) return resolve(performance.now() - start);
    requestAnimationFrame(look);
  };
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "1", bubbles: true }));
  look();
})"""


def fill(path: Path, items: int) -> Collection:
    """Return a collection of scenes of digits, of which the first have labels."""
    scenes = make_scenes(items, 1)
    labels = [
        [str(c) for c in np.flatnonzero(row)] if r < LABELLED_FIRST else [] for r, row in enumerate(scenes.labels)
    ]
    collection = stillhash.open(path, 128, 64, init_rows=1000, codes_see_labels=False)
    collection.add(range(items), scenes.features, labels)
    collection.flush()
    return collection


def label(page: Any, seconds: float) -> tuple[dict[Any, str], list[float]]:
    """Press 1 again and again; return what was answered, and the milliseconds until the next item was there."""
    answers, waits = {}, []
    for _ in range(ANSWERS):
        began = time.monotonic()
        item = page.locator(".teach-item:visible")
        name = item.get_attribute("data-id")
        answers[json.loads(name)] = item.locator(".choice bdi").first.text_content()
        waits.append(page.evaluate(NEXT_ITEM, [name]))
        time.sleep(max(0.0, began + seconds - time.monotonic()))
    return answers, waits


def main(items: int = 10_000, seconds: float = 0.4) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        collection = fill(Path(folder) / "scenes", items)
        with live_server({"scenes": collection}) as server:
            page = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page()
            page.goto(f"{server.url}/c/scenes/teach?sitting=speed&one=1")
            began = time.monotonic()
            answers, waits = label(page, seconds)
            elapsed = time.monotonic() - began
            page.locator('#saved[data-state="ok"][data-waiting="0"]').wait_for()
            saved = time.monotonic() - began - elapsed
            stored = {item.id: item.labels for item in collection.get(list(answers)) if item is not None}
            right = sum(stored[id_] == [label] for id_, label in answers.items())
            gain = page.locator(".gained").inner_text().replace("\n", " ")
        print(
            f"{len(answers)} answers in {elapsed:.1f} s; {right} acknowledged and stored, the last after {saved:.2f} s"
        )
        print(f"until the next item: median {statistics.median(waits):.1f} ms, longest {max(waits):.1f} ms")
        print(gain)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *map(float, sys.argv[2:3]))
