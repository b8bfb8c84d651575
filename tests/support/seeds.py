"""The seed of a test run: hypothesis and every test that uses `random` start from it.

pytest prints it at the end; `STILLHASH_SEED=... pytest ...` repeats a run. It is 1 where CI is set, else random.
"""

from __future__ import annotations

import os
import random

SEED_VARIABLE = "STILLHASH_SEED"


def run_seed() -> str:
    """Return the seed of this run, the same in this process and in all that it starts."""
    if not os.environ.get(SEED_VARIABLE):
        os.environ[SEED_VARIABLE] = "1" if os.environ.get("CI") else str(random.randrange(2**32))
    return os.environ[SEED_VARIABLE]
