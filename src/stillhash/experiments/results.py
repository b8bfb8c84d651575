"""Read result files: the lines that experiments wrote.

A result file is written whole and holds one JSON object per line, one line per checkpoint of a run. A run is a dataset,
an experiment, a method with its parameters, a code length, a seed, which labels are known, and how many queries and
rows there were; its last line says `"final": true`.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from stillhash.errors import InvalidInput

_DATA = json.loads(files("stillhash.experiments").joinpath("report_data.json").read_text(encoding="utf-8"))
# Method -> name, colour and marker, in the order of tables; a method that is not here is shown by its own name.
METHOD_STYLES: dict[str, tuple[str, str, str]] = {method: tuple(style) for method, style in _DATA["methods"].items()}


class PaperTable(NamedTuple):
    """A table of the paper."""

    number: int
    dataset: str
    map: dict[str, dict[int, float]]  # of each method, by code length


# By how the name of a dataset begins.
PAPER_TABLES = {
    start: PaperTable(
        **table
        | {"map": {name: dict(zip(_DATA["paper_bits"], row, strict=True)) for name, row in table["map"].items()}}
    )
    for start, table in _DATA["paper_tables"].items()
}
TIME_PARTS = ("learn", "refresh", "encode", "io")  # of the time a run takes
PAPER_KINDS = ("table", "time", "C", "length")  # of experiments
LABEL_AXES = {"labelled-share": "labelled_share", "label-noise": "label_noise", "label-delay": "label_delay"}
TEXT_KINDS = ("text-insertion", "text-late")
LABEL_STUDY_KINDS = ("late-labels", "new-class", "corrections", "active", "feedback", "align")
OUR_KINDS = ("drift", "ablation", "few-labels", *LABEL_AXES, "preprocessing")
EXPERIMENT_KINDS = (*PAPER_KINDS, *OUR_KINDS, *TEXT_KINDS, *LABEL_STUDY_KINDS)
SWEPT_PARAMETERS = {"C": "C", "length": "target_factor"}  # the parameter that an experiment varies
# Lines name only parameters that differ from the default, so a line of OHSL may leave these out.
SWEPT_DEFAULTS = {method: {"C": 0.01, "target_factor": 3.0} for method in ("ohsl", "ohsl-sym")}


class Variant(NamedTuple):
    """A method and those of its parameters that are not the default, as (name, value) in the order of names."""

    method: str
    params: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        name = METHOD_STYLES[self.method][0] if self.method in METHOD_STYLES else self.method
        return f"{name} ({', '.join(f'{key}={value}' for key, value in self.params)})" if self.params else name

    @property
    def sort_key(self) -> tuple[int, str, tuple[tuple[str, str], ...]]:
        """Order as METHOD_STYLES does, unknown methods last, the plain method before its variants."""
        known = list(METHOD_STYLES)
        return (known.index(self.method) if self.method in known else len(known)), self.method, self.params


@dataclass(frozen=True)
class Checkpoint:
    """The values of one line."""

    rows: int
    final: bool
    map: float | None
    seconds: dict[str, float]  # of each of TIME_PARTS, since the start
    expected_map: float | None = None
    precision_10: float | None = None
    precision_100: float | None = None
    ndcg_10: float | None = None
    labelled: int | None = None  # rows learnt, where the database does not grow with them
    labelled_rows: int | None = None  # rows of the database that get labels, sooner or later
    validation: dict[str, float] = field(default_factory=dict)  # of queries that were set apart for choosing
    chance: float | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    groups: dict[str, float] = field(default_factory=dict)  # mAP of groups of queries
    prequential: list[tuple[int, float]] = field(default_factory=list)  # mAP of chunks before they were learnt, by rows
    alarms: list[int] = field(default_factory=list)  # rows at which drift was detected so far
    changes: list[int] = field(default_factory=list)  # rows at which the stream changes

    @property
    def total(self) -> float:
        return sum(self.seconds[part] for part in TIME_PARTS)


class Run(NamedTuple):
    """One run, its checkpoints in the order of rows, and of labelled rows."""

    dataset: str
    experiment: str
    variant: Variant  # without the swept parameter
    bits: int
    seed: int
    swept: float | None  # value of the parameter, or of the axis of labels, that the experiment varies
    queries: int | None
    database: int | None
    checkpoints: list[Checkpoint]

    @property
    def end(self) -> Checkpoint:
        return self.checkpoints[-1]


class RunSet(NamedTuple):
    """All finished runs under a folder."""

    runs: list[Run]
    files: int
    lines: int


Item = TypeVar("Item")
Key = TypeVar("Key")


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items, in the order in which the first of each group comes."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def by_size(runs: Iterable[Run]) -> dict[tuple[str, int], list[Run]]:
    return grouped(runs, lambda run: (run.dataset, run.bits))


def by_variant(runs: Iterable[Run]) -> dict[Variant, list[Run]]:
    return grouped(runs, lambda run: run.variant)


def read_results(folder: Path) -> RunSet:
    """Read all `*.jsonl` under `folder`, at any depth."""
    paths = sorted(folder.rglob("*.jsonl")) if folder.is_dir() else []
    if not paths:
        raise InvalidInput(f"results: expected a folder with *.jsonl files, got {str(folder)!r}")
    runs: dict[tuple[Any, ...], dict[tuple[int, int], Checkpoint]] = {}
    count = 0
    for path in paths:
        for number, text in enumerate(filter(None, path.read_text(encoding="utf-8").split("\n")), 1):
            run, checkpoint = _parse(text, f"{path}, line {number}")
            runs.setdefault(run, {})[checkpoint.rows, checkpoint.labelled or 0] = checkpoint
            count += 1
    everything = _separate_sizes([Run._make((*run, [at for _, at in sorted(of.items())])) for run, of in runs.items()])
    everything.sort(key=lambda run: (run.dataset, run.bits, run.variant.sort_key, run.swept or 0, run.seed))
    return RunSet([run for run in everything if run.end.final], len(paths), count)


def _separate_sizes(runs: list[Run]) -> list[Run]:
    """Make each size a dataset of its own: a quick run and the full experiment are not two seeds of one run."""
    groups = grouped(runs, lambda run: (run.dataset, run.experiment))
    several = [key for key, group in groups.items() if len({(run.queries, run.database) for run in group}) > 1]
    return [
        run._replace(dataset=f"{run.dataset} ({run.queries} queries, {run.database} rows)")
        if (run.dataset, run.experiment) in several
        else run
        for run in runs
    ]


RUN_KEYS = ("dataset", "experiment", "method", "bits", "seed", "params")
CHECKPOINT_KEYS = ("rows", "final", "map", "seconds")  # and those with defaults


def _parse(text: str, where: str) -> tuple[tuple[Any, ...], Checkpoint]:
    """Return the run that a line belongs to, and its checkpoint."""
    try:
        line = json.loads(text)
    except ValueError:
        line = None
    if not isinstance(line, dict):
        raise InvalidInput(f"{where}: expected one JSON object per line, got {text[:40]!r}")
    if missing := [key for key in (*RUN_KEYS, *CHECKPOINT_KEYS) if key not in line]:
        raise InvalidInput(f"{where}: expected the keys of a result, got no {', '.join(missing)}")
    dataset, experiment, method, bits, seed, params = (line[key] for key in RUN_KEYS)
    if experiment not in EXPERIMENT_KINDS:
        raise InvalidInput(f"{where}: experiment: expected one of {', '.join(EXPERIMENT_KINDS)}, got {experiment!r}")
    params, swept = dict(params), None
    for axis, default in (("labelled_share", 1.0), ("label_noise", 0.0), ("label_delay", 0)):
        value = default if line.get(axis) is None else line[axis]
        if axis == LABEL_AXES.get(experiment):
            swept = float(value)
        elif value != default:  # runs with other labels are not in one table
            dataset += f", {axis.replace('_', ' ')} {value:g}"
    if name := SWEPT_PARAMETERS.get(experiment):
        swept = params.pop(name, SWEPT_DEFAULTS.get(method, {}).get(name))
        if not swept:
            raise InvalidInput(f"{where}: {name} in params: expected a number above 0, got {swept!r}")
    texts = ((key, value if isinstance(value, str) else json.dumps(value)) for key, value in sorted(params.items()))
    values = {each.name: line[each.name] for each in fields(Checkpoint) if line.get(each.name) is not None}
    size = line.get("queries"), line.get("database")
    run = (dataset, experiment, Variant(method, tuple(texts)), bits, seed, swept, *size)
    return run, Checkpoint(**{"map": None} | values)
