"""Results on record: the lines that experiments wrote, and the tables that the paper printed.

A results file holds one JSON object per line, one line per checkpoint of a run. A run is a dataset, an experiment, a
method with its parameters, a code length, a seed, and how many queries and rows there were; it is finished once its
last line says `"final": true`. Lines are checked here, at the door: whoever gets a `Run` may trust it. A last line
without its line end whose JSON breaks off is one whose writing was cut short, and is counted, not read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from stillhash.errors import InvalidInput

# How methods are shown, and in which order. Presentation only: a method that is not here is shown by its own name.
NAMES = {
    "tally": "Tally",
    "tally-listwise": "Tally, listwise",
    "tuned": "Tuned",
    "ohsl": "OHSL",
    "ohsl-sym": "OHSL-sym",
    "ohweu": "OHWEU",
    "hmoh": "HMOH",
    "bsodh": "BSODH",
    "mihash": "MIHash",
    "osuph": "OSupH",
    "okh": "OKH",
    "osh": "OSH",
    "oasis": "OASIS",
    "lego": "LEGO",
    "pca-itq": "PCA-ITQ",
    "lsh": "LSH",
}


class Paper(NamedTuple):
    """A table of the paper: mAP of each method at 16, 32, 64 and 96 bits."""

    number: int
    dataset: str
    map: dict[str, dict[int, float]]


def _printed(text: str) -> dict[str, dict[int, float]]:
    rows = (line.split() for line in text.strip().splitlines())
    return {name: dict(zip((16, 32, 64, 96), map(float, values), strict=True)) for name, *values in rows}


# By how the name of a dataset begins.
PAPER = {
    "coco": Paper(
        1,
        "MS-COCO",
        _printed("""
            ohsl   .524 .536 .574 .578
            ohweu  .444 .506 .539 .567
            hmoh   .460 .501 .534 .550
            mihash .442 .435 .438 .488
            osuph  .463 .495 .512 .514
            okh    .412 .436 .470 .484
            bsodh  .458 .437 .434 .431
            osh    .457 .483 .499 .504
        """),
    ),
    "nuswide": Paper(
        2,
        "NUS-WIDE",
        _printed("""
            ohsl   .667 .673 .700 .701
            ohweu  .552 .637 .653 .670
            hmoh   .668 .716 .725 .728
            mihash .571 .635 .649 .647
            osuph  .611 .612 .631 .640
            okh    .506 .550 .555 .598
            bsodh  .614 .611 .613 .620
            osh    .466 .489 .514 .522
        """),
    ),
}

PARTS = ("learn", "refresh", "encode", "io")  # of the time a run takes
EXPERIMENTS = ("table", "time", "C", "length", "drift", "ablation")
SWEPT = {"C": "C", "length": "target_factor"}  # the parameter that an experiment varies
# Lines name only parameters that differ from the default, so a line of OHSL may be silent about these.
DEFAULTS = {method: {"C": 0.01, "target_factor": 3.0} for method in ("ohsl", "ohsl-sym")}


class Variant(NamedTuple):
    """A method and those of its parameters that are not the default, as (name, value) in the order of names."""

    method: str
    params: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        name = NAMES.get(self.method, self.method)
        return f"{name} ({', '.join(f'{key}={value}' for key, value in self.params)})" if self.params else name

    @property
    def place(self) -> tuple[int, str, tuple[tuple[str, str], ...]]:
        """Sorts as NAMES does, unknown methods last, the plain method before its variants."""
        known = list(NAMES)
        return (known.index(self.method) if self.method in NAMES else len(known)), self.method, self.params


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What one line says."""

    rows: int
    final: bool
    map: float | None
    expected_map: float | None
    seconds: dict[str, float]  # of each of PARTS, since the start
    chance: float | None
    machine: dict[str, Any]
    versions: dict[str, Any]
    commit: str
    command: str
    groups: dict[str, float]  # mAP of groups of queries
    prequential: list[tuple[int, float]]  # mAP of chunks before they were learnt, by rows, since the last checkpoint
    alarms: list[int]  # rows at which the monitor alarmed so far
    changes: list[int]  # rows at which the stream changes

    @property
    def total(self) -> float:
        return sum(self.seconds[part] for part in PARTS)


class Run(NamedTuple):
    """One run, its checkpoints in the order of rows."""

    dataset: str
    experiment: str
    variant: Variant  # without the swept parameter
    bits: int
    seed: int
    swept: float | None  # value of the parameter that the experiment varies
    queries: int | None
    database: int | None
    checkpoints: list[Checkpoint]

    @property
    def end(self) -> Checkpoint:
        return self.checkpoints[-1]


class Results(NamedTuple):
    """Everything that was found under a folder."""

    runs: list[Run]  # finished ones
    unfinished: list[Run]
    files: int
    lines: int
    torn: int  # last lines cut short
    replaced: int  # lines that a later line of the same run and number of rows replaced


