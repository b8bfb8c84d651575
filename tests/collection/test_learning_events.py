"""What each version came from, by the audit log."""

from __future__ import annotations

from pathlib import Path

import pytest

import stillhash
from stillhash.collection.learning.prequential import LearningEvent
from stillhash.errors import InvalidInput
from tests.support.toys import toy

DIM = 8


def test_each_version_has_the_changes_since_the_last(tmp_path: Path) -> None:
    X, Y = toy(500, DIM, 4)
    with stillhash.open(tmp_path / "c", DIM, 16, init_rows=300, learn_rows=100) as collection:
        assert collection.learning_events() == []
        collection.add(range(100), X[:100], Y[:100])
        collection.add(range(100, 330), X[100:330], Y[100:330])
        collection.relabel(range(20), Y[1:21])  # too few to learn
        collection.relabel(range(20, 150), Y[21:151])
        collection.feedback(X[0], [1, 2, 3], ["up", "down", "up"])
        collection.feedback(X[0], 3, 0)
        collection.update_metadata([5], {"a": 1})
        collection.learn(X[330:400], Y[330:400])
        version = collection.stats()["version"]
        collection.rollback(version - 1)
        collection.relabel(range(3), Y[:3])
        collection.add_labels([10, 11], ["new"])
        collection.remove_labels([11], ["new"])
        events = collection.learning_events()
        latest = collection.learning_events(limit=4)
        with pytest.raises(InvalidInput, match="limit"):
            collection.learning_events(0)
        times = [event.time for event in events]
        assert times == sorted(times)
        versions = [each["version"] for each in collection.versions()]
        assert {event.version for event in events} <= {*versions, None}
    counts = [(event.what, event.added, event.relabelled, event.votes, event.learnt) for event in events]
    assert counts == [
        ("add", 330, 0, 0, 0),
        ("relabel", 0, 150, 0, 0),
        ("feedback", 0, 0, 3, 0),
        ("undo feedback", 0, 0, 1, 0),
        ("learn", 0, 0, 0, 70),
        (f"rollback to {version - 1}", 0, 0, 0, 0),
        ("remove_labels", 0, 6, 0, 0),
    ]
    assert [event.version for event in events] == [2, 3, 4, 5, 6, 7, None]
    assert latest == events[-2:] and isinstance(latest[0], LearningEvent)
