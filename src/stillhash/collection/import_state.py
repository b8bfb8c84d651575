"""Store the records of an export, which may come from anyone, in a new collection: each is validated before."""

import json
import math
from sqlite3 import Connection, IntegrityError
from typing import Any

import numpy as np

from stillhash.collection.encoder_alignment import ALIGNMENT_PREFIX, list_alignments
from stillhash.collection.export_formats.records import Record
from stillhash.collection.prequential import save_history
from stillhash.collection.storage.doubtful_labels import HISTOGRAMS_KEY, MAX_DOUBTFUL
from stillhash.collection.storage.learnt_rows import NO_ITEM
from stillhash.collection.storage.schema import MAX_ROW_NUMBER, check_counters, get_meta, set_meta
from stillhash.collection.storage.store import Store
from stillhash.collection.storage.summed_rows import SummedRowTable
from stillhash.collection.storage.versions import MAX_VERSION
from stillhash.collection.storage.votes import digest
from stillhash.collection.stored_models import check_learner, check_shape, fingerprint
from stillhash.collection.validation import JSON_ENCODER, check_ids, check_label_lists
from stillhash.errors import BadState
from stillhash.hashers import load
from stillhash.numeric.codes import width
from stillhash.numeric.validation import check_codes, check_features, check_integer

MAX_VOTE = 100.0  # with the weight of its position
MAX_TEXT = 10_000  # characters of a time, a kind, a tag or a source


