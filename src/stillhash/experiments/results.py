"""Read result files: the lines that experiments wrote.

A result file holds one JSON object per line, one line per checkpoint of a run. A run is a dataset, an experiment, a
method with its parameters, a code length, a seed, which labels are known, and how many queries and rows there were; it
is finished once its last line says `"final": true`. Lines are validated here, once. A last line without its line end
whose JSON breaks off was cut short while it was written, and is counted, not read.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
LABEL_STUDY_KINDS = ("late-labels", "new-class", "corrections", "active")
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


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The values of one line."""

    rows: int
    final: bool
    map: float | None
    seconds: dict[str, float]  # of each of TIME_PARTS, since the start
    expected_map: float | None
    precision_10: float | None
    precision_100: float | None
    ndcg_10: float | None
    labelled: int | None  # rows learnt, where the database does not grow with them
    labelled_rows: int | None  # rows of the database that get labels, sooner or later
    validation: dict[str, float]  # measures of queries that were set apart for choosing
    chance: float | None
    machine: dict[str, Any]
    versions: dict[str, Any]
    commit: str
    command: str
    groups: dict[str, float]  # mAP of groups of queries
    prequential: list[tuple[int, float]]  # mAP of chunks before they were learnt, by rows, since the last checkpoint
    alarms: list[int]  # rows at which drift was detected so far
    changes: list[int]  # rows at which the stream changes

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
    """All runs under a folder."""

    runs: list[Run]  # finished ones
    unfinished: list[Run]
    files: int
    lines: int
    torn: int  # last lines cut short
    replaced: int  # lines that a later line of the same run and number of rows replaced


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
    count = torn = replaced = 0
    for path in paths:
        lines, cut_short = _read_lines(path)
        count, torn = count + len(lines), torn + cut_short
        for number, line in lines:
            run, checkpoint = _parse(line, f"{path}, line {number}")
            place = checkpoint.rows, checkpoint.labelled or 0
            replaced += place in runs.setdefault(run, {})
            runs[run][place] = checkpoint
    everything = _separate_sizes([Run._make((*run, [at for _, at in sorted(of.items())])) for run, of in runs.items()])
    everything.sort(key=lambda run: (run.dataset, run.bits, run.variant.sort_key, run.swept or 0, run.seed))
    done = grouped(everything, lambda run: run.end.final)
    return RunSet(done.get(True, []), done.get(False, []), len(paths), count, torn, replaced)


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


def _read_lines(path: Path) -> tuple[list[tuple[int, Any]], bool]:
    """Return the lines that are not blank, with their numbers; and whether a last one was cut short."""
    *whole, rest = path.read_bytes().split(b"\n")
    lines = []
    for number, line in enumerate([*whole, rest], 1):
        if line.strip():
            try:
                lines.append((number, json.loads(line)))
            except ValueError:  # of the encoding or of JSON
                if number > len(whole):
                    return lines, True
                raise InvalidInput(f"{path}, line {number}: expected one JSON object per line") from None
    return lines, False


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_amount(value: Any, most: float = 1e300) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most  # so NaN is refused


def _is_share(value: Any) -> bool:
    return _is_amount(value, 1 + 1e-9)  # sums round


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _is_count(value[0]) and _is_share(value[1])


def _list_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(holds, value))


def _object_of(holds: Callable[[Any], bool], *keys: str) -> Callable[[Any], bool]:
    """Check an object's values: of these keys, or of all that it has."""
    return lambda value: isinstance(value, dict) and all(holds(value.get(key)) for key in keys or value)


VALUE_KINDS: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "true or false": lambda value: isinstance(value, bool),
    "a whole number": _is_count,
    "a number from 0 to 1": _is_share,
    "null or a number from 0 to 1": lambda value: value is None or _is_share(value),
    f"one of {', '.join(EXPERIMENT_KINDS)}": EXPERIMENT_KINDS.__contains__,
    "an object": lambda value: isinstance(value, dict),
    "an object of numbers from 0 to 1": _object_of(_is_share),
    f"an object with seconds of {', '.join(TIME_PARTS)}": _object_of(_is_amount, *TIME_PARTS),
    "a list of whole numbers": _list_of(_is_count),
    "a list of pairs of rows and mAP": _list_of(_is_pair),
}
# Key -> the kind of its value, and its default; a key without one is required.
LINE_KEYS: dict[str, list[Any]] = _DATA["line_keys"]
REQUIRED_KEYS = [key for key, (_, *default) in LINE_KEYS.items() if not default]
RUN_KEYS = ("dataset", "experiment", "method", "bits", "seed", "queries", "database")


def _parse(line: Any, where: str) -> tuple[tuple[Any, ...], Checkpoint]:
    """Return the run that a line belongs to, and its checkpoint."""
    if not isinstance(line, dict):
        raise InvalidInput(f"{where}: expected an object, got {_short(line)}")
    if missing := [key for key in REQUIRED_KEYS if key not in line]:
        raise InvalidInput(f"{where}: expected the keys {', '.join(REQUIRED_KEYS)}, got no {', '.join(missing)}")
    values: dict[str, Any] = {}
    for key, (kind, *default) in LINE_KEYS.items():
        values[key] = line.get(key)
        if default and values[key] is None:
            values[key] = default[0]
        elif not VALUE_KINDS[kind](values[key]):
            raise InvalidInput(f"{where}: {key}: expected {kind}, got {_short(values[key])}")
    dataset, experiment, method, bits, seed, *size = map(values.pop, RUN_KEYS)
    params, swept = dict(values.pop("params")), None
    for axis in LABEL_AXES.values():
        value, default = values.pop(axis), LINE_KEYS[axis][1]
        if axis == LABEL_AXES.get(experiment):
            swept = float(value)
        elif value != default:  # runs with other labels are not in one table
            dataset += f", {axis.replace('_', ' ')} {value:g}"
    if name := SWEPT_PARAMETERS.get(experiment):
        swept = params.pop(name, SWEPT_DEFAULTS.get(method, {}).get(name))
        if not _is_amount(swept) or not swept:
            raise InvalidInput(f"{where}: {name} in params: expected a number above 0, got {_short(swept)}")
    texts = ((key, value if isinstance(value, str) else json.dumps(value)) for key, value in sorted(params.items()))
    variant = Variant(method, tuple(texts))
    return (dataset, experiment, variant, bits, seed, swept, *size), Checkpoint(**values)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
