"""River: a transformer that turns a stream of features into bits of fixed codes, or into what they tell of labels.

The first rows wait until the hash functions can be fitted; then each row is learnt, a few at a time, and the codes of
all rows, earlier and later ones, stay what they are.
"""

from collections.abc import Iterator
from importlib import import_module
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput, MissingExtra, WrongType, report_shortages
from stillhash.hashers import Tally
from stillhash.numeric import kernels
from stillhash.numeric.codes import signs
from stillhash.numeric.validation import MAX_MAGNITUDE, Floats, check_bits, check_choice, check_integer

try:
    base: Any = import_module("river.base")
except ImportError as error:
    raise MissingExtra("stillhash.integrations.river needs River: pip install 'stillhash[river]'") from error

MAX_STREAM_FEATURES = 4096  # in the first rows; what is learnt takes the square of it
MAX_STREAM_LABELS = 1000  # rows with others count as rows without labels
StreamRow = dict[Any, float]


@report_shortages
class StillhashTransformer(base.SupervisedTransformer, base.MiniBatchSupervisedTransformer):
    """Fixed binary codes of a stream, and what is learnt of its labels.

    The features of the first `init_rows` rows are the features for good: later ones are ignored, and one that a row
    lacks has its mean of the first rows. Features should be of similar size: put a StandardScaler before this.

    bits : length of the codes, 8 to 512.
    output : "bits", -1 or +1 for each bit, all 0 before the hash functions are fitted; they never change. Or "labels",
        how much of each label the features predict, a regression that goes on learning; nothing before that.
    init_rows : rows that the hash functions are fitted on.
    batch_rows : rows that are learnt at a time after that; what is learnt does not depend on it.
    seed : of the hash functions.
    """

    def __init__(
        self,
        bits: int = 64,
        output: Literal["bits", "labels"] = "bits",
        init_rows: int = 200,
        batch_rows: int = 50,
        seed: int = 0,
    ) -> None:
        self.bits, self.output = check_bits(bits), output
        check_choice(output, "output", choices=("bits", "labels"))
        self.init_rows = check_integer(init_rows, "init_rows", 2)
        self.batch_rows, self.seed = check_integer(batch_rows, "batch_rows", 1), check_integer(seed, "seed", 0)
        self._first_rows: list[StreamRow] = []  # before the hash functions are fitted
        self._vectors: list[Floats] = []  # of rows that are not learnt yet, after that
        self._pending_labels: list[list[str]] = []  # of the rows in either
        self._names: dict[Any, int] = {}  # features, and in the end their columns
        self._labels: set[str] = set()
        self._means: Floats = np.empty(0, np.float32)
        self._hasher: Tally | None = None

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        for output in ("bits", "labels"):
            yield {"output": output}
            yield {"output": output, "bits": 16, "init_rows": 15, "batch_rows": 4}

    def learn_one(self, x: dict[Any, Any], y: Any) -> None:
        """Learn from one row. y: a label; a list or a set of labels; a dictionary of labels and booleans; or None."""
        row, labels = check_row(x), self._known_labels(labels_of_target(y))
        if self._hasher is not None:
            self._vectors.append(self._vector(row))
        elif row:  # one without features tells nothing of hash functions
            if len(self._names.keys() | row.keys()) > MAX_STREAM_FEATURES:
                most = f"expected at most {MAX_STREAM_FEATURES} features in the first {self.init_rows} rows"
                raise InvalidInput(f"x: {most}, got more")
            self._names.update(dict.fromkeys(row, 0))
            self._first_rows.append(row)
        else:
            return
        self._labels.update(labels)
        self._pending_labels.append(labels)
        self._learn_pending()

    def transform_one(self, x: dict[Any, Any]) -> dict[str, float]:
        """Return bit0, bit1, ... of the code of a row; or label=NAME for each label that is learnt."""
        names, values = self._transform([check_row(x)])
        return dict(zip(names, values[0].tolist(), strict=True))

    def learn_many(self, X: Any, y: Any) -> None:
        """Learn from the rows of a table of pandas, one after another; NaN is a missing feature."""
        rows = table_rows(X)
        targets = list(y)
        if len(targets) != len(rows):
            raise InvalidInput(f"y: expected one for each of {len(rows)} rows, got {len(targets)}")
        for row in rows:
            check_row(row)
        for row, target in zip(rows, targets, strict=True):
            self.learn_one(row, target)

    def transform_many(self, X: Any) -> Any:
        """Return what `transform_one` returns of each row of a table, as a table with its index."""
        names, values = self._transform([check_row(row) for row in table_rows(X)])
        return import_module("pandas").DataFrame(values, columns=names, index=X.index)

    def _transform(self, rows: list[StreamRow]) -> tuple[list[str], NDArray[Any]]:
        bits = [f"bit{bit}" for bit in range(self.bits)]
        if self._hasher is None:
            names = bits if self.output == "bits" else []
            return names, np.zeros((len(rows), len(names)), np.int8)
        X = np.array([self._vector(row) for row in rows], np.float32).reshape(len(rows), len(self._means))
        if self.output == "bits":
            return bits, signs(self._hasher.encode(X), self.bits).astype(np.int8)
        model = self._hasher.model()
        if model.label_names is None or model.U is None or model.u is None:
            return [], np.zeros((len(rows), 0), np.float32)
        return [f"label={name}" for name in model.label_names], kernels.project(
            self._hasher.prepare(X), model.U
        ) + model.u

    def _vector(self, row: StreamRow) -> Floats:
        """Return the features of a row in their columns, and means where it has none."""
        vector = self._means.copy()
        for name, value in row.items():
            if (column := self._names.get(name)) is not None:
                vector[column] = value
        return vector

    def _learn_pending(self) -> None:
        """Fit the hash functions once there are enough rows, and learn rows once there are enough of them."""
        if self._hasher is None and len(self._first_rows) >= self.init_rows:
            ordered = sorted(self._names, key=lambda name: (type(name).__name__, str(name)))
            values = [[row[name] for row in self._first_rows if name in row] for name in ordered]
            self._names = {name: column for column, name in enumerate(ordered)}
            self._means = np.array([np.mean(each) for each in values], np.float32)
            X = np.array([self._vector(row) for row in self._first_rows])
            self._hasher = Tally(self.bits, codes_see_labels=False, random_state=self.seed)
            self._hasher.fit(X, self._pending_labels)
            self._vectors, self._first_rows = list(X), []
        elif self._hasher is None or len(self._vectors) < self.batch_rows:
            return
        self._hasher.partial_fit(np.array(self._vectors), self._pending_labels)
        self._vectors, self._pending_labels = [], []

    def _known_labels(self, labels: list[str]) -> list[str]:
        """Return labels, without new ones where there are too many already."""
        allowed = MAX_STREAM_LABELS - len(self._labels)
        new = [label for label in dict.fromkeys(labels) if label not in self._labels][: max(0, allowed)]
        return [label for label in dict.fromkeys(labels) if label in self._labels or label in new]


