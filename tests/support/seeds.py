"""Chance that can be repeated: STILLHASH_SEED repeats a run.

New at every run here; the same each time where a red run would stand in somebody else's way, as for hypothesis.
"""

from __future__ import annotations

import os
import random


def drawn_seed() -> str:
    return os.environ.get("STILLHASH_SEED") or ("1" if os.environ.get("CI") else str(random.randrange(2**32)))
