"""The demo in the terminal: scenes of digits are encoded once, labels stream in, and the first hits get better.

`run` measures, and its result is plain JSON; `show` prints it. Every line of the table ranks the very same codes, fixed
on the first scenes without their labels; only the similarity has learnt more labels.
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

from stillhash.demo.collection_tour import Tour, take_tour
from stillhash.errors import InvalidInput
from stillhash.experiments.metrics import evaluate
from stillhash.experiments.scenes import Scenes, make_scenes
from stillhash.experiments.tables import print_table
from stillhash.hashers import DEFAULT_HASHER, METHODS, Hasher, load
from stillhash.numeric.ranking import Ranking
from stillhash.numeric.validation import check_choice, check_integer
from stillhash.search import Scan
from stillhash.search.first_page import search_page

DEMO_QUERIES = 100
FIT_SCENES = 300  # scenes that fix the hash functions, without labels
LABELLED = (0, 10, 30, 100, 300, 1000, 3000, 10_000)  # scenes learnt at the points of the curve; at the last, all
FEW_LABELS, DRAWS = 100, 5  # up to so many labels a point is the mean over several draws: which ones matters most here
MEASURES = {"precision_10": "P@10", "ndcg_10": "nDCG@10", "map": "mAP"}
EXAMPLE_QUERIES, EXAMPLE_HITS = 5, 5
DEMO_METHODS = (DEFAULT_HASHER.name, "ohsl")  # methods of fixed codes

CurvePoint = dict[str, float]  # labelled, and the measures


def run(scenes: int, bits: int, seed: int, plot: Path, console: Console, method: str = "tally") -> dict[str, Any]:
    """Stream the labels of `scenes` scenes, some held out as queries, and draw the learning curve to `plot`."""
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
    hasher = METHODS[method](bits, random_state=seed).fit(database.features[:FIT_SCENES])
    stream = _LabelStream(hasher, queries, database)
    curve = _run_stream(stream, console)
    with console.status("Drawing the learning curve, asking a collection"):
        _figure(curve, bits, queries).savefig(plot, format="png")
        tour = take_tour(database, queries, bits, method)
    about = {"scenes": len(database.labels), "queries": query_count, "method": method, "bits": bits, "seed": seed}
    shared = queries.labels.astype(np.float32) @ database.labels.T.astype(np.float32)
    return {
        **about,
        "curve": curve,
        "chance": float((shared > 0).mean()),
        "codes_unchanged": np.array_equal(stream.codes, hasher.encode(database.features)),
        **stream.first_hits(),
        "tour": tour._asdict(),
        "plot": str(plot),
        "rows_per_second": round(len(database.labels) / stream.learning),
        "seconds": round(time.perf_counter() - began, 2),
    }


class _LabelStream:
    """Encodes the database once, then learns its labels, first a few, then more."""

    def __init__(self, hasher: Hasher, queries: Scenes, database: Scenes) -> None:
        self.hasher, self.queries, self.database = hasher, queries, database
        self.codes = hasher.encode(database.features)
        self.before = hasher.ranking(queries.features)
        self.learning = 0.0  # seconds

    def points(self) -> Iterator[CurvePoint]:
        """Yield the quality over the same codes after more and more labels."""
        total, unlearnt = len(self.database.labels), self.hasher.state()
        orders = [np.random.default_rng(draw).permutation(total) for draw in range(DRAWS)]
        learnt = 0
        for labelled in [count for count in LABELLED if count < total] + [total]:
            if 0 < labelled <= FEW_LABELS:
                draws = [self._measure(self._learn(load(unlearnt), order[:labelled])) for order in orders]
                means = {name: sum(draw[name] for draw in draws) / DRAWS for name in MEASURES}
            else:
                means = self._measure(self._learn(self.hasher, orders[0][learnt:labelled]))
                learnt = labelled
            yield {"labelled": labelled, **means}

    def _learn(self, hasher: Hasher, rows: NDArray[np.int64]) -> Ranking:
        """Learn the labels of these scenes, and return how the queries are ranked then."""
        features, labels = self.database.features[rows], self.database.labels[rows]
        clock = time.perf_counter()
        if len(rows):
            hasher.partial_fit(features, labels)
        ranking = hasher.ranking(self.queries.features)
        if hasher is self.hasher:
            self.learning += time.perf_counter() - clock
        return ranking

    def _measure(self, ranking: Ranking) -> CurvePoint:
        quality = evaluate(ranking, self.codes, self.queries.labels, self.database.labels)
        return {name: getattr(quality, name) for name in MEASURES}

    def first_hits(self) -> dict[str, Any]:
        """Return how many of the first hits match before and after learning, and the queries that were worst before."""
        index = Scan(self.hasher.bits)
        index.add(self.codes)
        rankings = self.before, self.hasher.ranking(self.queries.features)
        before, after = (search_page(index, ranking, EXAMPLE_HITS).ids for ranking in rankings)  # (queries, hits)
        labels = self.queries.labels
        matching = (self.database.labels[ids] & labels[:, None] for ids in (before, after))  # (queries, hits, 10)
        old, new = (shared.any(axis=2).mean(axis=1) for shared in matching)
        worst = np.argsort(old, kind="stable")[:EXAMPLE_QUERIES]
        examples = [
            {"query": _names(labels[q]), "before": self._hits(q, before[q]), "after": self._hits(q, after[q])}
            for q in worst
        ]
        return {"first_matching": {"before": float(old.mean()), "after": float(new.mean())}, "worst": examples}

    def _hits(self, query: int, ids: NDArray[np.int64]) -> list[dict[str, list[int]]]:
        items, expected = self.database.labels[ids], self.queries.labels[query]
        return [{"labels": _names(labels), "matching": _names(labels & expected)} for labels in items]


def _names(labels: NDArray[np.bool_]) -> list[int]:
    return [int(name) for name in np.flatnonzero(labels)]


def _run_stream(stream: _LabelStream, console: Console) -> list[CurvePoint]:
    """Run the stream to its end; print a line for each point and, on a terminal, a progress bar."""
    curve: list[CurvePoint] = []
    heading = "  ".join(f"{name:>7} {'gain':>6}" for name in MEASURES.values())
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("learning", total=len(stream.database.labels))
        console.print(f"{'labelled':>9}  {heading}", style="bold", highlight=False)
        for point in stream.points():
            curve.append(point)
            gains = {name: round(point[name] - curve[0][name], 3) + 0.0 for name in MEASURES}  # no -0.000
            cells = (f"{point[name]:7.3f} {gain:+6.3f}" for name, gain in gains.items())
            console.print(f"{point['labelled']:9,}  {'  '.join(cells)}", highlight=False)
            progress.update(task, completed=point["labelled"])
    return curve


def _figure(curve: list[CurvePoint], bits: int, queries: Scenes) -> Figure:
    """Draw nDCG@10 and P@10 against labels, and four scenes."""
    figure = Figure(figsize=(9, 4.2), dpi=150, layout="constrained")
    grid = figure.add_gridspec(4, 3, width_ratios=(6, 6, 1.6))
    figure.suptitle(f"The first ten hits over the same {bits}-bit codes", x=0.01, ha="left", weight="bold")
    places = range(len(curve))
    for column, (name, colour) in enumerate((("ndcg_10", "#0f766e"), ("precision_10", "#7c3aed"))):
        axes, values = figure.add_subplot(grid[:, column]), [point[name] for point in curve]
        axes.plot(places, values, "o-", color=colour, linewidth=2, markersize=4)
        axes.axhline(values[0], color="#6b7280", linestyle="--", linewidth=1.2)
        span = max(max(values) - min(values), 0.01)
        axes.annotate("before learning", (places[-1], values[0] - 0.04 * span), color="#6b7280", ha="right", va="top")
        axes.annotate(
            f"{values[-1]:.3f}", (places[-1], values[-1] + 0.04 * span), color=colour, ha="right", va="bottom"
        )
        axes.set_title(MEASURES[name], loc="left", color=colour)
        axes.set_xlabel("labelled scenes learnt")
        axes.set_xticks(places, [f"{point['labelled']:,}" for point in curve], rotation=45)
        axes.set_ylim(min(values) - 0.2 * span, max(values) + 0.2 * span)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e5e7eb", linewidth=0.8)
    for i in range(4):
        picture = figure.add_subplot(grid[i, 2])
        picture.imshow(queries.images[i], cmap="gray_r", interpolation="nearest")
        picture.set_title(", ".join(map(str, _names(queries.labels[i]))), fontsize=8, pad=3)
        picture.set(xticks=[], yticks=[])
        picture.spines[:].set_color("#d1d5db")
    return figure


def show(result: dict[str, Any], console: Console) -> None:
    """Print a few lines, the hits of some queries before and after learning, and what a collection answers."""
    first, last = result["curve"][0], result["curve"][-1]
    unchanged = "none has changed" if result["codes_unchanged"] else "[bold red]some have changed[/]"
    changes = (f"{name} {first[key]:.3f} -> [bold green]{last[key]:.3f}[/]" for key, name in MEASURES.items())
    for line in (
        f"{', '.join(changes)}.",
        f"Every line ranks the same {result['scenes']:,} codes of {result['bits']} bits, and {unchanged}.",
        f"Up to {FEW_LABELS} labels: the mean of {DRAWS} draws. "
        f"A random order has P@10 and mAP {result['chance']:.2f}.",
        f"Learnt {result['rows_per_second']:,} labelled scenes a second; {result['seconds']:.0f} s in total. "
        f"Learning curve: {escape(result['plot'])}",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    share = result["first_matching"]
    title = f"The {EXAMPLE_QUERIES} queries with the worst first {EXAMPLE_HITS} hits before learning"
    columns = ("query", "before learning", "after all labels")
    rows = [
        (_digits(one["query"], one["query"]), _hit_digits(one["before"]), _hit_digits(one["after"]))
        for one in result["worst"]
    ]
    console.print()
    print_table(console, title, columns, rows, text=columns)
    console.print(
        f"Green: a digit of the query. Over all {result['queries']} queries {share['before']:.1%} of the first hits "
        f"share one before, {share['after']:.1%} after.",
        highlight=False,
    )
    console.print()
    for line in Tour(**result["tour"]).lines():
        console.print(line, highlight=False)


def _hit_digits(hits: list[dict[str, list[int]]]) -> Text:
    """Return how many match, and the hits side by side in columns of equal width."""
    count = Text(f"{sum(bool(hit['matching']) for hit in hits)}/{len(hits)} ")
    cells = (_digits(hit["labels"], hit["matching"]) + Text(" " * (4 - len(hit["labels"]))) for hit in hits)
    return Text(" ").join([count, *cells])


def _digits(labels: list[int], matching: list[int]) -> Text:
    return Text.assemble(*((str(name), "bold green" if name in matching else "dim") for name in labels))
