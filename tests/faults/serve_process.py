"""The command `stillhash serve` on a disk that a test controls: each line of stdin names what fails from then on."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from stillhash.__main__ import main
from tests.collection import disk
from tests.faults.injection import Injection


def obey() -> None:
    """Let the disk fail as the lines say; an empty one lets it work again."""
    for line in sys.stdin:
        if kind := line.strip():
            disk.fail(kind, 1)
        else:
            disk.recover()


if __name__ == "__main__":
    if folder := sys.argv.pop(1):
        disk.watch(Path(folder))
        threading.Thread(target=obey, daemon=True).start()
    else:
        Injection.of_this_process()
    main()
