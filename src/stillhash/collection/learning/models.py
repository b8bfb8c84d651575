"""Read the hash functions and models of a store, and check that they fit its settings: a store may come from anyone.

What was learnt by sums over what is stored is checked too: `check_sums` computes them again from the stored items.
"""

import hashlib
import json
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from sqlite3 import Connection
from typing import Any, get_args

import numpy as np
import safetensors
import safetensors.numpy

from stillhash.collection.learning.prequential import load_history
from stillhash.collection.search_view import ModelStore
from stillhash.collection.settings import parse_settings
from stillhash.collection.storage.learner import CHECKPOINT_SUFFIX, MAX_VERSION, ROWS_AT_ONCE, SummedCodes, in_parts
from stillhash.collection.storage.schema import RowNumbers, get_meta, has_table, parse_json, sums_stored_rows
from stillhash.collection.storage.store import Store
from stillhash.errors import BadState, StillhashError
from stillhash.hashers import Hasher, LinearHasher, Model, Tally
from stillhash.hashers.base import Side
from stillhash.numeric.labels import from_json, parse_labels
from stillhash.numeric.validation import check_arrays, check_integer

MODEL_ARRAYS = ("M", "m", "U", "u", "N", "V", "v", "label_weights")
MODEL_NUMBERS = (
    "power",
    "balance",
    "query_length",
    "query_power",
    "item_power",
    "label_bits",
    "plain_share",
    "held_share",
)
MODEL_SIDES = get_args(Side)
STORED_SIMILARITY = "looks"  # is what stores call the side "similarity"
MAX_POWER = 1000.0
LABEL_NAMES_KEY = "label_names"  # is in the metadata of a stored model; earlier releases do not read it


def load_functions(connection: Connection) -> LinearHasher | None:
    """Return the fixed hash functions; None before they are fitted. BadState if they are not of this collection."""
    state = get_meta(connection, "functions")
    if state is None:
        return None
    if not isinstance(state, bytes) or fingerprint(state) != get_meta(connection, "fingerprint"):
        raise BadState("functions: the hash functions are not those that encoded the items: their fingerprint differs")
    settings = parse_settings(get_meta(connection, "settings"))
    functions = LinearHasher.load(state)
    check_shape(functions, settings["dim"], settings["bits"], "functions")
    if functions.label_bits_ > functions.bits:
        raise BadState(f"functions: expected at most {functions.bits} bits of labels, got {functions.label_bits_}")
    return functions


def check_shape(hasher: Hasher, dim: int, bits: int, name: str) -> None:
    """Raise BadState unless a hasher takes features of the collection and has codes of its length."""
    if (hasher.n_features_in_, hasher.bits) != (dim, bits):
        shape = f"{hasher.n_features_in_} features and {hasher.bits} bits"
        raise BadState(f"{name}: expected hash functions of {dim} features and {bits} bits, got {shape}")


def check_learner(hasher: Hasher, connection: Connection, file: str) -> None:
    """Raise BadState unless a learner has the hash functions of the items."""
    if fingerprint(hasher.functions().state()) != get_meta(connection, "fingerprint"):
        raise BadState(f"learner/{file}: its hash functions have another fingerprint than those of the items")
    settings = parse_settings(get_meta(connection, "settings"))
    if sums_stored_rows(settings) and hasher.rescore_bits != settings["rescore_bits"]:
        raise BadState(f"learner/{file}: expected sums over rescoring codes of {settings['rescore_bits']} bits")


