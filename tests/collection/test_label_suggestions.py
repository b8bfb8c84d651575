"""Suggested labels: only unlabelled items, the most useful first, without repeats, and the same for a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stillhash
from stillhash import Collection, LabelSuggestion
from stillhash.collection.learning import label_quality
from stillhash.collection.learning.label_quality import draw_rows, label_worth
from stillhash.errors import InvalidInput, WrongType
from tests.support.toys import toy

SUGGESTION_DIM, SUGGESTION_ROWS = 24, 900
Rows = tuple[np.ndarray, list[list[str]]]


@pytest.fixture(scope="module")
def rows() -> Rows:
    X, Y = toy(SUGGESTION_ROWS, SUGGESTION_DIM, 6, 0)
    return X, [[f"label {c}" for c in np.flatnonzero(y)] for y in Y]


def numbers(suggestions: list[LabelSuggestion]) -> list[int]:
    return [int(suggestion.id) for suggestion in suggestions]


def create(path: Path, X: np.ndarray, labels: list[list[str]] | None = None) -> Collection:
    collection = stillhash.open(path, SUGGESTION_DIM, 64, init_rows=300, learn_rows=20)
    collection.add(range(len(X)), X, labels)
    return collection


def test_suggests_only_unlabelled_items_without_repeats(tmp_path: Path, rows: Rows) -> None:
    X, labels = rows
    known = [labels[r] if r % 3 == 0 else [] for r in range(len(X))]
    with create(tmp_path / "c", X, known) as collection:
        ids = numbers(collection.suggest_labels(500, seed=0))
        assert len(ids) == len(set(ids)) == 500
        assert all(known[row] == [] and labels[row] for row in ids)


def test_suggests_the_labels_that_are_likely(tmp_path: Path, rows: Rows) -> None:
    X, labels = rows
    with create(tmp_path / "c", X, labels[:600] + [[]] * 300) as collection:
        suggestions = collection.suggest_labels(300, seed=0)
        right = [
            suggestion.labels[0][0] in labels[int(suggestion.id)] for suggestion in suggestions if suggestion.labels
        ]
        assert len(right) > 250 and np.mean(right) > 0.8
        for suggestion in suggestions:
            chances = [chance for _, chance in suggestion.labels]
            assert len(chances) <= 5 and chances == sorted(chances, reverse=True)
            assert all(0 < chance <= 1 for chance in chances)


def test_the_most_useful_come_first(tmp_path: Path, rows: Rows) -> None:
    with create(tmp_path / "c", rows[0]) as collection:
        usefulness = [suggestion.usefulness for suggestion in collection.suggest_labels(50, seed=0)]
        assert usefulness[0] == 1 and usefulness == sorted(usefulness, reverse=True)


def test_skipped_items_are_not_suggested(tmp_path: Path, rows: Rows) -> None:
    with create(tmp_path / "c", rows[0]) as collection:
        first = numbers(collection.suggest_labels(10, seed=0))
        again = numbers(collection.suggest_labels(10, skip=[*first, 10_000], seed=0))
        assert not set(first) & set(again)
        assert collection.suggest_labels(10, skip=range(len(rows[0]))) == []


def test_the_same_seed_suggests_the_same(tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_quality, "CANDIDATE_ROWS", 100)
    with create(tmp_path / "c", rows[0]) as collection:
        assert collection.suggest_labels(30, seed=5) == collection.suggest_labels(30, seed=5)
        assert collection.suggest_labels(30, seed=5) != collection.suggest_labels(30, seed=6)


def test_before_anything_is_learnt_items_stand_for_all(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    centres, groups = rng.normal(size=(4, SUGGESTION_DIM)), rng.integers(0, 4, 500)
    X = (3 * centres[groups] + rng.normal(size=(500, SUGGESTION_DIM))).astype(np.float32)
    with create(tmp_path / "c", X) as collection:
        suggestions = collection.suggest_labels(4)
        assert sorted(groups[numbers(suggestions)]) == [0, 1, 2, 3]
        assert all((suggestion.labels, suggestion.reason) == ([], "typical") for suggestion in suggestions)


def test_items_that_wait_for_hash_functions_are_suggested(tmp_path: Path, rows: Rows) -> None:
    X, labels = rows
    with create(tmp_path / "c", X[:100]) as collection:
        ids = numbers(collection.suggest_labels(10))
        assert len(set(ids)) == 10
        collection.relabel(ids, [labels[row] for row in ids])
        assert not set(numbers(collection.suggest_labels(90))) & set(ids)


def test_nothing_is_suggested_where_all_is_labelled(tmp_path: Path, rows: Rows) -> None:
    with create(tmp_path / "c", *rows) as collection:
        assert collection.suggest_labels() == []
    with stillhash.open(tmp_path / "empty", SUGGESTION_DIM) as collection:
        assert collection.suggest_labels() == []


def test_ready_codes(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 256, (400, 8), np.uint8)
    kinds = [["odd" if code[0] & 1 else "even"] for code in codes]
    with stillhash.open(tmp_path / "c", bits=64, codes_only=True, learn_rows=20) as collection:
        collection.add(range(400), codes)
        assert len(collection.suggest_labels(20)) == 20
        collection.relabel(range(200), kinds[:200])
        best = {int(suggestion.id): suggestion.labels[0][0] for suggestion in collection.suggest_labels(200)}
        assert len(best) == 200 and np.mean([kinds[row] == [label] for row, label in best.items()]) > 0.9


def test_a_method_that_predicts_no_labels_still_chooses(tmp_path: Path, rows: Rows) -> None:
    X, labels = rows
    with stillhash.open(tmp_path / "c", SUGGESTION_DIM, 64, init_rows=300, method="ohsl") as collection:
        collection.add(range(len(X)), X, labels[:600] + [[]] * 300)
        collection.flush()
        suggestions = collection.suggest_labels(20)
        assert len(suggestions) == 20 and all(suggestion.labels == [] for suggestion in suggestions)


def test_another_process_suggests_the_same(tmp_path: Path, rows: Rows) -> None:
    X, labels = rows
    written = create(tmp_path / "c", X, labels[:600] + [[]] * 300)
    with written as collection, stillhash.open(tmp_path / "c", read_only=True) as reader:
        assert reader.suggest_labels(20, seed=1) == collection.suggest_labels(20, seed=1)


@pytest.mark.parametrize("count", [0, 1001, 2.5, "3"])
def test_counts_are_validated(tmp_path: Path, count: object) -> None:
    with stillhash.open(tmp_path / "c", SUGGESTION_DIM) as collection, pytest.raises((InvalidInput, WrongType)):
        collection.suggest_labels(count)  # type: ignore[arg-type]


def test_seeds_and_skipped_ids_are_validated(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "c", SUGGESTION_DIM) as collection:
        with pytest.raises(InvalidInput, match="seed"):
            collection.suggest_labels(seed=-1)
        with pytest.raises((InvalidInput, WrongType), match="ids"):
            collection.suggest_labels(skip=[2.5])  # type: ignore[list-item]


def test_a_bounded_sample_is_drawn_of_any_bitmap() -> None:
    rng = np.random.default_rng(0)
    allowed = rng.random(5000) < 0.1
    bitmap = np.packbits(allowed, bitorder="little")
    drawn = draw_rows(bitmap, 100, rng)
    assert len(drawn) == 100 and (np.diff(drawn) > 0).all() and allowed[drawn].all()
    assert draw_rows(bitmap, 5000, rng).tolist() == np.flatnonzero(allowed).tolist()


def test_labels_that_few_items_have_are_worth_more() -> None:
    chances = np.array([[0.9, 0, 0], [0, 0.9, 0], [0.45, 0.45, 0], [0, 0, 0.05]], np.float32)
    common, rare, both, unlikely = label_worth(chances, np.array([99, 0, 0], np.float32)).tolist()
    assert rare > both > common > 0 and unlikely > 0
    assert label_worth(np.zeros((3, 0), np.float32), np.zeros(0, np.float32)).tolist() == [1, 1, 1]


def test_after_a_rollback_labels_are_those_of_its_model(tmp_path: Path, rows: Rows) -> None:
    X, labels = rows
    with create(tmp_path / "c", X) as collection:
        collection.relabel(range(100), [["first"] if r % 2 else ["second"] for r in range(100)])
        version = collection.flush()
        collection.relabel(range(100, 300), labels[100:300])
        collection.rollback(version)
        known = {label for suggestion in collection.suggest_labels(50, seed=0) for label, _ in suggestion.labels}
        assert known == {"first", "second"}
