"""What a collection takes as rows and queries: features, or ready codes where it has `codes_only`.

Both are validated here, once. Ready codes are stored as they are; what is learnt from them, and queries, are their
signs, (n, bits) of -1 and +1.
"""

from sqlite3 import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.learning.trainer import Trainer
from stillhash.collection.validation import (
    ItemRows,
    LabelledRows,
    check_ids,
    check_items,
    check_labels,
    check_metadata,
    check_pictures,
    check_query,
    check_rows,
)
from stillhash.errors import InvalidInput, WrongType
from stillhash.numeric.code_formats import from_hex, is_hex
from stillhash.numeric.codes import signs, width
from stillhash.numeric.validation import Codes, Floats, check_codes

LEARN_CODES = 65_536  # labelled codes whose signs are in memory at a time


class FeatureInput(NamedTuple):
    """Rows of features, (n, dim) real numbers."""

    dim: int
    bits: int

    @property
    def row_length(self) -> int:
        """Return the numbers of a row."""
        return self.dim

    def items(
        self, ids: Any, features: Any, labels: Any, metadata: Any, pictures: Any
    ) -> tuple[ItemRows, LabelledRows]:
        """Validate the arguments of `add` and `upsert`."""
        self._refuse_codes(features, "features")
        return check_items(ids, features, labels, metadata, pictures, self.dim)

    def rows(self, features: Any, labels: Any, *, least: int = 0) -> LabelledRows:
        """Validate rows and their labels."""
        self._refuse_codes(features, "features")
        return check_rows(features, labels, self.dim, least=least)

    def query(self, query: Any) -> tuple[Floats, bool]:
        """Validate one query, or several; return them as rows, and whether it was one."""
        self._refuse_codes(query, "query")
        return check_query(query, self.dim)

    def _refuse_codes(self, value: Any, name: str) -> None:
        packed = isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim in (1, 2)
        if is_hex(value) or (packed and value.shape[-1] == width(self.bits) != self.dim):
            use = "Only a collection that is created with codes_only=True takes codes."
            raise InvalidInput(f"{name}: expected {self.dim} features, got what looks like codes. {use}")


class CodeInput(NamedTuple):
    """Rows of ready codes: packed, (n, ceil(bits / 8)) uint8, or hexadecimal texts."""

    bits: int

    @property
    def row_length(self) -> int:
        """Return the bytes of a code."""
        return width(self.bits)

    def items(
        self, ids: Any, features: Any, labels: Any, metadata: Any, pictures: Any
    ) -> tuple[ItemRows, LabelledRows]:
        """Validate the arguments of `add` and `upsert`; the items have their codes, and the rows no features."""
        names = check_ids(ids)
        (codes, _), count = self.codes(features, "codes", single=False), len(names)
        if len(codes) != count:
            raise InvalidInput(f"codes: expected one for each of {count} ids, got {len(codes)}")
        parsed, texts = check_labels(labels, count)
        new = ItemRows(names, texts, check_metadata(metadata, count), check_pictures(pictures, count), codes)
        return new, LabelledRows(np.empty((count, 0), np.float32), parsed, texts)

    def rows(self, features: Any, labels: Any, *, least: int = 0) -> LabelledRows:
        """Validate codes and their labels; the features are signs."""
        codes, _ = self.codes(features, "codes", single=False)
        return check_rows(signs(codes, self.bits), labels, self.bits, "codes", least)

    def query(self, query: Any) -> tuple[Floats, bool]:
        """Validate one query, or several; return their signs as rows, and whether it was one."""
        codes, single = self.codes(query, "query")
        return signs(codes, self.bits), single

    def codes(self, value: Any, name: str, *, single: bool = True) -> tuple[Codes, bool]:
        """Return packed codes as rows, and whether there was one, not in a list."""
        if not isinstance(value, np.ndarray) and hasattr(value, "__array__"):  # a column of a table, a tensor
            value = np.asarray(value)
        if is_hex(value):
            array: NDArray[Any] = from_hex(value, self.bits)
        elif isinstance(value, list) and value and all(isinstance(one, np.ndarray) for one in value):
            array = _stacked(value, name)
        else:
            array = value if isinstance(value, np.ndarray) else np.empty(0, object)
        if array.dtype != np.uint8:
            kind = (
                f"dtype {array.dtype}" if isinstance(value, np.ndarray) else f"a value of type {type(value).__name__}"
            )
            expected = f"packed codes of dtype uint8, {width(self.bits)} bytes each, or hexadecimal texts"
            raise WrongType(f"{name}: expected {expected}, since this collection has codes only, got {kind}")
        alone = array.ndim == 1 and single
        return check_codes(array[None] if alone else array, self.bits, name), alone


InputRows = FeatureInput | CodeInput


def input_rows(settings: dict[str, Any]) -> InputRows:
    """Return what a collection of these settings takes."""
    return CodeInput(settings["bits"]) if settings["codes_only"] else FeatureInput(settings["dim"], settings["bits"])


def learn_codes(trainer: Trainer, connection: Connection, numbers: range, rows: LabelledRows, codes: Codes) -> None:
    """Learn from the labelled rows of items with ready codes, some at a time; rows have no features yet."""
    labelled = np.flatnonzero(rows.labels.labelled)
    trainer.count_unlabelled(connection, len(codes) - len(labelled))
    for start in range(0, len(labelled), LEARN_CODES):
        chosen = np.zeros(len(codes), bool)
        chosen[labelled[start : start + LEARN_CODES]] = True
        some = rows.select(chosen)._replace(features=signs(codes[chosen], trainer.store.settings["bits"]))
        trainer.learn_items(connection, np.asarray(numbers)[chosen].tolist(), some, codes[chosen])


def _stacked(rows: list[NDArray[Any]], name: str) -> NDArray[Any]:
    try:
        return np.stack(rows)
    except ValueError:
        raise InvalidInput(
            f"{name}: expected codes of equal length, got {sorted({row.shape for row in rows})}"
        ) from None
