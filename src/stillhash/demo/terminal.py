"""The demo in the terminal: scenes of digits stream in, their codes stay fixed, and ranking them gets better.

`run` streams and measures, and its result is plain JSON; `show` prints it. The learnt similarity and Hamming ranking
search the very same codes, fixed on the first scenes, so the gap between their curves is what the similarity learnt.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.text import Text

from stillhash.errors import InvalidInput
from stillhash.experiments.metrics import evaluate
from stillhash.experiments.scenes import Scenes, make_scenes
from stillhash.experiments.tables import print_table
from stillhash.hashers import DEFAULT_HASHER, METHODS, Hasher
from stillhash.numeric.codes import signs
from stillhash.numeric.ranking import Ranking
from stillhash.numeric.validation import Floats, check_choice, check_integer
from stillhash.search import Scan

DEMO_QUERIES = 300
FIT_SCENES = 300  # scenes that fix the hash functions
SCENES_PER_STEP = 1000
CURVE_POINTS = 12  # about
EXAMPLE_QUERIES, EXAMPLE_HITS = 5, 5
DEMO_METHODS = (DEFAULT_HASHER.name, "ohsl")  # methods of fixed codes


def run(scenes: int, bits: int, seed: int, plot: Path, console: Console, method: str = "tally") -> dict[str, Any]:
    """Stream `scenes` scenes, some of them held out as queries, and draw the learning curve to `plot`."""
    check_integer(scenes, "scenes", 2000)
    check_choice(method, "method", DEMO_METHODS)
    if plot.is_dir() or not plot.parent.is_dir():
        raise InvalidInput(f"plot: expected a file in an existing folder, got {str(plot)!r}")
    began = time.perf_counter()
    query_count = min(DEMO_QUERIES, scenes // 10)
    with console.status(f"Making {scenes:,} scenes of digits"):
        queries = make_scenes(query_count, seed, part="queries")
        database = make_scenes(scenes - query_count, seed)
    sizes = f"{scenes - query_count:,} scenes of 1 to 4 digits, {query_count} queries, {bits}-bit codes"
    console.print(sizes, highlight=False)
    first = database.features[:FIT_SCENES], database.labels[:FIT_SCENES]
    stream = _Stream(METHODS[method](bits, random_state=seed).fit(*first), queries, database)
    curve = _run_stream(stream, console)
    codes_unchanged = np.array_equal(stream.index.codes(stream.index.ids()), stream.hasher.encode(database.features))
    with console.status("Drawing the learning curve"):
        _figure(curve, bits, queries).savefig(plot, format="png")
    about = {"scenes": len(database.labels), "queries": query_count, "method": method, "bits": bits, "seed": seed}
    return {
        **about,
        "curve": curve,
        "codes_unchanged": codes_unchanged,
        **stream.best_hits(),
        "plot": str(plot),
        "rows_per_second": round(len(database.labels) / stream.learning),
        "seconds": round(time.perf_counter() - began, 2),
    }


class _Stream:
    """Streams the database chunk by chunk: encode once, index, learn."""

    def __init__(self, hasher: Hasher, queries: Scenes, database: Scenes) -> None:
        self.hasher, self.queries, self.database = hasher, queries, database
        self.index = Scan(hasher.bits)
        self.learning = 0.0  # seconds
        self.hamming: Floats = signs(hasher.encode(queries.features), hasher.bits)

    def points(self) -> Iterator[tuple[int, list[float] | None]]:
        """Yield the rows learnt after each chunk, and a point of the curve where one is due."""
        total = len(self.database.labels)
        starts = range(0, total, SCENES_PER_STEP)
        every = max(1, round(len(starts) / CURVE_POINTS))
        for i, start in enumerate(starts):
            _, labels, features = (array[start : start + SCENES_PER_STEP] for array in self.database)
            self.index.add(self.hasher.encode(features))
            if not start:
                yield 0, self._point(0)
            clock = time.perf_counter()
            self.hasher.partial_fit(features, labels)
            self.learning += time.perf_counter() - clock
            learnt = start + len(labels)
            due = i < 2 or (i + 1) % every == 0 or learnt == total  # the start is where the curve is steep
            yield learnt, self._point(learnt) if due else None

    def _point(self, learnt: int) -> list[float]:
        """Return rows learnt, and mAP over the codes so far: by Hamming ranking, as learnt, in random order."""
        codes, labels = self.index.codes(self.index.ids()), self.database.labels[: len(self.index)]
        hamming, learning = (
            evaluate(ranking, codes, self.queries.labels, labels).map
            for ranking in (Ranking(self.hamming), self.hasher.ranking(self.queries.features))
        )
        shared = self.queries.labels.astype(np.float32) @ labels.T.astype(np.float32)
        return [learnt, hamming, learning, float((shared > 0).mean())]

    def best_hits(self) -> dict[str, Any]:
        """Return how many of the best hits match before and after learning, and the queries that were worst before."""
        weights = self.hamming, self.hasher.weigh(self.queries.features)
        before, after = (self.index.search(some, EXAMPLE_HITS).ids for some in weights)  # (queries, EXAMPLE_HITS)
        labels = self.queries.labels
        matching = (self.database.labels[ids] & labels[:, None] for ids in (before, after))  # (queries, hits, 10)
        old, new = (shared.any(axis=2).mean(axis=1) for shared in matching)
        worst = np.argsort(old, kind="stable")[:EXAMPLE_QUERIES]
        examples = [
            {"query": _names(labels[q]), "before": self._hits(q, before[q]), "after": self._hits(q, after[q])}
            for q in worst
        ]
        return {"best_matching": {"before": float(old.mean()), "after": float(new.mean())}, "worst": examples}

    def _hits(self, query: int, ids: NDArray[np.int64]) -> list[dict[str, list[int]]]:
        items, expected = self.database.labels[ids], self.queries.labels[query]
        return [{"labels": _names(labels), "matching": _names(labels & expected)} for labels in items]


def _names(labels: NDArray[np.bool_]) -> list[int]:
    return [int(name) for name in np.flatnonzero(labels)]


def _run_stream(stream: _Stream, console: Console) -> list[list[float]]:
    """Run the stream to its end; print a line for each point and, on a terminal, a progress bar."""
    curve: list[list[float]] = []
    heading = f"{'learnt':>9}  {'Hamming mAP':>11}  {'learnt mAP':>10}  {'gain':>6}"
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("learning", total=len(stream.database.labels))
        console.print(heading, style="bold", highlight=False)
        for learnt, point in stream.points():
            progress.update(task, completed=learnt)
            if point:
                curve.append(point)
                _, hamming, learning, _ = point
                gain = learning - hamming
                console.print(f"{learnt:9,}  {hamming:11.3f}  {learning:10.3f}  {gain:+6.3f}", highlight=False)
    return curve


def _figure(curve: list[list[float]], bits: int, queries: Scenes) -> Figure:
    """Draw the learning curve, and four scenes."""
    learnt, hamming, learning, chance = zip(*curve, strict=True)
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    grid = figure.add_gridspec(4, 2, width_ratios=(6, 1))

    axes = figure.add_subplot(grid[:, 0])
    for values, name, colour, line, width, offset in (
        (chance, "chance", "#b45309", "--", 1.2, -9),
        (hamming, "Hamming ranking", "#6b7280", "o-", 2, -9),
        (learning, "learnt similarity", "#0f766e", "o-", 2, 9),
    ):
        axes.plot(learnt, values, line, color=colour, linewidth=width, markersize=4)
        place: dict[str, Any] = {"xytext": (0, offset), "textcoords": "offset points", "ha": "right", "color": colour}
        text, end = f"{name}, {values[-1]:.3f}", (learnt[-1], values[-1])
        axes.annotate(text, end, va="bottom" if offset > 0 else "top", **place)
    axes.set_title(f"Fixed {bits}-bit codes, learned similarity", loc="left", weight="bold")
    axes.set_xlabel("scenes learnt")
    axes.set_ylabel(f"mean average precision, {len(queries.labels)} queries")
    axes.set_xlim(0, learnt[-1] * 1.02)
    low, high = min(chance), max(*learning, *hamming)
    axes.set_ylim(low - 0.2 * (high - low), high + 0.15 * (high - low))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e7eb", linewidth=0.8)

    for i in range(4):
        picture = figure.add_subplot(grid[i, 1])
        picture.imshow(queries.images[i], cmap="gray_r", interpolation="nearest")
        picture.set_title(", ".join(map(str, _names(queries.labels[i]))), fontsize=8, pad=3)
        picture.set(xticks=[], yticks=[])
        picture.spines[:].set_color("#d1d5db")
    return figure


def show(result: dict[str, Any], console: Console) -> None:
    """Print a few lines, and the hits of some queries before and after learning."""
    _, hamming, learning, chance = result["curve"][-1]
    unchanged = "none has changed" if result["codes_unchanged"] else "[bold red]some have changed[/]"
    for line in (
        f"mAP [bold]{hamming:.3f}[/] by Hamming ranking, [bold green]{learning:.3f}[/] by the learnt similarity, "
        f"{chance:.3f} by chance.",
        f"Both rank the same {result['scenes']:,} codes of {result['bits']} bits, and {unchanged}.",
        f"Learnt {result['rows_per_second']:,} scenes a second; {result['seconds']:.0f} s in total. "
        f"Learning curve: {escape(result['plot'])}",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    share = result["best_matching"]
    title = f"The {EXAMPLE_QUERIES} queries that Hamming ranking answers worst, and their {EXAMPLE_HITS} best hits"
    columns = ("query", "before: Hamming", "after: learnt")
    rows = [
        (_digits(one["query"], one["query"]), _hit_digits(one["before"]), _hit_digits(one["after"]))
        for one in result["worst"]
    ]
    console.print()
    print_table(console, title, columns, rows, text=columns)
    console.print(
        f"Green: a digit of the query. Over all {result['queries']} queries {share['before']:.1%} of the best hits "
        f"share one before, {share['after']:.1%} after.",
        highlight=False,
    )


def _hit_digits(hits: list[dict[str, list[int]]]) -> Text:
    """Return how many match, and the hits side by side in columns of equal width."""
    count = Text(f"{sum(bool(hit['matching']) for hit in hits)}/{len(hits)} ")
    cells = (_digits(hit["labels"], hit["matching"]) + Text(" " * (4 - len(hit["labels"]))) for hit in hits)
    return Text(" ").join([count, *cells])


def _digits(labels: list[int], matching: list[int]) -> Text:
    return Text.assemble(*((str(name), "bold green" if name in matching else "dim") for name in labels))
