"""Take the pictures of the web page that the guides show: `python -m tests.support.page_pictures docs/images`.

Needs chromium and a few minutes: the demo streams all its scenes in first.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

import stillhash

ITEM = "008/008104.png"  # gains more than most
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
PICTURES: dict[str, tuple[str, dict[str, Any]]] = {  # name: path below the collection, options of the browser
    "page-search": (f"?like={ITEM}", DESKTOP),
    "page-search-dark": (f"?like={ITEM}", {**DESKTOP, "color_scheme": "dark"}),
    "page-phone": (f"?like={ITEM}", PHONE),
    "page-learning": ("/learning", DESKTOP),
    "page-collection": ("/collection", DESKTOP),
}


def wait_until_ingested(url: str) -> None:
    """Return when no more rows arrive."""
    with stillhash.Client(url) as client:
        before = -1
        while (now := client.count()) != before or now == 0:
            before = now
            time.sleep(10)


def take_pictures(url: str, folder: Path) -> None:
    """Save every picture as a small PNG with a palette."""
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (path, options) in PICTURES.items():
            page = browser.new_context(**options).new_page()
            page.goto(url + path, wait_until="load")
            page.wait_for_timeout(2000)  # thumbnails and the curve
            file = folder / f"{name}.png"
            page.screenshot(path=file)
            with Image.open(file) as picture:
                small = picture.convert("RGB").quantize(256)
            small.save(file, optimize=True)
        browser.close()


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as path:
        command = [sys.executable, "-m", "stillhash", "demo", "--port", "0", "--path", f"{path}/scenes"]
        demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=path)
        try:
            assert demo.stdout is not None
            match = re.search(r"http://\S+:\d+", demo.stdout.readline())
            assert match is not None
            wait_until_ingested(match[0])
            take_pictures(f"{match[0]}/c/scenes", folder)
        finally:
            demo.send_signal(signal.SIGINT)
            demo.communicate()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
