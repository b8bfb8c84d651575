"""What a learner has learnt, on disk: a checkpoint of its whole state, and the rows that were learnt since.

Statistics of D features take D^2 numbers, far more than a chunk of rows. So a version adds its rows to the files
of the version before; learning them again, in the same steps, gives the same state to the byte. Once the rows would
take more than `MAX_ROWS_SHARE` times the checkpoint, or `MAX_ROW_FILES` files, the whole state is written again.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from stillhash.collection.validation import LabelledRows
from stillhash.errors import BadState, InvalidInput
from stillhash.files import read_sealed, stored_file, write_sealed
from stillhash.hashers import Hasher, Tally, load
from stillhash.numeric.labels import parse_labels
from stillhash.numeric.validation import Codes, check_codes, check_features, check_integer

MAX_ROWS_SHARE = 1
MAX_ROW_FILES = 32
CHECKPOINT_SUFFIX, ROWS_SUFFIX = ".safetensors", ".rows"


class TakenOut(NamedTuple):
    """Rows that a version takes out of the sums before it learns: their codes, and the labels that were learnt."""

    rescoring_codes: Codes
    codes: Codes
    label_texts: list[str]  # JSON
    ages: NDArray[np.int64]  # how many labelled rows were learnt after each

    @classmethod
    def nothing(cls) -> "TakenOut":
        return cls(np.empty((0, 0), np.uint8), np.empty((0, 0), np.uint8), [], np.empty(0, np.int64))

    def unlearn(self, hasher: Hasher) -> None:
        """Take the rows out."""
        if not self.label_texts:
            return
        assert isinstance(hasher, Tally)
        try:
            self._unlearn(hasher)
        except InvalidInput as error:  # more rows than were learnt, or other labels
            raise BadState(f"removals: the sums do not hold what is to be taken out: {error}") from error

    def _unlearn(self, hasher: Tally) -> None:
        lists = [json.loads(text) for text in self.label_texts]
        if hasher.half_life is None:
            hasher.unlearn_stored(self.rescoring_codes, parse_labels(lists, len(lists)), self.codes)
            return
        for n, labels in enumerate(lists):  # each has decayed by its own age
            row = slice(n, n + 1)
            own = self.rescoring_codes[row], parse_labels([labels], 1), self.codes[row]
            hasher.unlearn_stored(*own, age=int(self.ages[n]))


class LearntRows(NamedTuple):
    """What a version has learnt: rows with their codes, in steps, after so many rows without labels were stored."""

    rows: LabelledRows  # with rescoring codes in place of features, where sums are taken of these
    codes: Codes
    step_rows: int
    unlabelled: int
    taken_out: TakenOut

    def learn(self, hasher: Hasher) -> None:
        """Learn the rows as the version did."""
        hasher.count_unlabelled(self.unlabelled)
        self.taken_out.unlearn(hasher)
        for step in self.rows.steps(self.step_rows):
            learn_step(hasher, self.rows.part(step), self.codes[step])


def learn_step(hasher: Hasher, rows: LabelledRows, codes: Codes) -> None:
    """Learn rows of one step: by their rescoring codes, where these stand for their features."""
    if rows.features.dtype == np.uint8:
        assert isinstance(hasher, Tally)
        hasher.learn_stored(rows.features, rows.labels, codes)
    else:
        hasher.learn_rows(rows.features, rows.labels, codes)


class LearnerFiles:
    """Read and write the learner files of a collection. Each is sealed, and never changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def checkpoint(self, version: int, hasher: Hasher) -> list[str]:
        """Write the whole state."""
        file = f"{version:08d}{CHECKPOINT_SUFFIX}"
        write_sealed(self.folder / file, [hasher.state()])
        return [file]

    def extend(self, files: list[str], version: int, learnt: LearntRows, hasher: Hasher) -> list[str]:
        """Write what the hasher has just learnt after these files; if its whole state is less, that instead."""
        rows, codes, step_rows, unlabelled, taken_out = learnt
        new_bytes = rows.features.nbytes + taken_out.rescoring_codes.nbytes
        if len(files) > MAX_ROW_FILES or self._rows_outgrow_state(files, new_bytes):
            return self.checkpoint(version, hasher)
        file = f"{version:08d}{ROWS_SUFFIX}"
        numbers = {"step_rows": str(step_rows), "unlabelled": str(unlabelled)}
        metadata = {"labels": json.dumps(rows.label_texts), **numbers}
        arrays: dict[str, NDArray[Any]] = {"features": rows.features, "codes": np.ascontiguousarray(codes)}
        if taken_out.label_texts:
            metadata["taken_out_labels"] = json.dumps(taken_out.label_texts)
            arrays |= {"taken_out": taken_out.rescoring_codes, "taken_out_codes": taken_out.codes}
            arrays["taken_out_ages"] = taken_out.ages
        write_sealed(self.folder / file, [safetensors.numpy.save(arrays, metadata)])
        return [*files, file]

    def _rows_outgrow_state(self, files: list[str], new_bytes: int) -> bool:
        try:
            state, *rows = ((self.folder / file).stat().st_size for file in files)
        except OSError:  # a file is lost: the whole state, which is in memory, replaces it
            return True
        return sum(rows) + new_bytes > MAX_ROWS_SHARE * state

    def load(self, files: list[str]) -> Hasher:
        """Return the hasher that has learnt all of these files."""
        hasher = self.read_state(files[0])
        for file in files[1:]:
            self.read_rows(file, hasher).learn(hasher)
        return hasher

    def read_state(self, file: str) -> Hasher:
        """Return the hasher of a checkpoint."""
        return load(read_sealed(stored_file(self.folder, file)))

    def read_rows(self, file: str, hasher: Hasher) -> LearntRows:
        """Return the rows of a file, which this hasher can learn."""
        data = read_sealed(stored_file(self.folder, file))
        try:
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            arrays, metadata = safetensors.numpy.load(data), header["__metadata__"]
            rescorer = hasher.rescorer_ if isinstance(hasher, Tally) else None
            if rescorer is None:
                features = check_features(arrays["features"], "features", columns=hasher.n_features_in_, whose=file)
            else:
                features = check_codes(arrays["features"], 8 * rescorer.width)  # type: ignore[assignment]
            rows = LabelledRows.from_texts(features, json.loads(metadata["labels"]))
            codes = check_codes(arrays["codes"], hasher.bits)
            steps = check_integer(int(metadata["step_rows"]), "step_rows", 1)
            taken_out = TakenOut.nothing()
            if rescorer is not None and "taken_out_labels" in metadata:
                both = (
                    check_codes(arrays["taken_out"], 8 * rescorer.width),
                    check_codes(arrays["taken_out_codes"], hasher.bits),
                )
                taken_out = TakenOut(*both, json.loads(metadata["taken_out_labels"]), arrays["taken_out_ages"])
            learnt = LearntRows(rows, codes, steps, int(metadata["unlabelled"]), taken_out)
        except (safetensors.SafetensorError, LookupError, ValueError, TypeError, RecursionError) as error:
            raise BadState(f"learner/{file}: cannot be read: {error}") from error
        if len({len(part) for part in taken_out}) != 1:
            raise BadState(f"learner/{file}: expected codes and labels of as many rows that are taken out, got others")
        if not len(features) == len(codes) == len(rows.labels):
            raise BadState(f"learner/{file}: expected features, codes and labels of as many rows, got others")
        return learnt
