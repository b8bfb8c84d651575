"""What a learner has learnt, on disk, and which items that holds; and the versions of the model.

`LearnerFiles`: a checkpoint of the whole state, and the rows that were learnt since. Statistics of D features take D^2
numbers, far more than a chunk of rows. So a version adds its rows to the files of the version before; learning them
again, in the same steps, gives the same state to the byte. Once the rows would take more than `MAX_ROWS_SHARE` times
the checkpoint, or `MAX_ROW_FILES` files, the whole state is written again. Rows that `learn` got are stored nowhere
else, so they have files of their own, and a state of their own beside each checkpoint.

`LearntRowTable`: where features are kept, which rows of items each version has learnt, which `forget` has to take out.
A learner has learnt the rows of its version's lineage: of all versions that it goes on from. After a rollback these are
no longer all versions before it.

`SummedRowTable`: where the sums of the learner are over what is stored, which items they hold, and with which labels.
An item whose labels change, or which is deleted, leaves an entry in the table `removals` until the next step of
learning takes out what it gave: its codes, and the labels that it had then. The table `unlearnt_rows` has the items
whose labels are not to be learnt.

`VersionTable`: the versions of the model, and the files that their learners go on from.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from stillhash.collection.storage.items import NO_LABELS, NOT_JUDGED
from stillhash.collection.storage.schema import (
    RowNumbers,
    batches,
    count_rows,
    get_meta,
    has_table,
    parse_json,
    parsing,
    set_meta,
)
from stillhash.collection.validation import LabelledRows
from stillhash.errors import BadState, Conflict, InvalidInput
from stillhash.files import read_sealed, stored_file, write_sealed
from stillhash.hashers import Hasher, Tally, load
from stillhash.numeric.codes import width
from stillhash.numeric.labels import Labels, parse_labels
from stillhash.numeric.validation import Codes, Mask, check_codes, check_features, check_integer

Lineage = list[list[int]]  # ranges of versions, each with its first and last one, ascending
NO_ITEM = -1  # as a row says that the entry counts the labelled rows of a version


class LearntRow(NamedTuple):
    """A row of an item that was learnt with these labels."""

    row: int
    labels: str  # JSON
    age: int  # labelled rows that were learnt after it


class LearntRowTable:
    """An entry for each row of an item that was learnt, and one for each version with its number of labelled rows."""

    def add(
        self, connection: Connection, version: int, numbers: RowNumbers, label_texts: Sequence[str], labelled: Mask
    ) -> None:
        """Record what a version has learnt; rows that are no items have NOT_JUDGED as their number."""
        positions = np.cumsum(labelled) - 1
        known = labelled & (numbers != NOT_JUDGED)
        entries = [(version, int(labelled.sum()), NO_ITEM, "[]")]
        places = np.flatnonzero(known).tolist()
        entries += [(version, int(positions[at]), int(numbers[at]), label_texts[at]) for at in places]
        sql = "INSERT INTO learnt_rows (version, position, row, labels) VALUES (?, ?, ?, ?)"
        connection.executemany(sql, entries)

    def of_rows(self, connection: Connection, rows: Iterable[int], lineage: Lineage) -> list[LearntRow]:
        """Return what a learner of this lineage has learnt of these rows, in order."""
        sql = "SELECT version, position FROM learnt_rows WHERE row = ? ORDER BY version DESC"
        after, learnt_after = 0, {}
        for version, total in connection.execute(sql, [NO_ITEM]).fetchall():
            if contains(lineage, version):
                learnt_after[version] = after + total  # its own rows too
                after += total
        entries: list[tuple[int, LearntRow]] = []
        for marks, batch in batches(list(rows)):
            sql = f"SELECT number, version, position, row, labels FROM learnt_rows WHERE row IN ({marks})"
            for number, version, position, row, labels in connection.execute(sql, batch):
                if version in learnt_after:
                    entries.append((number, LearntRow(row, labels, learnt_after[version] - position - 1)))
        return [entry for _, entry in sorted(entries)]

    def delete(self, connection: Connection, rows: Sequence[int]) -> int | None:
        """Drop all entries of these rows; return the first version of one, None if there are none."""
        versions = []
        for marks, batch in batches(list(rows)):
            sql = f"FROM learnt_rows WHERE row IN ({marks})"
            versions += connection.execute(f"SELECT min(version) {sql}", batch).fetchone()
            connection.execute(f"DELETE {sql}", batch)
        return min((version for version in versions if version is not None), default=None)


def contains(lineage: Lineage, version: int) -> bool:
    """Return whether a lineage has this version."""
    return any(first <= version <= last for first, last in lineage)


def extended(lineage: Lineage, version: int) -> Lineage:
    """Return a lineage with a version that comes after all of it."""
    if lineage and lineage[-1][1] == version - 1:
        return [*lineage[:-1], [lineage[-1][0], version]]
    return [*lineage, [version, version]]


def lineage_of(connection: Connection, version: int | None = None) -> Lineage:
    """Return the lineage of a version, or of the current one; empty if it is not recorded."""
    number = get_meta(connection, "version") if version is None else version
    row = connection.execute("SELECT notes FROM versions WHERE version = ?", [number]).fetchone()
    lineage = [] if row is None else parse_json(row[0], dict, "notes").get("lineage", [])
    return [[int(first), int(last)] for first, last in lineage]


OTHERS_KEY = "other_summed_rows"  # in `meta` counts labelled rows that the sums hold and that are no items: of `learn`


class SummedRows(NamedTuple):
    """Rows that the sums hold, with the labels that they were learnt with."""

    numbers: RowNumbers
    label_texts: list[str]  # JSON
    learnt: list[int]  # how many labelled rows were learnt up to each of them

    def select(self, keep: Mask) -> "SummedRows":
        """Return the rows where `keep` is true."""
        places = np.flatnonzero(keep).tolist()
        texts, learnt = [self.label_texts[place] for place in places], [self.learnt[place] for place in places]
        return SummedRows(self.numbers[keep], texts, learnt)


class SummedCodes(NamedTuple):
    """What the sums hold of rows."""

    rescoring_codes: Codes
    codes: Codes
    label_texts: list[str]  # JSON
    learnt: list[int]


class SummedRowTable:
    """An entry for each item that was ever learnt; those that the sums do not hold now have no labels."""

    def __init__(self, rescoring_bytes: int, bits: int) -> None:
        self._rescoring_bytes, self._code_bytes = rescoring_bytes, width(bits)

    def add(self, connection: Connection, version: int, rows: SummedRows) -> None:
        """Record what a version has learnt; the first version that learnt a row stays."""
        entries = zip(rows.numbers.tolist(), rows.label_texts, rows.learnt, strict=True)
        sql = (
            "INSERT INTO summed_rows VALUES (?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET labels = excluded.labels, learnt = excluded.learnt"
        )
        connection.executemany(sql, ((*entry, version) for entry in entries))

    def begin(self, connection: Connection, learnt: int, version: int) -> int:
        """Record that the sums of a new version hold all labelled items, except pending ones; return how many.

        learnt: how many labelled rows were learnt before. Rows that earlier versions have learnt keep the first of
        those where it is known; where it is not, any version may have learnt any item.
        """
        first, known = "0", "1"
        if has_table(connection, "learnt_rows"):
            first = "ifnull((SELECT min(version) FROM learnt_rows WHERE row = items.row), :version)"
            known = "row IN (SELECT row FROM learnt_rows)"
        count = "max(0, :learnt - count(*) OVER () + row_number() OVER (ORDER BY row))"
        values = {"learnt": learnt, "version": version, "none": NO_LABELS}
        sql = (
            f"INSERT INTO summed_rows SELECT row, labels, {count}, {first} FROM items "
            "WHERE labels != :none AND row NOT IN (SELECT row FROM pending WHERE row NOT NULL)"
        )
        held = connection.execute(sql, values).rowcount
        others = f"{known} AND row NOT IN (SELECT row FROM summed_rows)"
        connection.execute(f"INSERT INTO summed_rows SELECT row, :none, 0, {first} FROM items WHERE {others}", values)
        return held

    @parsing("summed_rows")
    def held(self, connection: Connection, rows: Sequence[int]) -> SummedRows:
        """Return those of these rows that the sums hold."""
        found: list[tuple[int, str, int]] = []
        for marks, batch in batches(list(rows)):
            sql = f"SELECT row, labels, learnt FROM summed_rows WHERE row IN ({marks}) AND labels != ?"
            found += connection.execute(sql, [*batch, NO_LABELS]).fetchall()
        return _summed(sorted(found))

    @parsing("summed_rows")
    def all_held(self, connection: Connection, after: int, limit: int) -> SummedRows:
        """Return the first rows past one that the sums hold."""
        sql = "SELECT row, labels, learnt FROM summed_rows WHERE row > ? AND labels != ? ORDER BY row LIMIT ?"
        return _summed(connection.execute(sql, [after, NO_LABELS, limit]).fetchall())

    def first_version(self, connection: Connection, rows: Sequence[int]) -> int | None:
        """Return the first version that learnt one of these rows; None if none did."""
        versions: list[int | None] = []
        for marks, batch in batches(list(rows)):
            sql = f"SELECT min(version) FROM summed_rows WHERE row IN ({marks})"
            versions += connection.execute(sql, batch).fetchone()
        return min((version for version in versions if version is not None), default=None)

    def remove(self, connection: Connection, rows: SummedRows, rescoring_codes: Codes, codes: Codes) -> None:
        """Let the next step of learning take out what these rows gave, which have these codes."""
        columns = rescoring_codes, codes, rows.label_texts, rows.learnt
        values = ((a.tobytes(), b.tobytes(), text, learnt) for a, b, text, learnt in zip(*columns, strict=True))
        sql = "INSERT INTO removals (rescoring, code, labels, learnt) VALUES (?, ?, ?, ?)"
        connection.executemany(sql, values)
        marked = ((NO_LABELS, row) for row in rows.numbers.tolist())
        connection.executemany("UPDATE summed_rows SET labels = ? WHERE row = ?", marked)

    def drop(self, connection: Connection, rows: Sequence[int]) -> None:
        """Drop the entries of rows that are deleted, or forgotten."""
        connection.executemany("DELETE FROM summed_rows WHERE row = ?", ((row,) for row in rows))
        self.set_unlearnt(connection, rows, unlearnt=False)

    def set_unlearnt(self, connection: Connection, rows: Iterable[int], *, unlearnt: bool) -> None:
        """Note that the labels of these items are not to be learnt, or that they are again.

        A store of an earlier release has no such notes.
        """
        if has_table(connection, "unlearnt_rows"):
            insert, delete = "INSERT OR IGNORE INTO unlearnt_rows VALUES (?)", "DELETE FROM unlearnt_rows WHERE row = ?"
            connection.executemany(insert if unlearnt else delete, ((row,) for row in rows))

    def disagreeing(self, connection: Connection) -> RowNumbers:
        """Return the rows whose labels are others than the sums hold or learn next, unless they are not to be learnt.

        Rows that the sums hold and that are no items are among them.
        """
        if not has_table(connection, "unlearnt_rows"):
            return np.empty(0, np.int64)
        sql = """
            SELECT row FROM items LEFT JOIN pending USING (row) LEFT JOIN summed_rows USING (row)
            WHERE items.labels != coalesce(pending.labels, summed_rows.labels, '[]')
              AND row NOT IN (SELECT row FROM unlearnt_rows)
            UNION SELECT row FROM summed_rows JOIN pending USING (row) WHERE summed_rows.labels != '[]'
            UNION SELECT row FROM summed_rows WHERE labels != '[]' AND row NOT IN (SELECT row FROM items)
            ORDER BY row"""
        return np.array([row for (row,) in connection.execute(sql)], np.int64)

    def count_learnt(self, connection: Connection, most: int) -> int:
        """Count the rows that were ever learnt and are still there, and those that are no items; stop at `most`."""
        sql = "SELECT count(*) FROM (SELECT 1 FROM summed_rows LIMIT ?)"
        return min(most, int(connection.execute(sql, [most]).fetchone()[0]) + self.count_others(connection))

    def count_removals(self, connection: Connection) -> int:
        return count_rows(connection, "removals")

    @parsing("removals")
    def removals(self, connection: Connection) -> SummedCodes:
        """Return what the next step of learning takes out."""
        rows = connection.execute("SELECT rescoring, code, labels, learnt FROM removals ORDER BY number").fetchall()
        rescoring_codes, codes = (
            np.frombuffer(b"".join(row[n] for row in rows), np.uint8).reshape(len(rows), size)
            for n, size in enumerate((self._rescoring_bytes, self._code_bytes))
        )
        return SummedCodes(rescoring_codes, codes, [row[2] for row in rows], [int(row[3]) for row in rows])

    @parsing("other_summed_rows")
    @parsing(OTHERS_KEY)
    def count_others(self, connection: Connection) -> int:
        """Count the rows that the sums hold besides these, which cannot be taken out."""
        return int(get_meta(connection, OTHERS_KEY) or 0)

    def add_others(self, connection: Connection, rows: int) -> None:
        set_meta(connection, OTHERS_KEY, self.count_others(connection) + rows)

    def clear_removals(self, connection: Connection) -> None:
        connection.execute("DELETE FROM removals")


def _summed(rows: list[tuple[int, str, int]]) -> SummedRows:
    return SummedRows(np.array([row for row, _, _ in rows], np.int64), [r[1] for r in rows], [r[2] for r in rows])


MAX_ROWS_SHARE = 1
ROWS_AT_ONCE = 4096  # rows have their features in memory at a time
MAX_ROW_FILES = 32
CHECKPOINT_SUFFIX, ROWS_SUFFIX = ".safetensors", ".rows"
GIVEN_SUFFIX = ".given"  # is before the other suffix of a state that has learnt only rows which are no items


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
        self.relabel(hasher, LabelledRows(self.rescoring_codes[:0], Labels.empty(), []), self.codes[:0])

    def relabel(self, hasher: Hasher, rows: LabelledRows, codes: Codes) -> Mask:
        """Take the rows out, and learn those of other rows that come back with the same codes; return which do not.

        Of rows that come back only the labels change. With a half-life they would not count as they did, so none do.
        """
        left = np.ones(len(rows.label_texts), bool)
        if not self.label_texts:
            return left
        assert isinstance(hasher, Tally)
        before = parse_labels([json.loads(text) for text in self.label_texts], len(self.label_texts))
        try:
            if hasher.half_life is not None:
                for n, age in enumerate(self.ages.tolist()):  # each has decayed by its own age
                    row = slice(n, n + 1)
                    own = self.rescoring_codes[row], before.take(np.array([n])), self.codes[row]
                    hasher.unlearn_stored(*own, age=age)
                return left
            gone, back = self._pairs(rows.features, codes)
            left[back] = False
            for some in in_parts(np.setdiff1d(np.arange(len(self.codes)), gone)):
                hasher.unlearn_stored(self.rescoring_codes[some], before.take(some), self.codes[some])
            for was, now in zip(in_parts(gone), in_parts(back), strict=True):
                hasher.relabel_stored(rows.features[now], before.take(was), rows.labels.take(now), codes[now])
        except InvalidInput as error:  # more rows than were learnt, or other labels
            raise BadState(f"removals: the sums do not hold what is to be taken out: {error}") from error
        return left

    def _pairs(self, rescoring_codes: Codes, codes: Codes) -> tuple[RowNumbers, RowNumbers]:
        """Return the places of rows that come back with the same codes, here and among those."""
        places: dict[bytes, list[int]] = {}
        for place, key in enumerate(np.concatenate([self.rescoring_codes, self.codes], axis=1)):
            places.setdefault(key.tobytes(), []).append(place)
        keys = enumerate(np.concatenate([rescoring_codes, codes], axis=1))
        pairs = [(same.pop(), row) for row, key in keys if (same := places.get(key.tobytes()))]
        both = np.array(pairs, np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]


def in_parts(rows: RowNumbers) -> list[RowNumbers]:
    """Return rows in parts whose features fit into memory."""
    return [rows[start : start + ROWS_AT_ONCE] for start in range(0, len(rows), ROWS_AT_ONCE)]


class LearntRows(NamedTuple):
    """What a version has learnt: rows with their codes, in steps, after so many rows without labels were stored."""

    rows: LabelledRows  # with rescoring codes in place of features, where sums are taken of these
    codes: Codes
    step_rows: int
    unlabelled: int
    taken_out: TakenOut
    given: bool = False  # to `learn`, so that they are stored nowhere else

    def learn(self, hasher: Hasher) -> None:
        """Learn the rows as the version did."""
        hasher.count_unlabelled(self.unlabelled)
        rows, codes, _ = self.take_out(hasher)
        for step in rows.steps(self.step_rows):
            learn_step(hasher, rows.part(step), codes[step])

    def take_out(self, hasher: Hasher) -> tuple[LabelledRows, Codes, Mask]:
        """Take rows out, and relabel those that come back; return the others, their codes, and which they are."""
        left = self.taken_out.relabel(hasher, self.rows, self.codes)
        if left.all():
            return self.rows, self.codes, left
        return self.rows.select(left), self.codes[left], left


def learn_step(hasher: Hasher, rows: LabelledRows, codes: Codes) -> None:
    """Learn rows of one step: by their rescoring codes, where these stand for their features."""
    if rows.features.dtype == np.uint8:
        assert isinstance(hasher, Tally)
        hasher.learn_stored(rows.features, rows.labels, codes)
    else:
        hasher.learn_rows(rows.features, rows.labels, codes)


def keeps_given(files: list[str]) -> bool:
    """Return whether these files keep apart what `learn` got."""
    return any(GIVEN_SUFFIX in file for file in files)


def _row_files(files: list[str]) -> list[str]:
    """Return those files that hold rows, not a state."""
    return [file for file in files if not file.endswith(CHECKPOINT_SUFFIX)]


class LearnerFiles:
    """Read and write the learner files of a collection. Each is sealed, and never changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def checkpoint(self, version: int, hasher: Hasher, given: Hasher | None = None) -> list[str]:
        """Write the whole state, and beside it what it holds of rows that are no items."""
        states = {f"{version:08d}{CHECKPOINT_SUFFIX}": hasher}
        if given is not None:
            states[f"{version:08d}{GIVEN_SUFFIX}{CHECKPOINT_SUFFIX}"] = given
        for file, state in states.items():
            write_sealed(self.folder / file, [state.state()])
        return list(states)

    def extend(self, files: list[str], version: int, learnt: LearntRows, hasher: Hasher) -> list[str]:
        """Write what the hasher has just learnt after these files; if its whole state is less, that instead."""
        rows, codes, step_rows, unlabelled, taken_out, _ = learnt
        new_bytes = rows.features.nbytes + taken_out.rescoring_codes.nbytes
        if len(files) > MAX_ROW_FILES or self._rows_outgrow_state(files, new_bytes):
            try:
                given = self.given(files, hasher, learnt)
            except BadState:  # a file is lost, and nothing replaces that
                given = None
            return self.checkpoint(version, hasher, given)
        file = f"{version:08d}{GIVEN_SUFFIX if learnt.given else ROWS_SUFFIX}"
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
            state, *rows = ((self.folder / file).stat().st_size for file in [files[0], *_row_files(files)])
        except OSError:  # a file is lost: the whole state, which is in memory, replaces it
            return True
        return sum(rows) + new_bytes > MAX_ROWS_SHARE * state

    def load(self, files: list[str]) -> Hasher:
        """Return the hasher that has learnt all of these files."""
        hasher = self.read_state(files[0])
        for file in _row_files(files):
            self.read_rows(file, hasher).learn(hasher)
        return hasher

    def given(self, files: list[str], hasher: Hasher, learnt: LearntRows | None = None) -> Tally | None:
        """Return a hasher that has learnt the rows of `learn` alone, in these files and a later step; None without any.

        hasher: one with the same hash functions.
        """
        files = [file for file in files if GIVEN_SUFFIX in file]
        if not files and (learnt is None or not learnt.given):
            return None
        state = files.pop(0) if files and files[0].endswith(CHECKPOINT_SUFFIX) else None
        given = hasher if state is None else self.read_state(state)
        if not isinstance(given, Tally):
            raise BadState(f"learner: expected the method {Tally.name}, got {given.name}")
        given = given.without_rows() if state is None else given
        for rows in [self.read_rows(file, given) for file in files]:
            rows.learn(given)
        if learnt is not None and learnt.given:
            learnt.learn(given)
        return given

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


