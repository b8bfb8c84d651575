from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhash.numeric.labels import parse_labels
from stillhash.numeric.regression import regress
from stillhash.numeric.sufficient_stats import Similarity, SufficientStats, exact_precision, unit_labels

RNG = np.random.default_rng(0)
X = RNG.standard_normal((400, 12)).astype(np.float32)
B = np.where(RNG.standard_normal((400, 9)) + X[:, :9] >= 0, np.float32(1), np.float32(-1))
Y = (X[:, :5] + RNG.standard_normal((400, 5)) > 0.6).astype(np.uint8)
Y[Y.sum(axis=1) == 0, 4] = 1
LABELS = parse_labels(Y, 400)


def summed(*parts: slice | np.ndarray) -> SufficientStats:
    stats = SufficientStats(12, 9)
    for rows in parts:
        stats.add(X[rows], B[rows], parse_labels(Y[rows], len(X[rows])))
    return stats


def same(a: Similarity | None, b: Similarity | None, tolerance: float = 1e-5) -> None:
    assert a is not None and b is not None
    for one, other in zip(a[:2], b[:2], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * max(1.0, float(np.abs(b.M).max())))


def plain_ridge(Z: np.ndarray, T: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Slopes and intercept by least squares on the rows themselves."""
    centre, level = Z.mean(axis=0), T.mean(axis=0)
    shrinkage = ridge * (Z**2).sum(axis=1).mean()
    rows = np.concatenate([Z - centre, np.sqrt(shrinkage) * np.eye(Z.shape[1])])
    slopes = np.linalg.lstsq(rows, np.concatenate([T - level, np.zeros((Z.shape[1], T.shape[1]))]), rcond=None)[0]
    return slopes, level - centre @ slopes


def test_label_sets_are_unit_vectors() -> None:
    unit, names = unit_labels(parse_labels([["a", "b"], ["b"], []], 3))
    assert names == ["a", "b"]
    np.testing.assert_allclose(unit, [[np.sqrt(0.5), np.sqrt(0.5)], [0, 1], [0, 0]])


@pytest.mark.parametrize("ridge", [0.1, 10.0])
def test_the_similarity_is_two_regressions_on_the_rows(ridge: float) -> None:
    T = unit_labels(LABELS)[0].astype(np.float64)
    U, u = plain_ridge(X.astype(np.float64), T, ridge)
    V, _ = plain_ridge(B.astype(np.float64), T, ridge)
    same(summed(slice(None)).similarity(ridge), Similarity(U @ V.T, u @ V.T))


@pytest.mark.medium
@given(st.lists(st.integers(0, 400), max_size=6), st.randoms())
def test_order_and_chunks_do_not_matter(cuts: list[int], random: object) -> None:
    order = np.arange(400)
    random.shuffle(order)  # type: ignore[attr-defined]
    stats = summed(*(part for part in np.split(order, sorted(cuts)) if len(part)))
    whole = summed(slice(None))
    same(stats.similarity(10.0), whole.similarity(10.0))
    other = SufficientStats(12, 9)
    for part in np.array_split(order, 4):
        other.merge(summed(part))
    same(other.similarity(10.0), whole.similarity(10.0))


def test_label_weights_scale_what_sharing_a_label_counts() -> None:
    stats = summed(slice(None))
    T = unit_labels(LABELS)[0].astype(np.float64)
    weights = np.array([1.0, 0.0, 2.0, 0.5, 1.0])
    U, u = plain_ridge(X.astype(np.float64), T, 10.0)
    V, _ = plain_ridge(B.astype(np.float64), T, 10.0)
    same(stats.similarity(10.0, weights), Similarity((U * weights) @ V.T, (u * weights) @ V.T))


def test_the_deviation_is_that_of_all_scores() -> None:
    stats = summed(slice(None))
    similarity = stats.similarity(10.0)
    assert similarity is not None
    scores = (X @ similarity.M + similarity.m) @ B.T
    about = scores - scores.mean(axis=1, keepdims=True)  # a query's mean score moves no rank
    assert stats.deviation(similarity) == pytest.approx(np.sqrt((about**2).mean()), rel=1e-4)


def test_nothing_follows_from_nothing() -> None:
    assert SufficientStats(12, 9).similarity(10.0) is None
    stats = SufficientStats(12, 9)
    stats.add(X, B, parse_labels(["the same"] * 400, 400))
    assert stats.similarity(10.0) is None


def test_state_round_trips_to_the_byte() -> None:
    stats = summed(slice(None))
    again = SufficientStats.from_arrays(stats.arrays(), list(stats.names), 12, 9)
    for name in ("aa", "cc", "ay", "cy"):
        assert getattr(again, name).tobytes() == np.ascontiguousarray(getattr(stats, name)).tobytes()


def test_sides_multiply_to_the_similarity() -> None:
    stats, weights = summed(slice(None)), np.array([1.0, 2.0, 0.5, 0.0, 3.0])
    sides = stats.sides(3.0)
    assert sides is not None
    V = (sides.V * weights).T
    similarity = stats.similarity(3.0, weights)
    same(Similarity(sides.U @ V, sides.u @ V), similarity, 1e-4)
    assert similarity is not None and similarity.reliability == pytest.approx(sides.reliability)
    assert SufficientStats(12, 9).sides(1.0) is None


def noise_share(Z: np.ndarray, T: np.ndarray, ridge: float) -> float:
    """The share of noise in predictions by a regression, from the rows themselves and the whole hat matrix."""
    n, centred = len(Z), Z - Z.mean(axis=0)
    penalty = ridge * (Z**2).sum(axis=1).mean()
    H = centred @ np.linalg.inv(centred.T @ centred + penalty * np.eye(Z.shape[1])) @ centred.T
    predicted = H @ (T - T.mean(axis=0))
    free = n - np.trace(H) - 1
    variance = ((T - T.mean(axis=0) - predicted) ** 2).sum() / free
    return float(variance * np.trace(H @ H) / (predicted**2).sum() * (1 + 3 * np.sqrt(2 / free)))


@pytest.mark.parametrize("rows", [30, 100, 400])
def test_reliability_is_one_less_the_share_of_noise(rows: int) -> None:
    stats = summed(slice(rows))
    T = unit_labels(parse_labels(Y[:rows], rows))[0].astype(np.float64)
    for side, sums, mixed in ((X, stats.aa, stats.ay), (B, stats.cc, stats.cy)):
        expected = max(0.0, 1 - noise_share(side[:rows].astype(np.float64), T, 1.0))
        assert regress(sums, mixed, 1.0).reliability == pytest.approx(expected, abs=0.1)  # traces are estimated


def test_reliability_rises_with_evidence_and_is_none_for_random_labels() -> None:
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((2000, 12)).astype(np.float32)
    bits = np.where(Z[:, :9] > 0, 1, -1).astype(np.float32)

    def reliability(rows: int, labels: np.ndarray) -> float:
        stats = SufficientStats(12, 9)
        stats.add(Z[:rows], bits[:rows], parse_labels(labels[:rows], rows))
        sides = stats.sides(1.0)
        return 0.0 if sides is None else sides.reliability

    learnable = [reliability(rows, (Z[:, 0] > 0).astype(int)) for rows in (2, 20, 200, 2000)]
    assert learnable == sorted(learnable)
    assert learnable[0] < 0.2 and learnable[-1] > 0.95
    assert reliability(2000, rng.integers(0, 3, 2000)) < 0.3


def test_many_labels_are_judged_by_random_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = summed(slice(None))
    exact = stats.similarity(3.0)
    monkeypatch.setattr("stillhash.numeric.sufficient_stats.LABEL_PROBES", 4)
    probed = stats.similarity(3.0)
    same(exact, probed)
    assert exact is not None and probed is not None
    assert probed.reliability == pytest.approx(exact.reliability, abs=0.2)


# ---- exact sums over levels ----

SETS = [[f"label {c}" for c in np.flatnonzero(row)] for row in Y]
ONE_EACH = [[labels[0]] for labels in SETS]
WITH_LABELS = np.where(np.arange(9) < 5, np.random.default_rng(4).choice([-1, 1], (400, 9)), B).astype(np.float32)


def levels(largest: int) -> np.ndarray:
    return (2 * np.random.default_rng(largest).integers(0, largest + 1, (400, 12)) - largest).astype(np.float32)


def count(stats: SufficientStats, rows: np.ndarray, largest: int, sets: list[list[str]], sign: int = 1) -> None:
    labels = parse_labels([sets[row] for row in rows], len(rows))
    stats.add(levels(largest)[rows], WITH_LABELS[rows], labels, plain=B[rows], sign=sign)
    stats.unlabelled += sign * len(rows)


@pytest.mark.medium
@given(
    st.sampled_from([1, 3, 15, 255]),
    st.sampled_from([SETS, ONE_EACH]),
    st.lists(st.integers(0, 400), max_size=5),
    st.lists(st.integers(0, 200), max_size=5),
    st.sampled_from([7, 64, 1000]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_rows_come_and_go_in_any_order_to_the_bit(
    largest: int,
    sets: list[list[str]],
    added: list[int],
    removed: list[int],
    chunk: int,
    dropped: bool,
    random: object,
) -> None:
    order, gone = np.arange(400), np.arange(200)  # the first half of the rows is taken out again
    random.shuffle(order)  # type: ignore[attr-defined]
    random.shuffle(gone)  # type: ignore[attr-defined]
    halves = [SufficientStats(12, 9, largest_level=largest) for _ in range(2)]
    for stats in halves:
        stats.chunk_rows = chunk
    for place, part in enumerate(np.split(order, sorted(added))):
        count(halves[place % 2], part, largest, sets)
    for part in np.split(gone, sorted(removed)):
        count(halves[0], part, largest, sets, sign=-1)
    halves[0].merge(halves[1])
    if dropped:
        halves[0].drop_labels(2.0**-11)
    whole = SufficientStats(12, 9, largest_level=largest)
    count(whole, np.arange(200, 400), largest, sets)
    assert halves[0].same(whole) and whole.same(halves[0])
    for stats in (halves[0], whole):
        stats.drop_labels(2.0**-11)
        stats.sort_labels()
    assert halves[0].names == whole.names
    for name in ("aa", "cc", "pp", "ay", "cy", "py"):
        assert getattr(halves[0], name).tobytes() == getattr(whole, name).tobytes()


@pytest.mark.parametrize("largest", [1, 3, 15, 255])
def test_sums_of_a_chunk_stay_exact_at_their_largest(largest: int) -> None:
    precision, rows = exact_precision(largest)
    rows = min(rows, 20_000)
    side = np.full((rows + 1, 3), largest, np.float32)
    stats = SufficientStats(3, 9, largest_level=largest)
    stats.add(side, np.ones((rows + 1, 9), np.float32), parse_labels([["a", "b", "c"]] * (rows + 1), rows + 1))
    assert precision == (np.float64 if largest == 255 else np.float32)
    assert stats.aa[1, 1] == (rows + 1) * largest**2 and stats.ay[0, 1] == (rows + 1) * largest * 591 / 1024


def test_same_compares_labels_by_name_and_to_the_bit() -> None:
    one, other = (SufficientStats(12, 9, largest_level=3) for _ in range(2))
    order = np.arange(400)
    count(one, order, 3, SETS)
    count(other, order[::-1], 3, SETS)
    assert list(one.names) != list(other.names) and one.same(other)
    other.ay[2, 3] += 2.0**-10
    assert not one.same(other)
    other.ay[2, 3] -= 2.0**-10
    other.unlabelled += 1
    assert not one.same(other)
    assert not one.same(SufficientStats(12, 9, largest_level=3))
    other.unlabelled -= 1
    count(other, order[:1], 3, [["another"]])
    assert not one.same(other)
    count(other, order[:1], 3, [["another"]], sign=-1)
    assert "another" in other.names and one.same(other)
