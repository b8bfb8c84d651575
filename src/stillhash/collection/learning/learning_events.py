"""What each version of the model came from: items, labels and votes, by the audit log. Nothing more is stored."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from stillhash.collection.types import AuditEntry

COUNTED_BY = {  # the field of an event that counts the rows of a change, by its first word
    "add": "added",
    "upsert": "added",
    "import": "added",
    "bulk": "added",
    "relabel": "relabelled",
    "add_labels": "relabelled",
    "remove_labels": "relabelled",
    "feedback": "votes",
    "undo": "votes",
    "learn": "learnt",
}


@dataclass(frozen=True)
class LearningEvent:
    """The changes since the version before, up to the one that published this version."""

    version: int | None  # None: no version has learnt from them yet
    time: str  # of the last change, UTC, ISO 8601
    what: str  # the last change, as the audit log has it
    added: int = 0  # items, with labels or without
    relabelled: int = 0  # items
    votes: int = 0  # also those that were taken back
    learnt: int = 0  # labelled rows that are no items


def learning_events(entries: Iterable[AuditEntry]) -> list[LearningEvent]:
    """Return an event for each version, the latest last, from entries in the order of their changes."""
    events: list[LearningEvent] = []
    counts: dict[str, int] = {}
    for entry in entries:
        field = COUNTED_BY.get(entry.what.split()[0])
        if field is not None:
            counts[field] = counts.get(field, 0) + entry.rows
        event = LearningEvent(None, entry.time, entry.what, **counts)
        if entry.version_after != entry.version_before:
            events.append(replace(event, version=entry.version_after))
            counts = {}
    if counts:
        events.append(event)
    return events