MAX_VERSION = 2**63 - 1
VERSION_COLUMNS = ("version", "created", "kind", "rows", "tag")


class NewVersion(NamedTuple):
    """A version to publish."""

    kind: str  # fit, learn, feedback, rollback to N
    rows: int  # that it has learnt
    learner: list[str]  # files below learner/, in the order they are read
    notes: dict[str, Any] | None = None


class VersionTable:
    """Version 0 is the state before learning and has no row."""

    def __init__(self, keep_versions: int) -> None:
        self.keep_versions = keep_versions

    def next_number(self, connection: Connection) -> int:
        """Return the number of the next version."""
        return int(connection.execute("SELECT ifnull(max(version), 0) + 1 FROM versions").fetchone()[0])

    def publish(self, connection: Connection, new: NewVersion, side: str, model: bytes | None) -> int:
        """Make this the current version, with its model, and drop versions that need not be kept."""
        version = self.next_number(connection)
        created = datetime.now(UTC).isoformat(timespec="milliseconds")
        learner, notes = json.dumps(new.learner), json.dumps(new.notes or {})
        row = version, created, new.kind, new.rows, None, side, model, learner, notes
        connection.execute("INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        set_meta(connection, "version", version)
        oldest = version - self.keep_versions
        connection.execute("DELETE FROM versions WHERE version <= ? AND tag IS NULL", [oldest])
        return version

    def drop_others(self, connection: Connection, version: int, since: int = 0) -> list[int]:
        """Drop all versions but this one, with their tags, or those from `since` on; return their numbers."""
        sql = "FROM versions WHERE version != ? AND version >= ?"
        rows = connection.execute(f"SELECT version {sql} ORDER BY version", [version, since]).fetchall()
        connection.execute(f"DELETE {sql}", [version, since])
        return [number for (number,) in rows]

    def model(self, connection: Connection, version: int) -> tuple[str, bytes | None]:
        """Return the side and the serialised model of a version."""
        sql = "SELECT side, model FROM versions WHERE version = ?"
        row = connection.execute(sql, [version]).fetchone()
        if row is None:
            raise InvalidInput(f"version: expected one that is kept, got {version}")
        return row[0], row[1]

    def earliest(self, connection: Connection) -> int:
        """Return the first version that is kept."""
        return int(connection.execute("SELECT min(version) FROM versions").fetchone()[0])

    def describe(self, connection: Connection) -> list[dict[str, Any]]:
        """Return the versions that are kept, the latest last."""
        current = get_meta(connection, "version")
        sql = f"SELECT {', '.join(VERSION_COLUMNS)}, notes FROM versions ORDER BY version"
        versions = []
        for row in connection.execute(sql).fetchall():
            stored, notes = dict(zip(VERSION_COLUMNS, row, strict=False)), parse_json(row[-1], dict, "notes")
            if [type(value) for value in row[:4]] != [int, str, str, int] or not isinstance(row[4], str | None):
                raise BadState(f"versions: expected what describes version {row[0]}, got {stored!r:.200}")
            notes.pop("lineage", None)  # of the learner, for `forget`
            versions.append({**stored, "current": row[0] == current, **notes})
        return versions

    def tag(self, connection: Connection, version: int, name: str) -> None:
        """Name a version, so that it is kept."""
        self.model(connection, version)
        if connection.execute("SELECT 1 FROM versions WHERE tag = ? AND version != ?", [name, version]).fetchone():
            raise Conflict(f"name: another version is called {name!r}")
        if version not in self.learners(connection):
            self.set_learner(connection, version, None)  # its files are gone
        connection.execute("UPDATE versions SET tag = ? WHERE version = ?", [name, version])

    def learners(self, connection: Connection) -> dict[int, list[str]]:
        """Return the files that a learner goes on from, of the latest two versions and of those with a tag.

        Other versions may still name files, which are gone: to clear that would write their models again.
        """
        needed = "tag NOT NULL OR version >= (SELECT max(version) FROM versions) - 1"
        rows = connection.execute(f"SELECT version, learner FROM versions WHERE {needed}").fetchall()
        learners = {version: parse_json(files, list, "learner") for version, files in rows if files is not None}
        for file in (file for files in learners.values() for file in files):
            stored_file(Path("learner"), file)
        return learners

    def set_learner(self, connection: Connection, version: int, files: list[str] | None) -> None:
        """Replace the learner files of a version."""
        value = None if files is None else json.dumps(files)
        connection.execute("UPDATE versions SET learner = ? WHERE version = ?", [value, version])

    def learner_files(self, connection: Connection) -> list[str]:
        """Return every file that a learner of some version needs."""
        return sorted({file for files in self.learners(connection).values() for file in files})
