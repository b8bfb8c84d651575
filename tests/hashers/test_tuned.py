from __future__ import annotations

import numpy as np
import pytest

from stillhash import load
from stillhash.errors import InvalidInput
from stillhash.hashers import Hasher, Tally, Tuned
from stillhash.hashers.tuned import TUNABLE
from tests.support.toys import toy

X, Y = toy(3000)


def raced(method: str = "tally", race: int = 2000, rows: int = 2400) -> Tuned:
    hasher = Tuned(bits=16, method=method, race=race).fit(X[:300], Y[:300])
    for s in range(0, rows, 200):
        hasher.partial_fit(X[s : s + 200], Y[s : s + 200])
    return hasher


@pytest.mark.parametrize("method", TUNABLE)
def test_one_candidate_is_left_after_the_race_and_it_is_that_method(method: str) -> None:
    hasher = raced(method)
    (winner,) = hasher.candidates_
    assert type(winner) is TUNABLE[method]
    for name, value in hasher.chosen_.items():
        assert value in TUNABLE[method].tunable[name]
    assert len(hasher.recent_) == 0  # nothing is stored once the race is over


def test_the_winner_has_learnt_all_that_the_plain_method_learns() -> None:
    hasher = raced()
    plain = Tally(bits=16, **hasher.chosen_).fit(X[:300], Y[:300]).partial_fit(X[:2400], Y[:2400])
    assert hasher.encode(X).tobytes() == plain.encode(X).tobytes()
    expected = plain.weigh(X[:50])
    np.testing.assert_allclose(hasher.weigh(X[:50]), expected, atol=1e-4 * np.abs(expected).max())


def test_the_field_is_halved_round_by_round() -> None:
    sizes = []
    hasher = Tuned(bits=16, method="ohsl", race=900).fit(X[:300], Y[:300])
    for s in range(0, 1200, 100):
        sizes.append(len(hasher.candidates_))
        hasher.partial_fit(X[s : s + 100], Y[s : s + 100])
    assert sizes == [6, 6, 6, 3, 3, 3, 2, 2, 2, 1, 1, 1]


def test_a_useless_candidate_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = dict.fromkeys(range(Y.shape[1] - 1), 0.0)  # it listens to one label only
    monkeypatch.setattr(Tally, "tunable", {"label_weights": (deaf, None)})
    assert raced("tally").chosen_ == {"label_weights": None}


def test_it_goes_on_in_the_middle_of_the_race_after_a_round_trip() -> None:
    hasher = raced(race=2000, rows=600)
    assert len(hasher.candidates_) > 1
    again = load(hasher.state())
    for part in (hasher, again):
        part.partial_fit(X[600:2400], Y[600:2400])
    assert isinstance(again, Tuned) and again.state() == hasher.state() and again.chosen_ == hasher.chosen_


def test_bad_parameters_are_refused() -> None:
    for params in ({"method": "lsh"}, {"race": 0}):
        with pytest.raises(InvalidInput, match=next(iter(params))):
            Tuned(**params).fit(X[:300])  # type: ignore[arg-type]


def test_methods_that_can_be_tuned_name_parameters_they_have() -> None:
    for method in TUNABLE.values():
        assert issubclass(method, Hasher) and method.tunable.keys() <= set(method.parameters())
