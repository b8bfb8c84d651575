"""BitBudget, a leaderboard of few-bit codes: rows for codes of 64 to 512 bits, by quality and by speed.

Nothing is learnt here, since BitBudget has no labels: the weights of a query are its projections. `python -m
stillhash.integrations.bitbudget ARGUMENTS` is the command `bitbudget ARGUMENTS` with these rows.
"""

import sys
import time
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import MissingExtra
from stillhash.hashers import Tally
from stillhash.numeric.codes import signs, width
from stillhash.numeric.validation import Floats
from stillhash.search import Index

try:
    bitbudget: Any = import_module("bitbudget")
except ImportError as error:
    raise MissingExtra(
        "stillhash.integrations.bitbudget needs BitBudget: pip install 'stillhash[bitbudget]'"
    ) from error

ROW_BITS = (64, 128, 256, 512)
TIMED_SEARCHES = 3  # of which the fastest counts, as for the other rows
FITTED_DOCUMENTS = 20_000  # at most, of the documents


def row_name(bits: int) -> str:
    return f"stillhash-{bits}"


def register() -> None:
    """Add a method and an index for each length of codes to the tables of BitBudget."""
    for bits in ROW_BITS:
        bitbudget.method(row_name(bits), bits=1)(CodeMethod(bits))
        bitbudget.index(row_name(bits), axis="quantisation")(CodeSearch(bits))


class CodeMethod:
    """Score all documents for all queries, as BitBudget calls a method of compression."""

    def __init__(self, bits: int) -> None:
        self.code_bits = bits

    def __call__(self, documents: Floats, queries: Floats) -> tuple[Floats, float]:
        """Return scores (queries, documents), and the bytes of a code."""
        hasher = fit_hasher(documents, self.code_bits)
        return hasher.weigh(queries) @ signs(hasher.encode(documents), self.code_bits).T, float(width(self.code_bits))


class CodeSearch:
    """Search exactly by the same scores, as BitBudget calls an index."""

    def __init__(self, bits: int) -> None:
        self.code_bits = bits

    def __call__(self, documents: Floats, queries: Floats, k: int) -> tuple[NDArray[np.int64], float, float]:
        """Return rows (queries, k), the bytes of a code, and queries per second, with encoding them."""
        hasher = fit_hasher(documents, self.code_bits)
        index = Index(self.code_bits)
        index.add(hasher.encode(documents))
        seconds = []
        for _ in range(TIMED_SEARCHES):
            start = time.perf_counter()
            hits = index.search(hasher.weigh(queries), k)
            seconds.append(time.perf_counter() - start)
        return hits.ids, float(width(self.code_bits)), len(queries) / min(seconds)


def fit_hasher(documents: Floats, bits: int) -> Tally:
    """Fix the hash functions on documents, some of them if there are many."""
    rng = np.random.default_rng(0)
    rows = rng.choice(len(documents), min(FITTED_DOCUMENTS, len(documents)), replace=False)
    return Tally(bits).fit(documents[np.sort(rows)])


def main(arguments: list[str]) -> None:
    """Run the command of BitBudget with our rows."""
    register()
    own = ["--no-split"] if arguments[:1] == ["bench-index"] else []  # another process would not have our rows
    import_module("bitbudget.cli").main([*arguments, *own])


if __name__ == "__main__":
    main(sys.argv[1:])