class StateImporter:
    """Store records in one transaction, in the order of `export_state`: functions, learners, versions, others."""

    def __init__(self, store: Store, connection: Connection, header: Record) -> None:
        self._store, self._connection, self._header = store, connection, header
        self._dim, self._bits = store.settings["dim"], store.settings["bits"]
        self._learners: dict[int, list[str]] = {}
        self._queries: set[bytes] = set()
        for name in ("next_row", "version", "unlabelled"):
            set_meta(connection, name, header[name])
        check_counters(connection)

    def add(self, name: str, values: Record) -> None:
        """Store a record."""
        try:
            getattr(self, f"_add_{name}")(**values)
        except IntegrityError as error:
            raise BadState(f"{name}: expected each once: {error}") from error

    def finish(self) -> None:
        """Check what the records say of each other."""
        current = self._connection.execute("SELECT ifnull(max(version), 0) FROM versions").fetchone()[0]
        if current != self._header["version"]:
            raise BadState(f"version: expected {current}, the last of all, got {self._header['version']}")
        if self._header["fitted"] != (get_meta(self._connection, "fingerprint") is not None):
            raise BadState("functions: expected hash functions if and only if items have codes")
        if self._header["fitted"] and current not in self._store.versions.learners(self._connection):
            raise BadState(f"learner: expected one of version {current}, got none")
        list_alignments(self._connection)

    def _add_functions(self, data: bytes) -> None:
        set_meta(self._connection, "functions", data)
        set_meta(self._connection, "fingerprint", fingerprint(data))

    def _add_learner(self, version: int, data: bytes) -> None:
        check_integer(version, "learner", 1, MAX_VERSION)
        hasher = load(data)
        if hasher.name != self._store.settings["method"]:
            raise BadState(f"learner: expected the method {self._store.settings['method']}, got {hasher.name}")
        check_shape(hasher, self._dim, self._bits, "learner")
        check_learner(hasher, self._connection, str(version))
        self._learners[version] = self._store.learner_files.checkpoint(version, hasher)

    def _add_version(self, version: int, learner: int | None, notes: dict[str, Any], **values: Any) -> None:
        check_integer(version, "version", 1, MAX_VERSION)
        check_integer(values["rows"], "rows", 0, MAX_VERSION)
        check_texts("version", values["created"], values["kind"], values["side"], values["tag"] or "")
        if learner is not None and learner not in self._learners:
            raise BadState(f"learner: expected one before version {version}, got none of {learner}")
        files = None if learner is None else json.dumps(self._learners[learner])
        row = {"version": version, **values, "learner": files, "notes": JSON_ENCODER.encode(notes)}
        marks = ", ".join(f":{name}" for name in row)
        self._connection.execute(f"INSERT INTO versions ({', '.join(row)}) VALUES ({marks})", row)

    def _add_history(self, history: dict[str, Any]) -> None:
        save_history(self._connection, history)

    def _add_label_agreement(self, data: bytes) -> None:
        set_meta(self._connection, HISTOGRAMS_KEY, data)
        self._store.doubtful_labels.histograms(self._connection)

    def _add_alignment(self, encoder: str, data: bytes) -> None:
        check_texts("alignment", encoder)
        set_meta(self._connection, ALIGNMENT_PREFIX + encoder, data)

    def _add_pending(self, row: int, features: bytes, labels: list[Any], code: bytes | None, own_features: int) -> None:
        if (code is None) == self._header["fitted"] or own_features not in (0, 1):
            raise BadState(f"pending: expected a code if and only if there are hash functions, got {code!r:.100}")
        if code is None or self._store.summed_rows is None:
            self._check_vector(features)
        else:
            self._check_rescoring_code(features)
        values = check_row(row), features, check_label_text(labels), self._check_code(code)
        sql = "INSERT INTO pending (row, features, labels, code, own_features) VALUES (?, ?, ?, ?, ?)"
        self._connection.execute(sql, [*values, own_features])

    def _add_learnt_row(self, version: int, position: int, row: int, labels: list[Any]) -> None:
        if self._store.learnt_rows is None:
            raise BadState("learnt_row: expected none where features are not kept, got one")
        check_integer(version, "version", 1, self._header["version"])
        check_integer(position, "position", 0, MAX_VERSION)
        values = version, position, row if row == NO_ITEM else check_row(row), check_label_text(labels)
        sql = "INSERT INTO learnt_rows (version, position, row, labels) VALUES (?, ?, ?, ?)"
        self._connection.execute(sql, values)

    def _add_summed_row(self, row: int, labels: list[Any], learnt: int, version: int) -> None:
        self._summed_rows("summed_row")
        check_integer(version, "version", 1, self._header["version"])
        values = check_row(row), check_label_text(labels), check_integer(learnt, "learnt", 0, MAX_VERSION), version
        self._connection.execute("INSERT INTO summed_rows VALUES (?, ?, ?, ?)", values)

    def _add_removal(self, rescoring: bytes, code: bytes, labels: list[Any], learnt: int) -> None:
        self._summed_rows("removal")
        values = self._check_rescoring_code(rescoring), self._check_code(code), check_label_text(labels)
        sql = "INSERT INTO removals (rescoring, code, labels, learnt) VALUES (?, ?, ?, ?)"
        self._connection.execute(sql, [*values, check_integer(learnt, "learnt", 0, MAX_VERSION)])

    def _add_other_summed_rows(self, rows: int) -> None:
        self._summed_rows("other_summed_rows").add_others(self._connection, check_integer(rows, "rows", 1, MAX_VERSION))

    def _summed_rows(self, name: str) -> SummedRowTable:
        """Return the table of rows that the sums hold; BadState where sums are not over what is stored."""
        if self._store.summed_rows is None or not self._header["fitted"]:
            raise BadState(f"{name}: expected none where sums are not over what is stored, got one")
        return self._store.summed_rows

    def _add_doubtful_label(self, row: int, agreement: float, predicted: list[Any]) -> None:
        if not -1.01 <= agreement <= 1.01 or len(predicted) > MAX_DOUBTFUL:
            raise BadState(f"doubtful_label: expected an agreement from -1 to 1, got {agreement}")
        check_label_lists([sorted_labels(predicted)], 1)
        values = check_row(row), agreement, JSON_ENCODER.encode(predicted)
        self._connection.execute("INSERT INTO doubtful_labels VALUES (?, ?, ?)", values)

    def _add_voted_query(self, query: bytes) -> None:
        self._check_vector(query)
        self._queries.add(digest(query))
        values = digest(query), query
        self._connection.execute("INSERT INTO voted_queries (digest, query) VALUES (?, ?)", values)

    def _add_vote(self, **values: Any) -> None:
        check_integer(values["version"], "version", 0, self._header["version"])
        check_ids([values["item"]])
        check_texts("vote", values["source"])
        if values["digest"] not in self._queries:
            raise BadState("vote: expected its query before it, got none")
        if not math.isfinite(values["vote"]) or abs(values["vote"]) > MAX_VOTE:
            raise BadState(f"vote: expected a number from {-MAX_VOTE} to {MAX_VOTE}, got {values['vote']}")
        if values["position"] is not None:
            check_integer(values["position"], "position", 1, MAX_VERSION)
        if values["code"] or (values["vote"] and values["version"]):
            self._check_code(values["code"])
        values["labels"] = check_label_text(values["labels"])
        marks = ", ".join(f":{name}" for name in values)
        self._connection.execute(f"INSERT INTO votes ({', '.join(values)}) VALUES ({marks})", values)

    def _check_vector(self, data: bytes) -> bytes:
        if len(data) != 4 * self._dim:
            raise BadState(f"features: expected {self._dim} numbers of 4 bytes, got {len(data)} bytes")
        check_features(np.frombuffer(data, np.float32)[None], "features")
        return data

    def _check_rescoring_code(self, code: bytes) -> bytes:
        width = 0 if self._store.rescorer is None else self._store.rescorer.width
        if len(code) != width:
            raise BadState(f"rescoring code: expected {width} bytes, got {len(code)}")
        return code

    def _check_code(self, code: bytes | None) -> bytes | None:
        if code is not None:
            if len(code) != width(self._bits):
                raise BadState(f"code: expected {width(self._bits)} bytes, got {len(code)}")
            check_codes(np.frombuffer(code, np.uint8)[None], self._bits, "code")
        return code


def check_row(row: int) -> int:
    """Return the number of a row."""
    return check_integer(row, "row", 0, MAX_ROW_NUMBER)


def check_texts(name: str, *texts: str) -> None:
    """Raise BadState unless texts are short, and can be stored."""
    for text in texts:
        if len(text) > MAX_TEXT or not text.isprintable():
            raise BadState(f"{name}: expected printable texts of at most {MAX_TEXT} characters, got {text!r:.100}")


def check_label_text(labels: list[Any]) -> str:
    """Return the labels of an item as they are stored; they must be in that order."""
    return check_label_texts([labels])[0]


def check_label_texts(lists: list[Any]) -> list[str]:
    """Return the labels of items as they are stored; they must be in that order."""
    kinds = {type(name) for labels in lists if isinstance(labels, list) for name in labels}
    if check_label_lists(lists, len(lists)) != lists or not kinds <= {str, int, float}:
        raise BadState("labels: expected numbers in order, then texts in order, each once, got others")
    return list(map(JSON_ENCODER.encode, lists))


def sorted_labels(labels: list[Any]) -> list[Any]:
    """Return labels in the order in which they are stored."""
    return sorted(labels, key=lambda name: (isinstance(name, str), name))
