"""Learner files: rows learnt again give the same state, and the whole state is written when rows outgrow it."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest

from stillhash.collection.storage import learner
from stillhash.collection.storage.learner import LearnerFiles, LearntRows, TakenOut
from stillhash.collection.validation import LabelledRows, check_rows
from stillhash.errors import BadState
from stillhash.hashers import FIXED_CODE_METHODS, METHODS, Hasher, Tally
from tests.collection.fixtures import BITS, DIM
from tests.support.toys import toy

STEP_ROWS = 8


def rows_of(seed: int, count: int = 20) -> LabelledRows:
    X, Y = toy(count, DIM, 4, seed=seed)
    return check_rows(X, Y, DIM)


def fitted(method: str = "tally") -> Hasher:
    sample = rows_of(99, 300)
    return METHODS[method](bits=BITS).fit(sample.features, sample.labels)


def learnt_rows(hasher: Hasher, rows: LabelledRows) -> LearntRows:
    return LearntRows(rows, hasher.encode_checked(rows.features, rows.labels), STEP_ROWS, 3, TakenOut.nothing())


def stored_rows(hasher: Tally, seed: int, taken_out: TakenOut) -> LearntRows:
    """Return rows that are learnt by their rescoring codes, after others are taken out."""
    learnt = learnt_rows(hasher, rows_of(seed))
    assert hasher.rescorer_ is not None
    rescoring_codes = hasher.rescorer_.encode(hasher.prepare(learnt.rows.features))
    return learnt._replace(rows=learnt.rows._replace(features=rescoring_codes), taken_out=taken_out)


@pytest.mark.parametrize("method", FIXED_CODE_METHODS)
def test_loading_learns_the_rows_again_to_the_byte(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner, "MAX_ROWS_SHARE", 1000)
    store, hasher = LearnerFiles(tmp_path), fitted(method)
    files = store.checkpoint(1, hasher)
    for version in range(2, 6):
        rows = rows_of(version)
        learnt = learnt_rows(hasher, rows)
        learnt.learn(hasher)
        files = store.extend(files, version, learnt, hasher)
    assert files == ["00000001.safetensors", *(f"{version:08d}.rows" for version in range(2, 6))]
    assert store.load(files).state() == hasher.state()
    assert store.load(files[:1]).state() != hasher.state() or method in ("lsh", "pca-itq")


@pytest.mark.parametrize("half_life", [None, 50])
def test_what_was_taken_out_is_taken_out_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half_life: float | None
) -> None:
    monkeypatch.setattr(learner, "MAX_ROWS_SHARE", 1000)
    sample, store = rows_of(99, 300), LearnerFiles(tmp_path)
    hasher = Tally(bits=BITS, rescore_bits=2, half_life=half_life).fit(sample.features, sample.labels)
    files, taken_out = store.checkpoint(1, hasher), TakenOut.nothing()
    for version in range(2, 6):
        learnt = stored_rows(hasher, version, taken_out)
        learnt.learn(hasher)
        files = store.extend(files, version, learnt, hasher)
        chosen, ages = np.array([3, 1, 17]), np.array([16, 18, 2])
        texts = [learnt.rows.label_texts[row] for row in chosen]
        taken_out = TakenOut(learnt.rows.features[chosen], learnt.codes[chosen], texts, ages)
    assert [file.endswith(".rows") for file in files] == [False, True, True, True, True]
    assert store.load(files).state() == hasher.state()
    kept = 20 + 3 * 17  # of four chunks, three of which have lost three rows
    assert half_life is not None or hasher.stats_.rows == kept
    one_less = taken_out._replace(label_texts=taken_out.label_texts[1:])
    damaged = store.extend(files, 6, stored_rows(hasher, 6, one_less), hasher)
    with pytest.raises(BadState, match=r"00000006\.rows"):
        store.load(damaged)


@pytest.mark.parametrize("half_life", [None, 50])
def test_rows_that_come_back_are_learnt_as_if_they_were_others(half_life: float | None) -> None:
    """Also where several rows have the same codes; with a half-life the sums are rounded, and all is done in order."""
    hasher = Tally(bits=BITS, rescore_bits=2, half_life=half_life).fit(rows_of(99, 300).features)
    first = stored_rows(hasher, 1, TakenOut.nothing())
    twice = np.array([*range(20), 0, 1, 2])
    codes, rescoring = first.codes[twice], first.rows.features[twice]
    texts = [first.rows.label_texts[row] for row in twice]
    before = first._replace(rows=LabelledRows.from_texts(rescoring, texts), codes=codes)
    chosen, back = np.array([3, 0, 20, 7, 5]), np.array([20, 3, 0, 9])
    out = TakenOut(rescoring[chosen], codes[chosen], [texts[row] for row in chosen], np.arange(5))
    rows = LabelledRows.from_texts(rescoring[back], ['["new"]', '["a"]', texts[1], '["new", "newer"]'])
    both, learnt = before._replace(rows=rows, codes=codes[back], taken_out=out), []
    for paired in (True, False):
        learner_ = hasher.without_rows()
        before.learn(learner_)
        if paired:
            left, _, _ = both.take_out(copy.deepcopy(learner_))
            assert len(left.label_texts) == (1 if half_life is None else 4)
            both.learn(learner_)
        else:
            learner_.count_unlabelled(both.unlabelled)
            out.unlearn(learner_)
            learner_.learn_stored(rows.features, rows.labels, codes[back])
        learnt.append(learner_.state())
    assert half_life is not None or learnt[0] == learnt[1]


def test_whole_state_is_written_when_rows_outgrow_it_or_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, hasher = LearnerFiles(tmp_path), fitted()
    files = store.checkpoint(1, hasher)
    large = rows_of(2, 4 * (tmp_path / files[0]).stat().st_size // (4 * DIM) + 1)
    assert store.extend(files, 2, learnt_rows(hasher, large), hasher) == ["00000002.safetensors"]
    monkeypatch.setattr(learner, "MAX_ROW_FILES", 2)
    for version, count in ((2, 2), (3, 3), (4, 1)):
        files = store.extend(files, version, learnt_rows(hasher, rows_of(version, 1)), hasher)
        assert len(files) == count


def test_lost_file_is_replaced_by_the_whole_state(tmp_path: Path) -> None:
    store, hasher = LearnerFiles(tmp_path), fitted()
    files = store.extend(store.checkpoint(1, hasher), 2, learnt_rows(hasher, rows_of(2, 1)), hasher)
    (tmp_path / files[0]).unlink()
    assert store.extend(files, 3, learnt_rows(hasher, rows_of(3, 1)), hasher) == ["00000003.safetensors"]
