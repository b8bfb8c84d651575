"""Learn from clicks alone: visitors see a first page of hits, click on some, and the page gets better.

Items are handwritten digits without any label. Visitors come back with the same queries; each looks at a hit less
often the further down it is shown (position bias), clicks on most of the right ones and on a few wrong ones by mistake.
The clicks of a day are sent together, each with the position of its hit, so that a click far down counts more. One call
publishes one version of the model. Queries that visitors clicked on gain most, and queries that no one has tried yet
gain a little. At last a program with twenty accounts pushes one item to the top of every page; a rollback takes that
back.

    pip install 'stillhash[experiments]'        # for the digits of scikit-learn
    python examples/clicks.py
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import stillhash
from stillhash import Answer, Vote

DAYS, VISITS = 5, 500  # visits a day
ROBOTS = 20  # accounts that push one item on the last day
CLICK = 0.3  # a click is a weak vote; "up" counts 1
RIGHT_CLICKED, WRONG_CLICKED = 0.8, 0.05  # of the hits that a visitor looks at


def run(folder: Path) -> dict[str, Any]:
    """Let visitors come for some days, and return P@10 of their queries and of others, day by day."""
    pixels, digits = load_digits(return_X_y=True)
    popular, popular_digits = pixels[1000:1200], digits[1000:1200]  # queries that visitors come back with
    untried, untried_digits = pixels[1200:], digits[1200:]
    rng = np.random.default_rng(0)
    days: list[dict[str, float]] = []

    with stillhash.open(folder / "digits", dim=64, bits=64, init_rows=500) as collection:
        collection.add(range(1000), pixels[:1000])
        for day in range(DAYS + 1):
            pages, other_pages = collection.search(popular, k=10), collection.search(untried, k=10)
            right = is_right(pages, digits, popular_digits)  # (200, 10)
            days.append({"popular": share(right), "untried": share(is_right(other_pages, digits, untried_digits))})
            if day == DAYS:
                break
            clicks = [
                Vote(popular[query], pages[query].hits[position - 1].id, CLICK, f"{day}: {visitor}", position)
                for visitor, query in enumerate(rng.integers(0, len(popular), VISITS))
                for position in clicked_positions(rng, right[query])
            ]
            good = collection.feedback_many(clicks)  # the number of the new version

        accounts = [f"robot {number}" for number in range(ROBOTS)]
        collection.feedback_many(Vote(query, 0, "up", account) for query in popular for account in accounts)
        pushed = share(is_right(collection.search(popular, k=1), digits, popular_digits))
        collection.rollback(good)
        restored = [page.hits for page in collection.search(popular, k=10)] == [page.hits for page in pages]
    return {
        "before": days[0]["popular"],
        "after": days[-1]["popular"],
        "days": days,
        "first_hit": {"before_robots": share(right[:, 0]), "after_robots": pushed, "same_after_rollback": restored},
    }


def is_right(pages: list[Answer], digits: NDArray[np.int64], truth: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each query and each of its hits whether the hit shows the digit of the query."""
    ids = np.array([[hit.id for hit in page.hits] for page in pages])
    return np.equal(digits[ids], truth[:, None])


def share(right: NDArray[np.bool_]) -> float:
    return round(float(right.mean()), 3)


def clicked_positions(rng: np.random.Generator, right: NDArray[np.bool_]) -> list[int]:
    """Return the positions, from 1, that one visitor clicks on; the chance to look at all falls with the position."""
    positions = np.arange(1, len(right) + 1)
    looks = rng.random(len(right)) < 1 / np.log2(1 + positions)
    clicks = rng.random(len(right)) < np.where(right, RIGHT_CLICKED, WRONG_CLICKED)
    return positions[looks & clicks].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a new folder for the collection; a temporary one without")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    options = parser.parse_args()
    if options.out and options.out.exists():
        parser.error(f"--out: expected a new folder, got {options.out}, which exists")
    with tempfile.TemporaryDirectory() as temporary:
        result = run(options.out or Path(temporary) / "clicks")
    if options.json:
        print(json.dumps(result))
        return
    print("P@10, the share of the first ten hits that show the digit of the query")
    print("day   queries with clicks   queries without")
    for day, line in enumerate(result["days"]):
        print(f"{day:3} {line['popular']:21.3f} {line['untried']:17.3f}")
    first = result["first_hit"]
    print(f"first hits that are right: {first['before_robots']:.3f}; with one item pushed: {first['after_robots']:.3f}")
    print("after the rollback all pages are as before" if first["same_after_rollback"] else "the rollback failed")


if __name__ == "__main__":
    main()