Item = TypeVar("Item")
Key = TypeVar("Key")


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Groups in the order in which their first items come."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def read(folder: Path) -> Results:
    """All `*.jsonl` under `folder`, at any depth."""
    paths = sorted(folder.rglob("*.jsonl")) if folder.is_dir() else []
    if not paths:
        raise InvalidInput(f"results is {str(folder)!r}; a folder with *.jsonl files is wanted")
    runs: dict[tuple[Any, ...], dict[int, Checkpoint]] = {}
    lines = torn = replaced = 0
    for path in paths:
        said, cut = _lines(path)
        lines, torn = lines + len(said), torn + cut
        for number, line in said:
            run, checkpoint = _parsed(line, f"{path}, line {number}")
            replaced += checkpoint.rows in runs.setdefault(run, {})
            runs[run][checkpoint.rows] = checkpoint
    everything = _apart([Run._make((*run, [at for _, at in sorted(found.items())])) for run, found in runs.items()])
    everything.sort(key=lambda run: (run.dataset, run.bits, run.variant.place, run.swept or 0, run.seed))
    done = grouped(everything, lambda run: run.end.final)
    return Results(done.get(True, []), done.get(False, []), len(paths), lines, torn, replaced)


def _apart(runs: list[Run]) -> list[Run]:
    """A quick look and the full experiment are no seeds of one run: of several sizes, each becomes a dataset."""
    sizes = grouped(runs, lambda run: (run.dataset, run.experiment))
    several = {key for key, group in sizes.items() if len({(run.queries, run.database) for run in group}) > 1}
    return [
        run._replace(dataset=f"{run.dataset} ({run.queries} queries, {run.database} rows)")
        if (run.dataset, run.experiment) in several
        else run
        for run in runs
    ]


# ---- checking a line ----


def _lines(path: Path) -> tuple[list[tuple[int, Any]], bool]:
    """The lines that are not blank, with their numbers; and whether a last one was cut short."""
    *whole, rest = path.read_bytes().split(b"\n")
    said = []
    for number, line in enumerate([*whole, rest], 1):
        if line.strip():
            try:
                said.append((number, json.loads(line)))
            except ValueError:  # of the encoding or of JSON
                if number > len(whole):
                    return said, True
                raise InvalidInput(f"{path}, line {number} is not JSON; one object per line is wanted") from None
    return said, False


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _amount(value: Any, most: float = 1e300) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most  # so NaN is refused


def _share(value: Any) -> bool:
    return _amount(value, 1 + 1e-9)  # sums round


def _rows(value: Any) -> bool:
    return isinstance(value, list) and all(map(_whole, value))


def _shares(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_share, value.values()))


def _curve(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and _whole(pair[0]) and _share(pair[1]) for pair in value
    )


NEEDED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "dataset": (_text, "text"),
    "experiment": (lambda value: value in EXPERIMENTS, f"one of {', '.join(EXPERIMENTS)}"),
    "method": (_text, "text"),
    "bits": (_whole, "a whole number"),
    "seed": (_whole, "a whole number"),
    "params": (lambda value: isinstance(value, dict), "an object"),
    "rows": (_whole, "a whole number"),
    "final": (lambda value: isinstance(value, bool), "true or false"),
    "map": (lambda value: value is None or _share(value), "null or a number from 0 to 1"),
    "seconds": (
        lambda value: isinstance(value, dict) and all(_amount(value.get(part)) for part in PARTS),
        f"an object with seconds of {', '.join(PARTS)}",
    ),
}
OPTIONAL: dict[str, tuple[Callable[[Any], bool], str, Any]] = {
    "expected_map": (_share, "a number from 0 to 1", None),
    "queries": (_whole, "a whole number", None),
    "database": (_whole, "a whole number", None),
    "chance": (_share, "a number from 0 to 1", None),
    "machine": (lambda value: isinstance(value, dict), "an object", {}),
    "versions": (lambda value: isinstance(value, dict), "an object", {}),
    "commit": (_text, "text", ""),
    "command": (_text, "text", ""),
    "groups": (_shares, "an object of numbers from 0 to 1", {}),
    "prequential": (_curve, "a list of pairs, of a whole number and a number from 0 to 1", []),
    "alarms": (_rows, "a list of whole numbers", []),
    "changes": (_rows, "a list of whole numbers", []),
}


def _parsed(said: Any, where: str) -> tuple[tuple[Any, ...], Checkpoint]:
    """The run that a line belongs to, and what it says of it."""
    if not isinstance(said, dict):
        raise InvalidInput(f"{where} is {_short(said)}; an object is wanted")
    if missing := [key for key in NEEDED if key not in said]:
        raise InvalidInput(f"{where} has no {', '.join(missing)}; each line needs {', '.join(NEEDED)}")
    for key, (good, wanted) in NEEDED.items():
        if not good(said[key]):
            raise InvalidInput(f"{where}: {key} is {_short(said[key])}; {wanted} is wanted")
    more = {}
    for key, (good, wanted, otherwise) in OPTIONAL.items():
        more[key] = otherwise if said.get(key) is None else said[key]
        if said.get(key) is not None and not good(said[key]):
            raise InvalidInput(f"{where}: {key} is {_short(said[key])}; {wanted} is wanted")
    params = dict(said["params"])
    swept = None
    if name := SWEPT.get(said["experiment"]):
        swept = params.pop(name, DEFAULTS.get(said["method"], {}).get(name))
        if not _amount(swept) or not swept:
            raise InvalidInput(f"{where}: {name} in params is {_short(swept)}; a number above 0 is wanted")
    written = ((key, value if isinstance(value, str) else json.dumps(value)) for key, value in sorted(params.items()))
    variant = Variant(said["method"], tuple(written))
    size = more.pop("queries"), more.pop("database")
    run = said["dataset"], said["experiment"], variant, said["bits"], said["seed"], swept, *size
    return run, Checkpoint(said["rows"], said["final"], said["map"], seconds=said["seconds"], **more)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
