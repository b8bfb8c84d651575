"""What the learning page says of a curve: the gain, chance, and what happened along it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stillhash.collection.learning.prequential import LearningEvent
from stillhash.server.pages.learning import (
    curve_markers,
    few_steps,
    gain_noise,
    list_steps,
    signed,
    summarise_gain,
    weighted_means,
)

STATS = {"fitted": True, "init_rows": 300, "learn_rows": 100, "pending": 7}


def curve_of(gains: list[float]) -> list[dict[str, Any]]:
    before = {"ndcg": 0.5, "precision": 0.6, "map": 0.4}
    return [
        {
            "version": 2 + n,
            "rows": 100 * n,
            **{name: value + gain for name, value in before.items()},
            "before": before,
            "drift": n == 4,
        }
        for n, gain in enumerate(gains)
    ]


def test_a_steady_gain_leads_and_a_steady_loss_is_an_alarm() -> None:
    for gain, kind, text in ((0.08, "better", "+0.080"), (-0.08, "worse", "-0.080")):
        view = summarise_gain(curve_of([gain] * 6), STATS)
        assert view["kind"] == kind and view["gains"] == {"ndcg": text, "precision": text}
    assert "6.8 share a label" in summarise_gain(curve_of([0.08] * 6), STATS)["sentence"]


def test_a_gain_within_chance_is_none() -> None:
    noisy = curve_of([0.2, -0.2] * 4)
    assert gain_noise(noisy, "ndcg") == pytest.approx(np.sqrt(0.4**2 / 2) * np.sqrt(0.3 / 1.7))
    assert summarise_gain(noisy, STATS)["kind"] == "none"
    assert summarise_gain(curve_of([0.015]), STATS)["kind"] == "none"  # one step says little
    assert "now" in summarise_gain(noisy, STATS)["title"]  # since it has fallen
    assert "version 6" in summarise_gain(noisy, STATS)["sentence"]
    assert "yet" in summarise_gain(curve_of([0.0] * 3), STATS)["title"]
    assert summarise_gain(curve_of([0.0] * 9), STATS)["gains"]["ndcg"] == "0.000"


def test_without_a_step_there_is_a_reason() -> None:
    assert "7 are waiting" in summarise_gain([], STATS)["sentence"]
    assert "300 items" in summarise_gain([], STATS | {"fitted": False})["sentence"]
    assert "gains" not in summarise_gain([], STATS) and weighted_means([]) == {}


def test_three_steps_make_a_chart() -> None:
    sentences = [few_steps(curve_of([0.1] * count)) for count in range(4)]
    assert [bool(sentence) for sentence in sentences] == [True, True, True, False]
    assert "One step" in sentences[1] and "nDCG@10 0.600 (0.500 before learning)" in sentences[2]


def test_signs() -> None:
    assert [signed(value) for value in (0.0, -0.0004, 0.0004, 0.0006, -1.0)] == [
        *("0.000", "0.000", "0.000", "+0.001", "-1.000")
    ]


def test_markers_stand_at_the_first_step_that_they_could_change() -> None:
    curve = curve_of([0.1] * 6)  # versions 2 to 7
    events = [
        LearningEvent(2, "t", "add", added=100),
        LearningEvent(4, "t", "feedback", votes=1),
        LearningEvent(5, "t", "flush", relabelled=20, votes=2),
        LearningEvent(9, "t", "rollback to 3"),
        LearningEvent(None, "t", "relabel", relabelled=3),
    ]
    markers = [(one["kind"], one["rows"], one["text"]) for one in curve_markers(curve, events)]
    assert markers == [
        ("version", 100, "version 2: 100 items"),
        ("votes", 300, "1 thumb, version 4"),
        ("votes", 400, "2 thumbs, version 5"),
        ("labels", 400, "labels of 20 items, version 5"),
        ("drift", 400, "drift: quality fell before version 6"),
        ("version", 500, "rolled back to 3, version 9"),
    ]
    steps = list_steps(curve, curve_markers(curve, events))
    assert [step["rows"] for step in steps] == [500, 400, 300, 200, 100, 0]
    assert len(steps[1]["texts"]) == 3 and steps[2]["texts"] == ["1 thumb, version 4"] and steps[4]["texts"] == []
    assert curve_markers([], events) == []