def check_row(x: Any) -> StreamRow:
    """Return the features of a row as finite numbers; one that is None is missing."""
    if not isinstance(x, dict):
        raise WrongType(f"x: expected a dictionary of features, got a value of type {type(x).__name__}")
    row = {}
    for name, value in x.items():
        if value is None:
            continue
        if not isinstance(value, Real | np.bool_):
            use = "Use OneHotEncoder, or another encoder, before this."
            raise WrongType(f"x[{name!r}]: expected a number, got a value of type {type(value).__name__}. {use}")
        number = float(value)
        if not abs(number) <= MAX_MAGNITUDE / 2:  # also where it is NaN
            raise InvalidInput(f"x[{name!r}]: expected a finite number up to {MAX_MAGNITUDE / 2:.1e}, got {number}")
        row[name] = number
    return row


def table_rows(X: Any) -> list[dict[Any, Any]]:
    """Return the rows of a table without what is missing in them."""
    if not hasattr(X, "to_dict") or not hasattr(X, "index"):
        raise WrongType(f"X: expected a table of pandas, got a value of type {type(X).__name__}")
    rows = X.to_dict(orient="records")
    return [{name: value for name, value in row.items() if value == value} for row in rows]


def labels_of_target(y: Any) -> list[str]:
    """Return the labels of a target, as texts."""
    match y:
        case None:
            return []
        case dict():
            return [str(label) for label, present in y.items() if present]
        case str():
            return [y]
        case list() | tuple() | set() | frozenset():
            return sorted(map(str, y))
        case np.ndarray() if y.ndim:
            return sorted(map(str, y.tolist()))
    return [str(y)]
