"""Make the tables and figures of the experiments with texts from result files, as Markdown and PNG."""

import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from stillhash.errors import InvalidInput
from stillhash.experiments import figures
from stillhash.experiments.report_tables import ABSENT, TABLE_MEASURES, plain, provenance_table
from stillhash.experiments.results import TEXT_KINDS, Checkpoint, Run, Variant, grouped, read_results
from stillhash.experiments.tables import TableData
from stillhash.experiments.text_study import UNLEARNT
from stillhash.hashers import DEFAULT_HASHER

TEXT_MEASURES = ("mAP", "P@10", "nDCG@10")
CHART_BITS = 64
TEXT_HEADINGS = {
    "text-insertion": "Labels known when texts are stored",
    "text-late": "Labels that come after all texts are stored",
    "text-shares": "Shares of the texts with labels, known when they are stored",
    "text-collection": "In a collection on disk",
    "text-time": "Over time: each chunk searches for the texts before it",
}
TEXT_ABOUT = {
    "text-insertion": "So many texts, drawn by the seed, are stored with their labels, all others without.",
    "text-late": "All texts are stored without labels; then so many of them, drawn by the seed, get theirs.",
    "text-shares": "This share of the texts, drawn by the seed, is stored with labels, all others without.",
    "text-collection": "The first ten hits of `Collection.search`, by how labels get into the collection.",
    "text-time": "Means over the texts of a month, before they are stored and learnt.",
}
REPORT_HEAD = """# Tables of the text study

Made by `stillhash experiment text-report` from result files. A hit is relevant if it shares a label with the query;
nDCG@10 grades it by the Jaccard of the two label sets. **Bold**: above float cosine of the same features. Cells are
means over seeds."""


class TextLine(NamedTuple):
    """A line of a table: a variant at a length; rankings that learn nothing have none."""

    variant: Variant
    bits: int

    @property
    def label(self) -> str:
        return f"{self.variant.label}, {self.bits} bits" if self.bits else self.variant.label

    @property
    def sort_key(self) -> tuple[bool, tuple[int, str, tuple[tuple[str, str], ...]], int]:
        """Order rankings that learn nothing first."""
        return self.variant.method not in UNLEARNT, self.variant.sort_key, self.bits


def text_report(results: Path, out: Path) -> list[Path]:
    """Read the runs with texts under `results`, write tables and figures into `out`, and return the paths."""
    run_set = read_results(results)
    runs = [run for run in run_set.runs if run.experiment in TEXT_KINDS]
    if not runs:
        raise InvalidInput(f"results: expected runs of the preset text, got none in {str(results)!r}")
    if out.exists() and not out.is_dir():
        raise InvalidInput(f"out: expected a folder, got the file {str(out)!r}")
    out.mkdir(parents=True, exist_ok=True)
    paths, parts = [out / "tables.md"], [REPORT_HEAD]
    for (dataset, kind), some in grouped(runs, lambda run: (run.dataset, run.experiment)).items():
        parts.append(f"## {plain(dataset)}: {TEXT_HEADINGS[kind][0].lower()}{TEXT_HEADINGS[kind][1:]}")
        sizes = {(run.queries, run.database) for run in some}
        queries, database = max(sizes, key=str)
        seeds = max(len(same) for same in _by_line(some).values())
        parts.append(f"{TEXT_ABOUT[kind]} {queries:,} queries, {database:,} texts, {_up_to(seeds)}.")
        for name, chart in _charts(dataset, kind, some).items():
            path = out / f"{name}.png"
            chart.savefig(path, format="png")
            paths.append(path)
            parts.append(f"![{plain(name)}]({path.name})")
        for measure in TEXT_MEASURES:
            if any(_means(some, kind, measure).values()):
                parts += [f"{measure}:", markdown(measure_table(some, kind, measure))]
        if kind in ("text-insertion", "text-late"):
            parts += ["Labels from which on the mean stays above a ranking that learns nothing:", markdown(above(some))]
        if kind == "text-late" and (learnt := frequency_table(some)):
            parts += ["P@10 by how often the most frequent label of the query was learnt:", markdown(learnt)]
    parts += ["## Where the numbers come from", markdown(provenance_table(run_set)["provenance"])]
    paths[0].write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return paths


