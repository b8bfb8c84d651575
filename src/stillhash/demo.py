"""The demonstration: scenes of handwritten digits, whose similarity is learnt over codes that never change.

`run_page` serves a page while scenes stream in: they are written as PNG files and indexed like any folder of images
(the `classic` encoder, a thumbnail), without labels. Their labels come later, by `relabel`. Each batch of them is
evaluated and learnt, and the page shows the quality over time. At the end the page stays.

`run_terminal` stores scenes without labels, and labels arrive later, by `relabel`: first a few, then more, and each
line searches for the same queries. Beside them is float cosine: what search without labels gives, from all of the
features. At the end a stored scene finds itself, and a vote moves its own item. The result is plain JSON; `show` prints
it.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.text import Text

from stillhash.collection import Collection, open
from stillhash.encoders import index_folder, open_encoder, open_query_encoder
from stillhash.errors import InvalidInput
from stillhash.experiments.label_studies import COLLECTION_INIT, cosine_ids, hit_ids, relabel
from stillhash.experiments.metrics import evaluate_hits
from stillhash.experiments.scenes import Scenes, make_scenes
from stillhash.experiments.tables import print_table
from stillhash.hashers import DEFAULT_HASHER
from stillhash.numeric.validation import Codes, Floats, check_choice, check_integer
from stillhash.server import Settings, serve

DEMO_QUERIES = 500
LABELLED = (0, 10, 30, 100, 300, 1000, 3000)  # scenes that have labels at the points of the curve; at the last, all
MEASURES = {"precision_10": "P@10", "ndcg_10": "nDCG@10"}
COSINE = "float cosine, no labels"
EXAMPLE_QUERIES, EXAMPLE_HITS, HITS = 5, 5, 10
DEMO_METHODS = (DEFAULT_HASHER.name, "ohsl")  # methods of fixed codes
STORED_QUERIES = 100
VOTED_RANK = 8
DEMO_ENCODER = "classic"
FIRST_SCENES = 500  # scenes indexed before the page is served
LEARN_ROWS = 250  # scenes of a step of learning
INIT_SCENES = 1000  # other scenes, which fix the hash functions
MAX_SCENES_PER_SECOND = 250  # scenes at most, so that the curve can be watched
PIXEL_SCALE = 4  # pixels of a file for one of a scene, whose digits are tiny

CurvePoint = dict[str, float]  # labelled, and the measures


# ---- the page ----


def run_page(
    scenes: int,
    bits: int,
    seed: int,
    method: str,
    port: int,
    path: Path | None,
    console: Console,
    announce: Callable[[str], None],
) -> None:
    """Serve until interrupted; without a path the collection is temporary and deleted."""
    check_integer(scenes, "scenes", 2000)
    check_choice(method, "method", DEMO_METHODS)
    with tempfile.TemporaryDirectory(prefix="stillhash-demo-", ignore_cleanup_errors=True) as temporary:
        encoder = open_encoder(DEMO_ENCODER)
        # The first steps would flatter the ranking if their rows had fixed the hash functions.
        sample = [_picture(image) for image in make_scenes(INIT_SCENES, seed + scenes).images]
        collection = open(
            path or Path(temporary) / "collection",
            bits=bits,
            method=method,
            encoder=encoder,
            init=encoder.encode(sample),
            learn_rows=LEARN_ROWS,
            keep_versions=64,
        )
        stream = Stream(collection, Path(temporary) / "files", scenes, seed, console)
        with console.status("Making the first scenes of digits"):
            stream.put(FIRST_SCENES)

        def listening(address: str) -> None:
            announce(address)
            stream.start()

        try:
            serve({"scenes": collection}, Settings(port=port), listening, {"scenes": open_query_encoder(collection)})
        finally:
            stream.stop()
            collection.close()


class Stream(threading.Thread):
    """Stores scene after scene, and labels those stored before, at a pace that can be watched; skips what is done."""

    def __init__(self, collection: Collection, folder: Path, scenes: int, seed: int, console: Console) -> None:
        super().__init__(name="stream", daemon=True)
        self.collection, self.folder, self.console = collection, folder, console
        self.scenes, self.seed, self.done = scenes, seed, 0
        self._waiting: dict[str, list[str]] = {}  # labels of stored scenes that have none yet
        self._stopped = threading.Event()

    def run(self) -> None:
        sizes = f"{self.scenes:,} images of 1 to 4 digits stream in, at most {MAX_SCENES_PER_SECOND} a second"
        self.console.print(f"{sizes}; each gets its labels later", highlight=False)
        while self.done < self.scenes or self._waiting:
            began = time.monotonic()
            count = self.label(LEARN_ROWS) + self.put(min(LEARN_ROWS, self.scenes - self.done))
            if self._stopped.wait(max(0.0, began + count / (2 * MAX_SCENES_PER_SECOND) - time.monotonic())):
                return
        if quality := self.collection.stats()["quality"]:
            before, after = quality["before"], quality["precision"]
            self.console.print(
                f"All {self.done:,} scenes labelled. On the last, before learning them: P@10 {after:.3f} "
                f"({before['precision']:.3f} without labels), nDCG@10 {quality['ndcg']:.3f} ({before['ndcg']:.3f}). "
                "The page stays; Ctrl+C ends it.",
                highlight=False,
                soft_wrap=True,
            )

    def put(self, count: int) -> int:
        """Write the next `count` scenes as files and index them without labels; return how many were new."""
        if not count:
            return 0
        batch = make_scenes(count, self.seed + self.done)
        labels: dict[str, list[str]] = {}
        for number, (image, digits) in enumerate(zip(batch.images, batch.labels, strict=True), self.done):
            name = f"{number // 1000:03d}/{number:06d}.png"
            labels[name] = [str(digit) for digit in np.flatnonzero(digits)]
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            _picture(image).save(self.folder / name)
        counts = index_folder(self.folder, self.collection, DEMO_ENCODER, lambda _: [], files=list(labels), workers=1)
        for name in labels:
            (self.folder / name).unlink()
        self.done += count
        self._waiting |= labels
        return counts.added

    def label(self, count: int) -> int:
        """Label the `count` scenes that have waited longest; return how many had no labels."""
        names = list(self._waiting)[:count]
        labels = {name: self._waiting.pop(name) for name in names}
        new = [item.id for item in self.collection.get(names) if item is not None and not item.labels]
        return self.collection.relabel(new, [labels[str(name)] for name in new]) if new else 0

    def stop(self) -> None:
        self._stopped.set()
        if self.is_alive():
            self.join()


def _picture(scene: NDArray[np.uint8]) -> Image.Image:
    """Return a scene as ink on paper, large enough to see."""
    picture = Image.fromarray(255 - scene)
    return picture.resize((picture.width * PIXEL_SCALE, picture.height * PIXEL_SCALE), Image.Resampling.BICUBIC)


# ---- the terminal ----


def run_terminal(
    scenes: int, bits: int, seed: int, plot: Path, console: Console, method: str = "tally"
) -> dict[str, Any]:
    """Store `scenes` scenes, some held out as queries, label them, and draw the learning curve to `plot`."""
    check_integer(scenes, "scenes", 2000)
    check_choice(method, "method", DEMO_METHODS)
    if plot.is_dir() or not plot.parent.is_dir():
        raise InvalidInput(f"plot: expected a file in an existing folder, got {str(plot)!r}")
    began = time.perf_counter()
    query_count = min(DEMO_QUERIES, scenes // 10)
    with console.status(f"Making {scenes:,} scenes of digits"):
        queries = make_scenes(query_count, seed, part="queries")
        database = make_scenes(scenes - query_count, seed)
    count, dim = database.features.shape
    sizes = f"{count:,} scenes of 1 to 4 digits, {query_count} queries, {bits}-bit codes"
    console.print(sizes, highlight=False)
    first = cosine_ids(database.features, np.zeros(dim, np.float32), queries.features, HITS)
    cosine = _measure(first, queries, database)
    settings: dict[str, Any] = {"method": method, "params": {"random_state": seed}}
    with (
        tempfile.TemporaryDirectory(prefix="stillhash-demo-") as folder,
        open(f"{folder}/scenes", dim, bits, init_rows=min(COLLECTION_INIT, count), **settings) as collection,
    ):
        collection.add(range(count), database.features)  # without labels
        collection.flush()
        codes = _codes(collection)
        labelling = _Labelling(collection, queries, database, seed)
        curve = _run_labelling(labelling, cosine, console)
        unchanged = np.array_equal(codes, _codes(collection))
        tour = take_tour(collection, database, queries)
    with console.status("Drawing the learning curve"):
        _figure(curve, cosine, bits, queries).savefig(plot, format="png")
    shared = queries.labels.astype(np.float32) @ database.labels.T.astype(np.float32)
    return {
        "scenes": count,
        "queries": query_count,
        "method": method,
        "bits": bits,
        "seed": seed,
        "cosine": cosine,
        "curve": curve,
        "chance": float((shared > 0).mean()),
        "codes_unchanged": unchanged,
        **_first_hits(first[:, :EXAMPLE_HITS], labelling.hits[:, :EXAMPLE_HITS], queries, database),
        "tour": tour._asdict(),
        "plot": str(plot),
        "labels_per_second": round(count / labelling.seconds),
        "seconds": round(time.perf_counter() - began, 2),
    }


class _Labelling:
    """Labels stored scenes in random order, first a few, then more, and searches after each step."""

    def __init__(self, collection: Collection, queries: Scenes, database: Scenes, seed: int) -> None:
        self.collection, self.queries, self.database = collection, queries, database
        self.order = np.random.default_rng(seed).permutation(len(database.labels))
        self.seconds = 0.0  # of labelling and learning
        self.hits = np.empty((0, HITS), np.int64)  # the latest, (queries, hits)

    def points(self) -> Iterator[CurvePoint]:
        """Yield the quality of the first hits after more and more labels."""
        total, labelled = len(self.order), 0
        for count in [*(count for count in LABELLED if count < total), total]:
            clock = time.perf_counter()
            relabel(self.collection, self.order[labelled:count], self.database.labels.astype(np.uint8))
            self.seconds += time.perf_counter() - clock
            labelled = count
            self.hits = hit_ids(self.collection, self.queries.features, HITS)
            yield {"labelled": labelled, **_measure(self.hits, self.queries, self.database)}


def _codes(collection: Collection) -> Codes:
    codes = collection.codes(range(collection.count()))
    assert codes is not None  # all have codes after `flush`
    return codes


def _measure(hits: NDArray[np.int64], queries: Scenes, database: Scenes) -> dict[str, float]:
    quality = evaluate_hits(hits, queries.labels.astype(np.uint8), database.labels.astype(np.uint8))
    return {name: getattr(quality, name) for name in MEASURES}


def _first_hits(
    before: NDArray[np.int64], after: NDArray[np.int64], queries: Scenes, database: Scenes
) -> dict[str, Any]:
    """Return the share of first hits with exactly the digits of the query, and the hits of the first queries."""
    labels = queries.labels
    old, new = ((database.labels[ids] == labels[:, None]).all(axis=2).mean() for ids in (before, after))

    def show(query: int, ids: NDArray[np.int64]) -> list[dict[str, list[int]]]:
        return [{"labels": _names(own), "matching": _names(own & labels[query])} for own in database.labels[ids]]

    examples = [
        {"query": _names(labels[q]), "before": show(q, before[q]), "after": show(q, after[q])}
        for q in range(EXAMPLE_QUERIES)
    ]
    return {"exact": {"before": float(old), "after": float(new)}, "examples": examples}


def _names(labels: NDArray[np.bool_]) -> list[int]:
    return [int(name) for name in np.flatnonzero(labels)]


def _run_labelling(labelling: _Labelling, cosine: dict[str, float], console: Console) -> list[CurvePoint]:
    """Label all scenes; print a line for cosine and for each point and, on a terminal, a progress bar."""
    curve: list[CurvePoint] = []
    heading = "  ".join(f"{name:>7} {'gain':>6}" for name in MEASURES.values())

    def line(title: str, point: dict[str, float]) -> str:
        gains = {name: round(point[name] - cosine[name], 3) + 0.0 for name in MEASURES}  # no -0.000
        cells = (f"{point[name]:7.3f} {gain:+6.3f}" for name, gain in gains.items())
        return f"{title:>{len(COSINE)}}  {'  '.join(cells)}"

    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("labelling", total=len(labelling.order))
        console.print(f"{'late labels':>{len(COSINE)}}  {heading}", style="bold", highlight=False)
        console.print(line(COSINE, cosine), highlight=False)
        for point in labelling.points():
            curve.append(point)
            console.print(line(f"{point['labelled']:,}", point), highlight=False)
            progress.update(task, completed=point["labelled"])
    return curve


def _figure(curve: list[CurvePoint], cosine: dict[str, float], bits: int, queries: Scenes) -> Figure:
    """Draw nDCG@10 and P@10 against labels, and four scenes."""
    figure = Figure(figsize=(9, 4.2), dpi=150, layout="constrained")
    grid = figure.add_gridspec(4, 3, width_ratios=(6, 6, 1.6))
    figure.suptitle(f"The first ten hits over the same {bits}-bit codes", x=0.01, ha="left", weight="bold")
    places = range(len(curve))
    for column, (name, colour) in enumerate((("ndcg_10", "#0f766e"), ("precision_10", "#7c3aed"))):
        axes, values = figure.add_subplot(grid[:, column]), [point[name] for point in curve]
        axes.plot(places, values, "o-", color=colour, linewidth=2, markersize=4)
        axes.axhline(cosine[name], color="#6b7280", linestyle="--", linewidth=1.2)
        low, high = min(*values, cosine[name]), max(*values, cosine[name])
        span = max(high - low, 0.01)
        axes.annotate(COSINE, (places[-1], cosine[name] - 0.04 * span), color="#6b7280", ha="right", va="top")
        axes.annotate(
            f"{values[-1]:.3f}", (places[-1], values[-1] + 0.04 * span), color=colour, ha="right", va="bottom"
        )
        axes.set_title(MEASURES[name], loc="left", color=colour)
        axes.set_xlabel("stored scenes that have labels")
        axes.set_xticks(places, [f"{point['labelled']:,}" for point in curve], rotation=45)
        axes.set_ylim(low - 0.2 * span, high + 0.2 * span)
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
    """Print a few lines, the hits of some queries before and after learning, and what the collection answers."""
    cosine, last = result["cosine"], result["curve"][-1]
    unchanged = "none has changed" if result["codes_unchanged"] else "[bold red]some have changed[/]"
    changes = (f"{name} {cosine[key]:.3f} -> [bold green]{last[key]:.3f}[/]" for key, name in MEASURES.items())
    for line in (
        f"{', '.join(changes)}. A random order has P@10 {result['chance']:.2f}.",
        f"Every line searches the same {result['scenes']:,} codes of {result['bits']} bits, and {unchanged}.",
        f"Learnt {result['labels_per_second']:,} late labels a second; {result['seconds']:.0f} s in total. "
        f"Learning curve: {escape(result['plot'])}",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    title = f"The first {EXAMPLE_HITS} hits of the first {EXAMPLE_QUERIES} queries"
    columns = ("query", "float cosine", "after all labels")
    rows = [
        (_digits(one["query"], one["query"]), _hit_digits(one["before"], one), _hit_digits(one["after"], one))
        for one in result["examples"]
    ]
    console.print()
    print_table(console, title, columns, rows, text=columns)
    share = result["exact"]
    console.print(
        f"Green: a digit of the query. Over all {result['queries']} queries {share['before']:.0%} of the first "
        f"{EXAMPLE_HITS} hits have exactly its digits by cosine, {share['after']:.0%} after all labels.",
        highlight=False,
    )
    console.print()
    for line in Tour(**result["tour"]).lines():
        console.print(line, highlight=False)


def _hit_digits(hits: list[dict[str, list[int]]], example: dict[str, Any]) -> Text:
    """Return how many have exactly the digits of the query, and the hits side by side in columns of equal width."""
    count = Text(f"{sum(hit['labels'] == example['query'] for hit in hits)}/{len(hits)} ")
    cells = (_digits(hit["labels"], hit["matching"]) + Text(" " * (4 - len(hit["labels"]))) for hit in hits)
    return Text(" ").join([count, *cells])


def _digits(labels: list[int], matching: list[int]) -> Text:
    return Text.assemble(*((str(name), "bold green" if name in matching else "dim") for name in labels))


# ---- what the collection answers at the end ----


class Tour(NamedTuple):
    """Results, as JSON can represent them."""

    stored: int  # scenes of the collection that were the query
    first: int  # that are their own first hit
    query: list[int]  # digits of the query that is voted on
    liked: list[int]  # digits of the hit that is liked
    rank_before: int
    rank_liked: int
    rank_undone: int

    def lines(self) -> Iterator[str]:
        """Yield sentences for a terminal."""
        yield f"Exact match: of {self.stored} stored scenes as queries, {self.first} are their own first hit."
        query, liked = (", ".join(map(str, digits)) for digits in (self.query, self.liked))
        yield (
            f"A vote: a query shows {query}, and its hit at rank {self.rank_before} shows {liked}. Liked, the hit "
            f"moves to rank {self.rank_liked}; with the vote taken back it is at rank {self.rank_undone}."
        )


def take_tour(collection: Collection, database: Scenes, queries: Scenes) -> "Tour":
    """Search a collection of all scenes, whose ids are their numbers, by stored scenes, and vote."""
    stored = np.linspace(0, len(database.labels) - 1, STORED_QUERIES).astype(int).tolist()
    answers = collection.search(database.features[stored], 1)
    first = sum(answer.hits[0].id == row for answer, row in zip(answers, stored, strict=True))
    query = queries.features[0]
    hit = collection.search(query, VOTED_RANK).hits[-1]
    collection.feedback(query, hit.id, "up")
    liked = _rank(collection, query, hit.id)
    collection.feedback(query, hit.id, 0)  # takes the vote back
    undone = _rank(collection, query, hit.id)
    digits = np.flatnonzero(queries.labels[0]).tolist()
    return Tour(len(stored), first, digits, list(hit.labels), VOTED_RANK, liked, undone)


def _rank(collection: Collection, query: Floats, id: str | int) -> int:
    """Return the rank of an item, from 1."""
    return [hit.id for hit in collection.search(query, 1000).hits].index(id) + 1
