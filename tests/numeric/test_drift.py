from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stillhash.errors import BadState, InvalidInput
from stillhash.numeric.drift import PageHinkley

quality = st.floats(0, 1)
seeds = st.integers(0, 2**32 - 1)


def alarms(values: Any, **parameters: Any) -> list[int]:
    detector = PageHinkley(**parameters)
    return [i for i, value in enumerate(values) if detector.update(value)]


def noisy(mean: Any, deviation: float, seed: int) -> Any:
    mean = np.asarray(mean)
    return mean + deviation * np.random.default_rng(seed).standard_normal(mean.shape)


@given(value=quality, count=st.integers(0, 300), alpha=st.sampled_from([0.5, 0.92, 1.0]))
def test_a_constant_signal_never_alarms(value: float, count: int, alpha: float) -> None:
    assert alarms([value] * count, alpha=alpha) == []


@pytest.mark.parametrize(("deviation", "most"), [(0.001, 0), (0.01, 4), (0.03, 40)])
def test_steady_noise_rarely_alarms(deviation: float, most: int) -> None:
    """Of 20,000 values."""
    assert sum(len(alarms(noisy(np.full(100, 0.5), deviation, seed))) for seed in range(200)) <= most


@given(seed=seeds, before=st.integers(8, 60), fall=st.floats(0.12, 0.5))
def test_a_step_down_is_reported_within_few_values(seed: int, before: int, fall: float) -> None:
    signal = noisy(np.r_[np.full(before, 0.6), np.full(10, 0.6 - fall)], 0.01, seed)
    detector = PageHinkley()
    early = [detector.update(value) for value in signal[:before]]
    assume(not any(early))
    assert any(detector.update(value) for value in signal[before : before + 4])


@given(seed=seeds, rise=st.floats(0, 0.5), slow=st.booleans())
def test_a_rise_is_no_fall(seed: int, rise: float, slow: bool) -> None:
    mean = np.linspace(0, rise, 60) if slow else np.repeat([0, rise], 30)
    assert alarms(0.3 + noisy(mean, 0.002, seed)) == []


def test_a_fall_after_a_long_rise_raises_an_alarm() -> None:
    """The mean and the deviation follow what is learnt, or the rise would hide the fall."""
    signal = np.r_[0.4 + 0.15 * (1 - np.exp(-np.arange(50) / 15)), np.full(20, 0.48)]
    alarms_by_seed = [alarms(noisy(signal, 0.01, seed)) for seed in range(50)]
    assert all(len(at) and at[0] < 60 for at in alarms_by_seed)


def test_after_an_alarm_it_starts_anew() -> None:
    steps = np.repeat([0.8, 0.6, 0.4], 20)
    assert [at // 20 for at in alarms(steps)] == [1, 2]
    detector = PageHinkley()
    for value in steps[:21]:
        detector.update(value)
    assert detector.state() == PageHinkley().state()


def test_there_is_no_alarm_before_min_samples() -> None:
    assert alarms([0.9, 0.1, 0.9, 0.1, 0.0], min_samples=5) == []
    assert alarms([0.9] * 3 + [0.1], min_samples=3) == [3] and alarms([0.9] * 3 + [0.1], min_samples=4) == []


@given(values=st.lists(quality, max_size=60), cut=st.integers(0, 60), alpha=st.sampled_from([0.9, 1.0]))
def test_state_goes_through_json_and_on_identically(values: list[float], cut: int, alpha: float) -> None:
    whole = PageHinkley(threshold=1.0, min_samples=2, alpha=alpha)
    for value in values[:cut]:
        whole.update(value)
    loaded = PageHinkley.load(json.loads(json.dumps(whole.state())))
    assert loaded.state() == whole.state()
    assert [loaded.update(value) for value in values[cut:]] == [whole.update(value) for value in values[cut:]]
    assert loaded.state() == whole.state()


@given(st.lists(st.floats(-1e15, 1e15), max_size=40))
def test_any_numbers_leave_it_finite(values: list[float]) -> None:
    detector = PageHinkley()
    for value in values:
        detector.update(value)
    assert np.isfinite(list(detector.state().values())).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300, "much", None])
def test_values_that_are_not_finite_are_refused_and_change_nothing(value: Any) -> None:
    detector = PageHinkley()
    detector.update(0.5)
    before = detector.state()
    with pytest.raises(InvalidInput, match="value"):
        detector.update(value)
    assert detector.state() == before


@pytest.mark.parametrize(
    "wrong", [{"delta": -1}, {"threshold": 0}, {"min_samples": 0}, {"alpha": 0}, {"alpha": 1.5}, {"noise": 0}]
)
def test_parameters_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        PageHinkley(**wrong)


@pytest.mark.parametrize(
    "damage", [{"mean_": float("nan")}, {"alpha": 2}, {"count_": -1}, {"sum_": -0.5}, {"more": 1}, {"last_": None}]
)
def test_damaged_state_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(BadState, match=r"^state\b"):
        PageHinkley.load(PageHinkley().state() | damage)
    lacking = PageHinkley().state()
    del lacking["sum_"]
    with pytest.raises(BadState, match="sum_"):
        PageHinkley.load(lacking)