def markdown(table: TableData) -> str:
    """Return a table as Markdown, figures aligned right."""
    lines: list[Sequence[object]] = [table.columns, ["---", *["---:"] * (len(table.columns) - 1)], *table.rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def measure_table(runs: Sequence[Run], kind: str, measure: str) -> TableData:
    """Return the mean of a measure for each line at each column; those above float cosine are bold."""
    cells = _means(runs, kind, measure)
    columns = _columns(cells)
    cosine = next((line for line in cells if line.variant.method == "cosine"), None)
    rows = []
    for line, means in sorted(cells.items(), key=lambda pair: pair[0].sort_key):
        texts = []
        for column in columns:
            value, base = means.get(column), cells[cosine].get(column) if cosine else None
            better = value is not None and base is not None and round(value, 3) > round(base, 3)
            text = ABSENT if value is None else f"{value:.3f}"
            texts.append(f"**{text}**" if better else text)
        rows.append([plain(line.label), *texts])
    return TableData(None, ["", *(_heading(column, kind, runs) for column in columns)], rows)


def above(runs: Sequence[Run]) -> TableData:
    """Return from how many labels on each line stays above float cosine, and above BM25, by each measure."""
    kind, bases, table = runs[0].experiment, ("cosine", "bm25"), dict[TextLine, list[str]]()
    for base in bases:
        for measure in TEXT_MEASURES:
            cells = _means(runs, kind, measure)
            floor = next((means for line, means in cells.items() if line.variant.method == base), {})
            for line, means in cells.items():
                if line.variant.method not in UNLEARNT:
                    table.setdefault(line, []).append(_stays_above(means, floor))
    headings = [f"{measure}, {base}" for base in ("float cosine", "BM25") for measure in TEXT_MEASURES]
    rows = [[plain(line.label), *table[line]] for line in sorted(table, key=lambda line: line.sort_key)]
    return TableData(None, ["", *headings], rows)


def frequency_table(runs: Sequence[Run]) -> TableData | None:
    """Return the groups of queries by how often their labels were learnt, of the default method at one length."""
    chosen = [run for run in runs if run.variant == Variant(DEFAULT_HASHER.name) and run.bits == CHART_BITS]
    names = sorted({name for run in chosen for at in run.checkpoints for name in at.groups})
    if not names:
        return None
    counts = grouped((at for run in chosen for at in run.checkpoints), lambda at: at.labelled or 0)
    rows = []
    for name in names:
        values = [[at.groups[name] for at in some if name in at.groups] for some in counts.values()]
        rows.append([plain(name), *(f"{statistics.fmean(some):.3f}" if some else ABSENT for some in values)])
    return TableData(None, ["", *(f"{count:,}" for count in counts)], rows)


def _stays_above(means: dict[str, float], floor: dict[str, float]) -> str:
    counts = sorted(means, key=int)
    below = [at for at, count in enumerate(counts) if count not in floor or means[count] <= floor[count]]
    first = below[-1] + 1 if below else 0
    return f"{int(counts[first]):,}" if first < len(counts) else "never"


def _means(runs: Sequence[Run], kind: str, measure: str) -> dict[TextLine, dict[str, float]]:
    """Return the means over seeds by line and column; rankings that learn nothing are the same in all columns."""
    get, means = TABLE_MEASURES[measure], dict[TextLine, dict[str, float]]()
    for line, some in _by_line(runs).items():
        values = grouped((at for run in some for at in run.checkpoints), lambda at: _column(at, kind))
        known = {column: [v for at in group if (v := get(at)) is not None] for column, group in values.items()}
        means[line] = {column: statistics.fmean(group) for column, group in known.items() if group}
    if kind != "text-time":
        columns = _columns({line: m for line, m in means.items() if line.variant.method not in UNLEARNT})
        for line, constant in means.items():
            if line.variant.method in UNLEARNT and constant:
                means[line] = dict.fromkeys(columns or constant, next(iter(constant.values())))
    return means


def _up_to(seeds: int) -> str:
    return "one seed" if seeds == 1 else f"up to {seeds} seeds"


def _by_line(runs: Iterable[Run]) -> dict[TextLine, list[Run]]:
    return grouped(runs, lambda run: TextLine(run.variant, run.bits))


def _column(at: Checkpoint, kind: str) -> str:
    return at.period if kind == "text-time" else str(at.labelled or 0)


def _columns(cells: dict[TextLine, dict[str, float]]) -> list[str]:
    """Return all columns: months as they come, numbers of labels by size."""
    return sorted({column for means in cells.values() for column in means}, key=lambda name: (len(name), name))


def _heading(column: str, kind: str, runs: Sequence[Run]) -> str:
    if kind == "text-time":
        return column
    if kind == "text-shares" and runs[0].database:
        return f"{int(column) / runs[0].database:.0%}"
    return f"{int(column):,}"


def _charts(dataset: str, kind: str, runs: Sequence[Run]) -> dict[str, Figure]:
    """Draw each measure against labels, or over time, at one length; shares are other points of the same lines."""
    chosen = {line: some for line, some in _by_line(runs).items() if line.bits in (0, CHART_BITS)}
    look = figures.looks(line.variant for line in chosen)
    if kind == "text-time":
        lines = [_time_line(line, some, look) for line, some in chosen.items()]
        ends = sorted({at.rows for run in runs for at in run.checkpoints})[:-1]
        return {f"{dataset}-time": figures.rows_chart(lines, f"{dataset}, {CHART_BITS} bits: next texts", ends)}
    if kind in ("text-shares", "text-collection"):
        return {}
    charts = {}
    learnt = [some for line, some in chosen.items() if line.variant.method not in UNLEARNT]
    for measure in TEXT_MEASURES:
        counts = sorted({at.labelled or 0 for some in learnt for run in some for at in run.checkpoints})
        lines = []
        for line, some in sorted(chosen.items(), key=lambda pair: pair[0].sort_key):
            points = figures.along_labels(some, TABLE_MEASURES[measure])
            if line.variant.method in UNLEARNT and points:
                points = [(count, points[0][1]) for count in counts]
            if len(points) > 1:
                lines.append(figures.line_of(line.variant.label, look[line.variant], points))
        if lines:
            title = (
                f"{dataset}, {CHART_BITS} bits: {measure}, labels {'late' if kind == 'text-late' else 'at insertion'}"
            )
            name = f"{dataset}-{kind.removeprefix('text-')}-{measure.replace('@', '').lower()}"
            charts[name] = figures.labels_chart(lines, title)
    return charts


def _time_line(line: TextLine, runs: Sequence[Run], look: figures.Looks) -> figures.Line:
    """Return the mAP of chunks, four of which are one point, but not across months."""
    points: list[tuple[float, list[float]]] = []
    for group in zip(*(run.checkpoints for run in runs), strict=True):
        chunks = list(zip(*(at.prequential for at in group), strict=True))  # of each chunk, its pair of each seed
        bounds = [*range(0, len(chunks), 4), len(chunks)]
        for start, stop in pairwise(bounds):
            some = chunks[start:stop]
            by_seed = zip(*([value for _, value in pairs] for pairs in some), strict=True)
            points.append((statistics.fmean(pairs[0][0] for pairs in some), [statistics.fmean(v) for v in by_seed]))
    return figures.line_of(line.variant.label, look[line.variant], points)
