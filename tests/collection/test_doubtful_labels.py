"""Items whose labels are implausible: judged before they are learnt, listed, forgotten when corrected."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import stillhash
from stillhash import Collection
from stillhash.collection.learning import label_quality
from stillhash.collection.learning.label_quality import estimate_wrong_labels, rising_ratios
from stillhash.collection.storage import items as storage
from stillhash.collection.storage.schema import set_meta
from stillhash.errors import BadState, InvalidInput, WrongType
from tests.support.toys import toy

DIM, ROWS = 24, 2000


class Noisy(NamedTuple):
    X: np.ndarray
    labels: list[list[str]]
    true: list[list[str]]
    wrong: np.ndarray  # which rows have labels that are not their own


def noisy_rows(share: float, rows: int = ROWS, seed: int = 0) -> Noisy:
    """Return rows of which this share has the labels of another row."""
    X, Y = toy(rows, DIM, 6, seed)
    rng = np.random.default_rng(seed)
    swapped = np.flatnonzero(rng.random(rows) < share)
    stored = Y.copy()
    stored[swapped] = Y[rng.permutation(swapped)]
    names = ([[f"label {c}" for c in np.flatnonzero(y)] for y in part] for part in (stored, Y))
    return Noisy(X, *names, (stored != Y).any(axis=1))


def create(path: Path, rows: Noisy, method: str = "tally", **options: Any) -> Collection:
    collection = stillhash.open(path, DIM, 32, init_rows=300, learn_rows=100, method=method, **options)
    collection.add(range(len(rows.X)), rows.X, rows.labels)
    return collection


def share_of(collection: Collection) -> float:
    share = collection.stats()["wrong_label_share"]
    assert isinstance(share, float)
    return share


@pytest.fixture(scope="module")
def rows() -> Noisy:
    return noisy_rows(0.2)


@pytest.fixture(scope="module")
def template(rows: Noisy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "c"
    create(path, rows).close()
    return path


@pytest.fixture
def collection(template: Path, tmp_path: Path) -> Collection:
    return stillhash.open(shutil.copytree(template, tmp_path / "c"))


def test_swapped_labels_come_first(collection: Collection, rows: Noisy) -> None:
    doubtful = collection.doubtful_labels(200)
    assert len(doubtful) == 200
    wrong = [bool(rows.wrong[item.id]) for item in doubtful]
    assert np.mean(wrong[:50]) >= 0.96 and np.mean(wrong) >= 0.85
    assert all(item.labels == rows.labels[int(item.id)] for item in doubtful)
    chances = [item.chance for item in doubtful]
    assert chances == sorted(chances, reverse=True) and all(0 <= chance <= 1 for chance in chances)
    assert np.mean(chances[:50]) > 0.6
    assert abs(share_of(collection) - rows.wrong.mean()) < 0.05


def test_the_labels_of_the_item_itself_are_predicted(collection: Collection, rows: Noisy) -> None:
    right = [rows.true[int(item.id)] for item in collection.doubtful_labels(50)]
    predicted = [item.predicted for item in collection.doubtful_labels(50)]
    assert all(1 <= len(labels) <= 3 for labels in predicted)
    assert np.mean([labels[0] in true for labels, true in zip(predicted, right, strict=True)]) > 0.9


def test_right_labels_are_not_doubted(tmp_path: Path) -> None:
    with create(tmp_path / "c", noisy_rows(0.0)) as collection:
        assert share_of(collection) < 0.02
        assert all(item.chance < 0.1 for item in collection.doubtful_labels(1000))


def test_few_wrong_labels_are_listed_too(tmp_path: Path) -> None:
    rows = noisy_rows(0.05, 3000)
    with create(tmp_path / "c", rows) as collection:
        assert np.mean([rows.wrong[item.id] for item in collection.doubtful_labels(50)]) >= 0.9
        assert abs(share_of(collection) - rows.wrong.mean()) < 0.025
        assert collection.doubtful_labels(1)[0].chance > 0.3


def test_chunks_and_pending_rows_are_judged_like_one_add(tmp_path: Path, rows: Noisy) -> None:
    with stillhash.open(tmp_path / "c", DIM, 32, init_rows=300, learn_rows=100) as collection:
        for start in range(0, ROWS, 70):  # so that rows wait for others
            part = slice(start, start + 70)
            collection.add(range(ROWS)[part], rows.X[part], rows.labels[part])
        doubtful = collection.doubtful_labels(50)
        assert np.mean([rows.wrong[item.id] for item in doubtful]) >= 0.96
        assert abs(share_of(collection) - rows.wrong.mean()) < 0.06


def test_nothing_can_be_judged_before_something_is_learnt(tmp_path: Path, rows: Noisy) -> None:
    with stillhash.open(tmp_path / "c", DIM, 32, init_rows=300, learn_rows=100) as collection:
        assert collection.doubtful_labels() == [] and collection.stats()["wrong_label_share"] is None
        collection.add(range(300), rows.X[:300], rows.labels[:300])  # the first step has no model, 200 rows are too few
        assert collection.doubtful_labels() == [] and collection.stats()["wrong_label_share"] is None
        collection.add(range(300, 500), rows.X[300:500], rows.labels[300:500])
        assert collection.doubtful_labels() != [] and share_of(collection) > 0


def test_methods_that_predict_no_labels_judge_none(tmp_path: Path, rows: Noisy) -> None:
    with create(tmp_path / "c", rows, "ohsl") as collection:
        assert collection.doubtful_labels() == [] and collection.stats()["wrong_label_share"] is None


def test_rows_without_labels_and_rows_that_are_no_items_are_not_listed(collection: Collection, rows: Noisy) -> None:
    before = collection.doubtful_labels(1000), share_of(collection)
    odd = noisy_rows(1.0, 300, seed=3)
    collection.learn(odd.X, odd.labels)
    collection.add([f"plain {r}" for r in range(300)], odd.X)
    assert (collection.doubtful_labels(1000), share_of(collection)) == before


def test_labels_that_are_new_cannot_be_judged(collection: Collection, rows: Noisy) -> None:
    before = share_of(collection)
    collection.add([f"new {r}" for r in range(100)], rows.X[:100], [["never seen"]] * 100)
    assert share_of(collection) == before
    assert not any(str(item.id).startswith("new") for item in collection.doubtful_labels(1000))


def test_deleted_and_replaced_items_leave_the_list(collection: Collection, rows: Noisy) -> None:
    first, second, third = (int(item.id) for item in collection.doubtful_labels(3))
    collection.delete([first])
    collection.upsert([second], rows.X[[second]], [rows.true[second]])
    collection.flush()
    left = [item.id for item in collection.doubtful_labels(1000)]
    assert left[0] == third and first not in left and second not in left
    assert collection.verify() == []


@pytest.mark.parametrize("rescore_bits", [0, 2])
def test_relabelled_items_leave_the_list(tmp_path: Path, rows: Noisy, rescore_bits: int) -> None:
    """They are not judged again: somebody has just looked at them."""
    collection = create(tmp_path / "c", rows, rescore_bits=rescore_bits)
    ids = [int(item.id) for item in collection.doubtful_labels(150)]
    share = share_of(collection)
    collection.relabel(ids[:30], [rows.true[r] for r in ids[:30]])  # they wait
    assert not set(ids[:30]) & {item.id for item in collection.doubtful_labels(1000)}
    collection.flush()
    collection.relabel(ids[30:], [rows.true[r] for r in ids[30:]])  # they are learnt at once
    assert not set(ids) & {item.id for item in collection.doubtful_labels(1000)}
    assert share_of(collection) == share
    collection.close()


@pytest.mark.medium
def test_first_labels_are_not_judged_by_a_model_of_few(tmp_path: Path, rows: Noisy) -> None:
    with stillhash.open(tmp_path / "c", DIM, 32, init_rows=300) as collection:
        collection.add(range(ROWS), rows.X)
        for start in range(0, 300, 10):
            collection.relabel(range(start, start + 10), rows.labels[start : start + 10])
        assert collection.stats()["version"] > 5 and collection.doubtful_labels() == []
        for start in range(300, ROWS, 100):
            collection.relabel(range(start, start + 100), rows.labels[start : start + 100])
        assert np.mean([rows.wrong[item.id] for item in collection.doubtful_labels(50)]) >= 0.9
        assert abs(share_of(collection) - rows.wrong.mean()) < 0.06


def test_items_relabelled_while_they_wait_are_judged_by_their_features(collection: Collection, rows: Noisy) -> None:
    collection.add(["a", "b"], rows.X[:2], [rows.true[0], rows.true[1]])
    opposite = [sorted({f"label {c}" for c in range(6)} - set(rows.true[0]))[:1]]
    collection.relabel(["a"], opposite)
    collection.flush()
    listed = {item.id: item.labels for item in collection.doubtful_labels(1000)}
    assert listed.get("a") == opposite[0] and "b" not in listed


def test_the_list_is_bounded_and_holds_the_worst(
    tmp_path: Path, rows: Noisy, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stillhash.open(template, read_only=True) as collection:
        expected = collection.doubtful_labels(20)
    monkeypatch.setattr(storage, "MAX_DOUBTFUL", 20)
    with create(tmp_path / "c", rows) as collection:
        assert collection.doubtful_labels(1000) == expected


@pytest.mark.parametrize(("count", "error"), [(0, InvalidInput), (1001, InvalidInput), ("5", WrongType)])
def test_invalid_counts_are_refused(collection: Collection, count: int, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^count: expected"):
        collection.doubtful_labels(count)


def reopened(collection: Collection, path: Path) -> Collection:
    collection.close()
    return stillhash.open(path / "c")


def copied(collection: Collection, path: Path) -> Collection:
    collection.snapshot(path / "copy")
    return stillhash.open(path / "copy", read_only=True)


def compacted(collection: Collection, path: Path) -> Collection:
    listed = {item.id for item in collection.doubtful_labels(1000)}
    collection.delete([row for row in range(ROWS) if row not in listed][:9])
    collection.compact()
    return collection


def rolled_back(collection: Collection, path: Path) -> Collection:
    collection.rollback(1)
    return collection


def repaired(collection: Collection, path: Path) -> Collection:
    collection.repair()
    return collection


@pytest.mark.parametrize("change", [reopened, copied, compacted, rolled_back, repaired])
def test_the_list_stays(
    collection: Collection, tmp_path: Path, change: Callable[[Collection, Path], Collection]
) -> None:
    expected = collection.doubtful_labels(1000), share_of(collection)
    changed = change(collection, tmp_path)
    assert (changed.doubtful_labels(1000), share_of(changed)) == expected
    assert changed.verify() == []


def test_a_write_that_fails_leaves_no_trace(
    collection: Collection, rows: Noisy, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = collection.doubtful_labels(1000), share_of(collection)
    with monkeypatch.context() as patched:
        patched.setattr(label_quality.LabelJudge, "observe", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            collection.add(range(ROWS, ROWS + 200), rows.X[:200], rows.labels[:200])
    assert (collection.doubtful_labels(1000), share_of(collection)) == expected


def test_verify_names_rows_without_an_item(collection: Collection, tmp_path: Path) -> None:
    with collection._store.transaction() as connection:
        connection.execute("INSERT INTO doubtful_labels VALUES (999999, -0.9, '[]')")
    assert collection.verify() == ["store.db: 1 rows of doubtful_labels have no item"]
    assert 999999 not in [item.id for item in collection.doubtful_labels()]


def test_damaged_histograms_are_an_error(collection: Collection) -> None:
    with collection._store.transaction() as connection:
        set_meta(connection, storage.HISTOGRAMS_KEY, b"short")
    with pytest.raises(BadState, match="label_agreement"):
        collection.doubtful_labels()


def test_histograms_forget_by_half_life(collection: Collection) -> None:
    table = collection._store.doubtful_labels
    with collection._store.transaction() as connection:
        before = table.histograms(connection)
        agreements = np.zeros(storage.HISTOGRAM_HALF_LIFE, np.float32)
        table.add_agreements(connection, agreements, agreements)
        after = table.histograms(connection)
    after[:, storage.HISTOGRAM_BINS // 2] -= len(agreements)
    np.testing.assert_allclose(after, before / 2, atol=0.01)


def test_the_estimate_of_known_histograms() -> None:
    bins = storage.HISTOGRAM_BINS
    random, right = np.zeros(bins), np.zeros(bins)
    random[: bins // 2], right[bins // 2 :] = 100.0, 100.0
    estimate = estimate_wrong_labels(np.stack([0.3 * random + 0.7 * right, random]))
    assert estimate is not None and estimate.share == pytest.approx(0.3)
    assert (estimate.chances[: bins // 2 - 20] > 0.9).all() and (np.diff(estimate.chances) <= 1e-12).all()
    assert estimate_wrong_labels(np.stack([0.01 * random, random])) is None  # too few rows


def test_rising_ratios_are_the_isotonic_regression() -> None:
    ratios, rows = rising_ratios(np.array([2.0, 1.0, 9.0, 8.0]), np.array([1.0, 1.0, 1.0, 1.0]))
    np.testing.assert_allclose(ratios, [1.5, 1.5, 8.5, 8.5])
    assert rows == 3