def load_model(store: ModelStore, connection: Connection, version: Any) -> Model:
    """Return the model of a version; 0 is before anything was learnt: the query, not quantised, against the codes.

    Codes that came ready are not of a query that was quantised: their 0 is by Hamming distance.
    """
    if version == "hamming":
        return Model("hamming")
    version = check_integer(version, "version", 0, MAX_VERSION)
    if version == 0:
        return Model("hamming" if store.settings["codes_only"] else "similarity")
    side, data = store.versions.model(connection, version)
    side = "similarity" if side == STORED_SIMILARITY else side
    try:
        if side not in MODEL_SIDES:
            raise BadState(f"side: expected one of {', '.join(MODEL_SIDES)}, got {side!r:.100}")
        if data is None:
            return Model(side)  # type: ignore[arg-type]
        arrays = safetensors.numpy.load(data)
        values = {name: float(arrays.pop(name)[0]) for name in MODEL_NUMBERS if name in arrays or name == "power"}
        values["label_bits"] = int(values.get("label_bits", 0))
        model = Model(side, **values, **arrays, label_names=_label_names(data))  # type: ignore[arg-type]
        check_model(model, store.settings["dim"], store.settings["bits"])
    except (safetensors.SafetensorError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise BadState(f"version {version}: its model cannot be read: {error}") from error
    return model


def _label_names(data: bytes) -> list[Hashable] | None:
    """Return the names of the labels of a stored model; None of one that an earlier release has stored."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    text = header.get("__metadata__", {}).get(LABEL_NAMES_KEY)
    return None if text is None else [from_json(name) for name in parse_json(text, list, LABEL_NAMES_KEY)]


def check_model(model: Model, dim: int, bits: int) -> None:
    """Raise BadState unless the arrays of a model fit each other, the features and the codes, and are finite."""
    if (model.U is None) != (model.u is None) or (model.V is None) != (model.v is None):
        raise BadState("model: expected weights of labels with their offsets, got one of both")
    if (model.U is None and model.V is not None) or (model.side == "code" and model.U is not None):
        raise BadState(f"model: expected no labels on the side {model.side}, got some")
    if model.side in ("features", "code", "labels") and not model.learnt:
        raise BadState(f"model: expected what is learnt of the side {model.side}, got nothing")
    side = "b" if model.side == "code" else "D" if model.U is None else "l"
    axes = {"U": "D l", "u": "l", "M": f"{side} b", "m": "b", "N": "D b", "V": "b l", "v": "l", "label_weights": "l"}
    arrays = {name: array for name in axes if (array := getattr(model, name)) is not None}
    check_arrays(arrays, {name: f"float32 {axes[name]}" for name in arrays}, {"D": dim, "b": bits})
    if model.label_names is not None and (model.u is None or len(model.label_names) != len(model.u)):
        raise BadState(f"model: expected a name for each label, got {len(model.label_names)} names")
    powers = model.power, model.query_power, model.item_power
    if not all(0 <= power <= MAX_POWER for power in powers):
        raise BadState(f"model: expected powers from 0 to {MAX_POWER}, got {powers}")
    if not (0 <= model.plain_share <= 1 and 0 <= model.held_share <= 1):
        raise BadState(f"model: expected shares of rows, got {model.plain_share} and {model.held_share}")
    if not 0 <= model.query_length < np.inf:
        raise BadState(f"model: expected a finite length of predicted labels, got {model.query_length}")
    if not 0 <= (0 if model.balance is None else model.balance) <= 1 or not 0 <= model.label_bits <= bits:
        raise BadState(f"model: expected a balance and bits of labels, got {model.balance} and {model.label_bits}")


def stored_side(model: Model) -> str:
    """Return the side of a model as it is stored."""
    return STORED_SIMILARITY if model.side == "similarity" else model.side


def model_bytes(model: Model) -> bytes | None:
    """Return a model as it is stored; None if nothing is learnt."""
    if not model.learnt:
        return None
    present = {name: part for name, part in model._asdict().items() if part is not None}
    arrays = {name: np.ascontiguousarray(present[name]) for name in MODEL_ARRAYS if name in present}
    numbers = {name: np.array([present[name]], np.float64) for name in MODEL_NUMBERS if name in present}
    names = None if model.label_names is None else {LABEL_NAMES_KEY: json.dumps(model.label_names)}
    return safetensors.numpy.save(arrays | numbers, names)


def fingerprint(functions: bytes) -> str:
    """Return what tells saved hash functions from others."""
    return hashlib.sha256(functions).hexdigest()


def verify_models(store: Store) -> list[str]:
    """Check the hash functions, the models of all versions, and what learning goes on from; return the problems."""
    with store.reading() as connection:
        current = get_meta(connection, "version")
        versions = [current, *(row["version"] for row in store.versions.describe(connection))]
        checks: list[Callable[[], object]] = [partial(load_functions, connection), partial(load_history, connection)]
        checks += [partial(load_model, store, connection, version) for version in dict.fromkeys(versions)]
        files = store.versions.learners(connection).get(current)
        if files:
            checks.append(partial(_check_files, store, connection, files))
            if store.summed_rows is not None and has_table(connection, "summed_rows"):
                checks.append(partial(check_sums, store, connection, files))
        return [problem for check in checks if (problem := _problem(check))]


def _check_files(store: Store, connection: Connection, files: list[str]) -> None:
    """Read all that a learner goes on from, without learning it."""
    hasher = store.learner_files.read_state(files[0])
    check_learner(hasher, connection, files[0])
    for file in files[1:]:
        if file.endswith(CHECKPOINT_SUFFIX):
            check_learner(store.learner_files.read_state(file), connection, file)
        else:
            store.learner_files.read_rows(file, hasher)


def _problem(check: Callable[[], object]) -> str | None:
    try:
        check()
    except StillhashError as error:
        return str(error)
    return None


def sum_again(
    store: Store, connection: Connection, hasher: Tally, given: Tally | None = None
) -> tuple[Tally, RowNumbers]:
    """Return a learner with the same hash functions that has learnt what the sums should hold.

    given: what has learnt the rows that are no items; None: there are none. Rows whose codes are lost are left out;
    their numbers are returned too.
    """
    again, lost = sum_stored(store, connection, hasher)
    if given is not None:
        again.merge(given)
    again.stats_.unlabelled = hasher.stats_.unlabelled  # rows without labels are counted, not summed
    return again, lost


def sum_stored(store: Store, connection: Connection, hasher: Tally) -> tuple[Tally, RowNumbers]:
    """Do as `sum_again` with none given, and count no rows without labels but those whose labels are not believed.

    With a half-life, rows have decayed by the rows that were learnt after them.
    """
    assert store.summed_rows is not None
    again, lost, learnt = hasher.without_rows(), [np.empty(0, np.int64)], load_history(connection)["rows"]
    for rows, without_codes in _held_rows(store, connection):
        _learn(again, rows, learnt)
        lost.append(without_codes)
    _learn(again, store.summed_rows.removals(connection), learnt)
    return again, np.concatenate(lost)


def _held_rows(store: Store, connection: Connection) -> Iterator[tuple[SummedCodes, RowNumbers]]:
    """Yield the rows of items that the sums hold, some at a time, and those whose codes are lost."""
    summed, rescoring = store.summed_rows, store.rescoring
    assert summed is not None and rescoring is not None
    after = -1
    while len((held := summed.all_held(connection, after, ROWS_AT_ONCE)).numbers):
        after = int(held.numbers[-1])
        codes, coded = store.codes.codes_of(connection, held.numbers)
        rescoring_codes, known = rescoring.read(connection, held.numbers)
        known &= coded
        _, texts, learnt = held.select(known)
        yield SummedCodes(rescoring_codes[known], codes[known], texts, learnt), held.numbers[~known]


def _learn(hasher: Tally, rows: SummedCodes, learnt: int) -> None:
    """Learn rows, where so many are learnt in all."""
    labels = parse_labels([json.loads(text) for text in rows.label_texts], len(rows.codes))
    ages = np.maximum(learnt - np.array(rows.learnt, np.int64), 0)
    hasher.learn_stored(rows.rescoring_codes, labels, rows.codes, ages=None if hasher.half_life is None else ages)


def check_sums(store: Store, connection: Connection, files: list[str]) -> None:
    """Compare what was learnt with what is stored; BadState if it differs.

    Each item was learnt with the labels that it has now, or they are about to be learnt, or are not to be. And the sums
    are those computed again, to the bit. With a half-life they are rounded, and stores of earlier releases may not have
    what `learn` got: then the sums are not compared.
    """
    assert store.summed_rows is not None
    hasher = store.learner_files.load(files)
    if not isinstance(hasher, Tally):
        raise BadState(f"learner/{files[0]}: expected the method {Tally.name}, got {hasher.name}")
    if len(rows := disagreeing_rows(store, connection)):
        raise BadState(f"learner: expected sums over the labels that items have, got others of row {rows[0]}")
    given = store.learner_files.given(files, hasher)
    if hasher.half_life is not None or (given is None and store.summed_rows.count_others(connection)):
        return
    again, lost = sum_again(store, connection, hasher, given)
    if len(lost):
        raise BadState(f"learner: expected the codes of all rows that were learnt, got none of row {lost[0]}")
    if not again.stats_.same(hasher.stats_):
        raise BadState(f"learner/{files[0]}: expected the sums of what is stored, got others")


def disagreeing_rows(store: Store, connection: Connection) -> RowNumbers:
    """Return the rows that were learnt with other labels than theirs, of those whose codes are known."""
    assert store.summed_rows is not None and store.rescoring is not None
    rows = store.summed_rows.disagreeing(connection)
    known = [
        store.rescoring.read(connection, some)[1] & store.codes.codes_of(connection, some)[1] for some in in_parts(rows)
    ]
    disagreeing: RowNumbers = rows[np.concatenate([np.zeros(0, bool), *known])]
    return disagreeing


def repair_sums(store: Store, actions: list[str], *, incomplete: bool) -> None:
    """Let the sums hold what is stored and nothing else, where something of that is lost.

    incomplete: rows of tables, or a learner, were lost. Models stay as they are, until the next one is published.
    """
    summed, rescoring = store.summed_rows, store.rescoring
    if summed is None or rescoring is None:
        return
    with store.reading() as connection:
        version, others = get_meta(connection, "version"), summed.count_others(connection)
        files = store.versions.learners(connection).get(version)
        if files is None:
            return
        hasher = store.learner_files.load(files)
        assert isinstance(hasher, Tally)
        given = None if incomplete else store.learner_files.given(files, hasher)
        again, lost = sum_again(store, connection, hasher, given)
        pending = store.items.pending_rows(connection)
        pending = pending[~rescoring.read(connection, pending)[1]]
        same = not len(lost) and not incomplete
        if hasher.half_life is None and (given is not None or not others):
            same = not len(lost) and again.stats_.same(hasher.stats_)
    if same and not len(pending):
        return
    with store.transaction() as connection:
        summed.drop(connection, lost.tolist())
        store.items.drop_pending(connection, pending.tolist())
        if others and given is None and not incomplete:
            summed.add_others(connection, len(lost))
            actions.append(f"learner: what was learnt of {len(lost)} rows stays, whose codes are lost")
        elif not same:
            gone = others if given is None else 0
            summed.add_others(connection, -gone)
            store.versions.set_learner(connection, version, store.learner_files.checkpoint(version, again, given))
            without = f", without {gone} rows that are no items" if gone else ""
            actions.append(f"learner: its sums were computed again from what is stored{without}")
