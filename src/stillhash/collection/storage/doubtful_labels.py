"""The rows whose labels agree least with what their features predict, and histograms of that agreement.

Each agreement was measured before the row was learnt. `meta` has the histograms of two kinds: of rows with their own
labels, and of the same rows with labels of items at random. Both forget with a half-life, so that they tell of the
latest rows and of what is learnt by now.
"""

from collections.abc import Iterable
from sqlite3 import Connection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.storage.schema import count_rows, get_meta, set_meta
from stillhash.errors import BadState
from stillhash.numeric.validation import Floats

MAX_DOUBTFUL = 1000  # rows of the table
HISTOGRAM_BINS = 256  # of agreement, from -1 to 1
HISTOGRAM_HALF_LIFE = 20_000  # rows after which a row counts for half in the histograms
HISTOGRAMS_KEY = "label_agreement"  # in the table `meta`


class DoubtfulRow(NamedTuple):
    """A row of the table."""

    row: int
    agreement: float  # the cosine of the labels and of those predicted, -1 to 1
    predicted: str  # labels as JSON, best first


class DoubtfulLabelTable:
    """Keep at most MAX_DOUBTFUL rows: those of the lowest agreement."""

    def add(self, connection: Connection, rows: Iterable[DoubtfulRow]) -> None:
        """Add rows, and drop those that agree better than MAX_DOUBTFUL others."""
        connection.executemany("INSERT OR REPLACE INTO doubtful_labels VALUES (?, ?, ?)", rows)
        worst = f"SELECT row FROM doubtful_labels ORDER BY agreement, row LIMIT {MAX_DOUBTFUL}"
        if count_rows(connection, "doubtful_labels") > MAX_DOUBTFUL:
            connection.execute(f"DELETE FROM doubtful_labels WHERE row NOT IN ({worst})")

    def highest(self, connection: Connection) -> float:
        """Return the agreement below which a row belongs into the table."""
        count, highest = connection.execute("SELECT count(*), max(agreement) FROM doubtful_labels").fetchone()
        return float(highest) if count >= MAX_DOUBTFUL else np.inf

    def first(self, connection: Connection, count: int) -> list[DoubtfulRow]:
        """Return rows, the lowest agreement first."""
        sql = "SELECT row, agreement, predicted FROM doubtful_labels ORDER BY agreement, row LIMIT ?"
        return [DoubtfulRow(*row) for row in connection.execute(sql, [count])]

    def count_stray(self, connection: Connection) -> int:
        """Count the rows without an item."""
        sql = "SELECT count(*) FROM doubtful_labels WHERE row NOT IN (SELECT row FROM items)"
        return int(connection.execute(sql).fetchone()[0])

    def add_agreements(self, connection: Connection, own: Floats, random: Floats) -> None:
        """Count the agreement of rows with their own labels, and with labels at random."""
        counts = 0.5 ** (len(own) / HISTOGRAM_HALF_LIFE) * self.histograms(connection)
        for histogram, agreements in zip(counts, (own, random), strict=True):
            histogram += np.bincount(histogram_bins(agreements), minlength=HISTOGRAM_BINS)
        set_meta(connection, HISTOGRAMS_KEY, counts.astype("<f4").tobytes())

    def histograms(self, connection: Connection) -> NDArray[np.float64]:
        """Return both histograms (2, HISTOGRAM_BINS): of own labels, and of labels at random."""
        data = get_meta(connection, HISTOGRAMS_KEY)
        if data is None:
            return np.zeros((2, HISTOGRAM_BINS))
        if not isinstance(data, bytes) or len(data) != 8 * HISTOGRAM_BINS:
            raise BadState(f"{HISTOGRAMS_KEY}: expected two histograms of {HISTOGRAM_BINS} bins, got other data")
        counts = np.frombuffer(data, "<f4").reshape(2, HISTOGRAM_BINS).astype(np.float64)
        if not np.isfinite(counts).all() or (counts < 0).any():
            raise BadState(f"{HISTOGRAMS_KEY}: expected counts, got negative numbers, infinity or NaN")
        return counts


def histogram_bins(agreements: Floats) -> NDArray[np.int64]:
    """Return the bin of each agreement."""
    return np.asarray(np.clip((agreements + 1) * (HISTOGRAM_BINS / 2), 0, HISTOGRAM_BINS - 1), np.int64)
