"""The sums of the learner, computed again from what is stored: to compare them, and to repair them."""

import json
from collections.abc import Iterator
from sqlite3 import Connection

import numpy as np

from stillhash.collection.learning.prequential import load_history
from stillhash.collection.storage.items import RowNumbers
from stillhash.collection.storage.learner import SummedCodes
from stillhash.collection.storage.schema import get_meta
from stillhash.collection.storage.store import Store
from stillhash.errors import BadState
from stillhash.hashers import Tally
from stillhash.numeric.labels import parse_labels

ROWS_AT_ONCE = 4096


def sum_again(store: Store, connection: Connection, hasher: Tally) -> tuple[Tally, RowNumbers]:
    """Return a learner with the same hash functions that has learnt what the sums should hold, and no other rows.

    Rows whose codes are lost are left out; their numbers are returned too. With a half-life, rows have decayed by the
    rows that were learnt after them.
    """
    assert store.summed_rows is not None
    again, lost, learnt = hasher.without_rows(), [np.empty(0, np.int64)], load_history(connection)["rows"]
    for rows, without_codes in _held_rows(store, connection):
        _learn(again, rows, learnt)
        lost.append(without_codes)
    _learn(again, store.summed_rows.removals(connection), learnt)
    again.stats_.unlabelled = hasher.stats_.unlabelled  # rows without labels are counted, not summed
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
    """Compare the sums of the learner with those computed again from what is stored, to the bit; BadState if others.

    Rows that `learn` got are in the sums and nowhere else, and with a half-life sums are rounded: then there is no
    comparison.
    """
    assert store.summed_rows is not None
    hasher = store.learner_files.load(files)
    if not isinstance(hasher, Tally):
        raise BadState(f"learner/{files[0]}: expected the method {Tally.name}, got {hasher.name}")
    if hasher.half_life is not None or store.summed_rows.count_others(connection):
        return
    again, lost = sum_again(store, connection, hasher)
    if len(lost):
        raise BadState(f"learner: expected the codes of all rows that were learnt, got none of row {lost[0]}")
    if not again.stats_.same(hasher.stats_):
        raise BadState(f"learner/{files[0]}: expected the sums of what is stored, got others")


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
        again, lost = sum_again(store, connection, hasher)
        pending = store.items.pending_rows(connection)
        pending = pending[~rescoring.read(connection, pending)[1]]
        same = not len(lost) and not incomplete
        if hasher.half_life is None and not others:
            same = not len(lost) and again.stats_.same(hasher.stats_)
    if same and not len(pending):
        return
    with store.transaction() as connection:
        summed.drop(connection, lost.tolist())
        store.items.drop_pending(connection, pending.tolist())
        if others and not incomplete:
            summed.add_others(connection, len(lost))
            actions.append(f"learner: what was learnt of {len(lost)} rows stays, whose codes are lost")
        elif not same:
            summed.add_others(connection, -others)
            store.versions.set_learner(connection, version, store.learner_files.checkpoint(version, again))
            without = f", without {others} rows that are no items" if others else ""
            actions.append(f"learner: its sums were computed again from what is stored{without}")
