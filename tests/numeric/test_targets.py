from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from stillhash.numeric.labels import parse_labels
from stillhash.numeric.targets import Merge, TargetCodes, gaussian_integers


def test_the_same_label_set_has_one_code_in_any_order_and_arrival() -> None:
    first, other = TargetCodes(96, seed=3), TargetCodes(96, seed=3)
    other(parse_labels([["z"], ["b", "q"]], 2))
    a = first(parse_labels([["a", "b", "c"]], 1))
    b = other(parse_labels([["c", "a", "b"]], 1))
    np.testing.assert_array_equal(a, b)
    assert (TargetCodes(96, seed=4)(parse_labels([["a", "b", "c"]], 1)) != a).any()


def test_another_process_draws_the_same_codes() -> None:
    script = (
        "from stillhash.numeric.targets import *; from stillhash.numeric.labels import parse_labels;"
        "print(TargetCodes(16, seed=5)(parse_labels([['cat', 7]], 1)).tolist())"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert eval(out) == TargetCodes(16, seed=5)(parse_labels([["cat", 7]], 1)).tolist()


def test_draws_are_pinned_for_ever() -> None:
    """A model saved by any release must find the same rows again."""
    assert gaussian_integers(4, 0, b"str:cat").tolist() == [-44701, -47823, 46909, -72375]


def test_codes_are_signs_without_zeros_and_balanced() -> None:
    G = TargetCodes(3000, seed=1)(parse_labels([[i] for i in range(40)], 40))
    assert set(np.unique(G)) == {-1, 1} and G.dtype == np.int8
    assert abs(G.mean()) < 0.01
    agreement = (G[:, None].astype(int) * G[None]).mean(axis=2)[np.triu_indices(40, 1)]
    assert np.abs(agreement).max() < 5 / np.sqrt(3000)


@pytest.mark.parametrize(("A", "B"), [((1, 2), (2, 3)), ((1,), (1, 2)), ((1, 2, 3), (1, 2, 4)), ((1,), (2,))])
def test_agreement_follows_the_arcsine_law(A: tuple[int, ...], B: tuple[int, ...]) -> None:
    g, h = TargetCodes(60_000, seed=2)(parse_labels([list(A), list(B)], 2)).astype(int)
    expected = 2 / np.pi * np.arcsin(len(set(A) & set(B)) / np.sqrt(len(A) * len(B)))
    assert (g * h).mean() == pytest.approx(expected, abs=0.015)


def test_hmoh_gives_orthogonal_rows_where_no_reduction_is_needed() -> None:
    targets = TargetCodes(32, merge="hmoh", seed=0)
    G = targets(parse_labels([[i] for i in range(10)], 10)).astype(int)
    np.testing.assert_array_equal(G @ G.T, 32 * np.eye(10))


def test_hmoh_fills_zeros_towards_balance() -> None:
    targets = TargetCodes(32, merge="hmoh", seed=0)
    targets(parse_labels([list(range(8))], 1))  # so that no label owns the row of ones
    pairs = [[a, b] for a in range(1, 8) for b in range(a + 1, 8)]
    G = targets(parse_labels(pairs, len(pairs))).astype(int)
    assert (G.sum(axis=1) == 0).all()
    assert len({g.tobytes() for g in G}) == len(pairs)  # the published script gave all of them one code
    again = targets(parse_labels(pairs, len(pairs))).astype(int)
    assert (again != G).any()  # zeros are random for each row of data


@pytest.mark.parametrize("merge", ["sum_lsh", "hmoh"])
def test_chunking_does_not_matter_and_state_continues(merge: Merge) -> None:
    rng = np.random.default_rng(0)
    sets = [rng.choice(50, rng.integers(1, 5), replace=False).tolist() for _ in range(60)]
    whole = TargetCodes(48, merge=merge, seed=1)(parse_labels(sets, 60))
    part = TargetCodes(48, merge=merge, seed=1)
    first = [part(parse_labels(sets[s : s + 7], 7)) for s in range(0, 28, 7)]
    resumed = TargetCodes(48, merge=merge, seed=1)
    resumed.load(part.state())
    np.testing.assert_array_equal(np.concatenate([*first, resumed(parse_labels(sets[28:], 32))]), whole)


def test_hmoh_places_follow_arrival_whatever_the_shape_of_the_labels() -> None:
    rows = [{"d", "c"}, {"a", "d"}, {"b"}]
    places = []
    for cut in (1, 3):
        targets = TargetCodes(16, merge="hmoh")
        for s in range(0, 3, cut):
            targets(parse_labels(rows[s : s + cut], cut))
        places.append(list(targets.names))
    assert places[0] == places[1] == ["c", "d", "a", "b"]
    columns = TargetCodes(16, merge="hmoh")
    columns(parse_labels(np.array([[0, 0, 1, 1], [1, 0, 0, 1], [0, 1, 0, 0]]), 3))
    assert list(columns.names) == [2, 3, 0, 1]


def test_nested_labels_come_back_from_json() -> None:
    targets = TargetCodes(16, merge="hmoh")
    targets(parse_labels([[("a", ("b", 1))]], 1))
    again = TargetCodes(16, merge="hmoh")
    again.load(json.loads(json.dumps(targets.state())))
    assert again.names == targets.names


def test_more_labels_than_hadamard_rows() -> None:
    G = TargetCodes(16, merge="hmoh", seed=0)(parse_labels([[i] for i in range(40)], 40))
    assert len({g.tobytes() for g in G}) == 40
