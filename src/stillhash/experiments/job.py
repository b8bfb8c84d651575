"""Describe one job of an experiment: a pass of one method over one dataset."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stillhash.errors import InvalidInput
from stillhash.experiments.drift import parse
from stillhash.numeric.validation import check_integer, check_number

INITIAL_STAGE_ROWS = 300  # the paper's


@dataclass(frozen=True)
class Job:
    """One pass: `rows` of the stream, measured at `checkpoints` even steps with so many `queries` (None: all).

    The experiment `few-labels` is measured at LABEL_COUNTS instead. The initial stage sees the `first` rows, and with
    `labelled_init` their labels; the paper's has 300 without labels. `preprocessing` sets every second query apart.

    labelled_share : share of the rows whose labels are known when they are inserted; the others have none, neither for
        learning nor for codes. Rows of a labelled initial stage are known too, except with a share of 0.
    label_noise : share of the rows that have the labels of another row, in the initial stage too.
    labelled_rows : in place of a share, so many rows have labels when they are inserted, those of the initial stage
        too: it sees the labels of its rows that have some. None: by the share.
    label_delay : chunks of the stream after its insertion at which a row's labels arrive; those of a labelled initial
        stage are known from the start.
    """

    experiment: str
    data: str
    method: str
    bits: int
    seed: int
    params: dict[str, Any] = field(default_factory=dict)
    checkpoints: int = 1
    queries: int | None = None
    rows: int | None = None
    measure: bool = True
    first: int = INITIAL_STAGE_ROWS
    labelled_init: bool = False
    labelled_share: float = 1.0
    label_noise: float = 0.0
    label_delay: int = 0
    labelled_rows: int | None = None

    def __post_init__(self) -> None:
        check_number(self.labelled_share, "labelled_share", low=0, high=1)
        check_number(self.label_noise, "label_noise", low=0, high=1)
        check_integer(self.label_delay, "label_delay", 0)
        if self.labelled_rows is not None:
            check_integer(self.labelled_rows, "labelled_rows", 0)
        if self.label_delay and self.experiment == "few-labels":
            raise InvalidInput(f"label_delay: expected 0 for few-labels, got {self.label_delay}")

    @property
    def file(self) -> str:
        stage = [self.first, self.labelled_init]
        stage = [] if stage == [INITIAL_STAGE_ROWS, False] else stage
        labels = [float(self.labelled_share), float(self.label_noise), self.label_delay]
        labels = [] if labels == [1, 0, 0] else labels
        labels += [] if self.labelled_rows is None else [self.labelled_rows]
        text = json.dumps([self.params, self.queries, self.rows, self.checkpoints, *stage, *labels], sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:8]
        scenario, under = parse(self.data)
        name = Path(under).name + (f"-{scenario}" if scenario else "")
        return f"{name}-{self.experiment}-{self.method}-{self.bits}-{self.seed}-{key}.jsonl"
