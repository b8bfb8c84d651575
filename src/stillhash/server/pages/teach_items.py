"""View models of the Teach page: items to label with their numbered choices, and how a sitting goes."""

import json
import random
from typing import Any, NamedTuple

from stillhash.collection import Collection, Item, LabelSuggestion
from stillhash.collection.facets import Facet
from stillhash.collection.types import TEXT_FIELD, Id
from stillhash.errors import StillhashError
from stillhash.server.pages.cards import ViewModel
from stillhash.server.sittings import ProbeStart, Sitting

MAX_CHOICES = 9  # as many as there are digits
LIKELY_CHANCE = 0.5  # of a label that is chosen from the start
OFFERED_LABELS = 1000  # in the box for other labels
SINGLE_LABEL_MEAN = 1.02  # labels of an item, up to which items of a collection are taken to have one each
MAX_TEXT_LENGTH = 1600  # characters of an item's text
PROBE_DRAW = 4000  # items that the gain of a sitting is measured on, at most
HAS_LABELS = {"labels": {"$exists": True}}
REASONS = {
    "typical": "it stands for many items without a label",
    "new": "nothing that has a label is like it",
    "boundary": "two labels are about equally likely",
    "unsure": "no label is likely, so yours says most",
}


class Choice(NamedTuple):
    label: Any
    value: str  # as JSON
    chance: float | None  # None: it is not predicted
    chosen: bool


class CollectionLabels(NamedTuple):
    """The labels of a collection."""

    labels: list[Any]  # the most frequent first
    single: bool  # whether items have one label each, as far as can be seen
    items: int  # that have labels

    @property
    def fixed(self) -> list[Any] | None:
        """The labels in a fixed order, where they are so few that each can have a key of its own."""
        return sorted(self.labels, key=str) if 0 < len(self.labels) <= MAX_CHOICES else None


def known_labels(collection: Collection) -> CollectionLabels:
    facet: Facet = collection.facets(fields=[], limit=OFFERED_LABELS).labels
    total = sum(value.count for value in facet.values)
    single = 0 < total <= SINGLE_LABEL_MEAN * facet.items
    return CollectionLabels([value.value for value in facet.values], single, facet.items)


def next_items(
    collection: Collection, known: CollectionLabels, sitting: Sitting, skip: list[Id], count: int
) -> ViewModel:
    """Return the items to label next, the most useful first."""
    suggestions = collection.suggest_labels(count, skip=skip)
    items = collection.get([suggestion.id for suggestion in suggestions])
    pairs = [pair for pair in zip(suggestions, items, strict=True) if pair[1] is not None]
    field = collection.lexical_field
    rows = [
        {
            "id": item.id,
            "name": json.dumps(item.id),
            "text": item_text(item, field),
            "reason": REASONS[suggestion.reason],
            "choices": choices_of(suggestion, known, sitting.recent),
        }
        for suggestion, item in pairs
        if item is not None
    ]
    return {"rows": rows, "suggestions": [suggestion for suggestion, _ in pairs]}


def choices_of(suggestion: LabelSuggestion, known: CollectionLabels, recent: list[Any]) -> list[Choice]:
    """Return the numbered choices: predicted labels first, then recent and frequent ones; or all in a fixed order."""
    chances = dict(suggestion.labels)
    labels = known.fixed or list(dict.fromkeys([*chances, *recent, *known.labels]))[:MAX_CHOICES]
    best = max(chances.values(), default=0)
    if known.fixed and chances:
        chances = {label: chances.get(label, 0.0) for label in known.fixed}
    return [
        Choice(
            label,
            json.dumps(label),
            chances.get(label),
            chances.get(label, 0) >= (LIKELY_CHANCE if not known.single else max(LIKELY_CHANCE, best)),
        )
        for label in labels
    ]


def item_text(item: Item, field: str | None) -> str | None:
    """Return the text of an item, cut to a bounded length; None if it has none."""
    metadata = item.metadata or {}
    texts = (metadata.get(name) for name in (field, TEXT_FIELD) if name is not None)
    text = next((text for text in texts if isinstance(text, str)), None)
    if text is None:
        return None
    return text if len(text) <= MAX_TEXT_LENGTH else text[:MAX_TEXT_LENGTH].rstrip() + "…"


def start_probe(collection: Collection) -> ProbeStart:
    """Choose the items on which the gain of a sitting is measured, labelled before it, and measure the quality now."""
    ids = collection.ids(HAS_LABELS, limit=50 * PROBE_DRAW)
    start = ProbeStart(ids if len(ids) <= PROBE_DRAW else random.sample(ids, PROBE_DRAW))
    try:
        report = collection.probe(ids=start.ids)
    except StillhashError:
        start.reason = "The gain can be measured once 20 items have labels and some are learnt."
        return start
    if report.labels_in_codes:
        start.reason = "The gain cannot be measured here: the codes of the labelled items hold their labels already."
    else:
        start.ndcg = report.quality.ndcg
    start.items = report.queries + report.items
    return start


def progress(collection: Collection, sitting: Sitting) -> ViewModel:
    """Return how a sitting goes: counts, the rate, and the gain since it began."""
    probe, gain, now = sitting.probe, None, None
    if probe is not None and probe.ndcg is not None:
        now = collection.probe(ids=probe.ids).quality.ndcg
        gain = now - probe.ndcg
    total = collection.count(HAS_LABELS)
    return {
        **sitting_counts(sitting),
        "total": total,
        "items": collection.count(),
        "unlearnt": sitting.unlearnt,
        "gain": gain,
        **gain_texts(probe, now),
    }


def gain_texts(probe: ProbeStart | None, now: float | None) -> ViewModel:
    """Say how much better the first page has become since a sitting began, and on what that is measured."""
    if probe is None or probe.ndcg is None or now is None:
        return {"gain_text": "\u2013", "explained": probe.reason if probe is not None else ""}
    measured = f"on {probe.items:,} items labelled before"
    if now == probe.ndcg:
        return {"gain_text": "\u2013", "explained": f"nDCG@10 is {now:.3f}, {measured}; again after every ten answers"}
    return {
        "gain_text": f"{now - probe.ndcg:+.3f}".replace("-", "\u2212"),
        "explained": f"nDCG@10 {probe.ndcg:.3f} → {now:.3f}, {measured}",
    }


def sitting_counts(sitting: Sitting) -> ViewModel:
    """Return what a sitting has counted."""
    return {
        "labelled": sitting.count("labelled"),
        "rejected": sitting.count("rejected"),
        "skipped": sitting.count("skipped"),
        "rate": sitting.rate,
        "right": sitting.first_right,
    }
