"""What a collection takes and returns: queries and options; items, hits, answers, explanations and audit entries."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from stillhash.search.first_page import Place

Id = str | int
Vector = Sequence[float]  # one query (D,)
Vectors = Sequence[Sequence[float]] | Sequence[NDArray[Any]]  # queries (m, D)
IdLike = Id | UUID | Enum | PurePath | date | np.generic  # what is converted to an id
Filter = dict[str, Any]
ItemIds = Iterable[IdLike] | NDArray[Any]
Weights = Vector | Vectors | NDArray[Any]  # (bits,) of one query, or (m, bits)
LabelsOfItems = dict[Id, list[Any]]
VersionName = int | Literal["hamming"]  # of the model
# Why an item is suggested: it stands for many others; nothing labelled is like it; two labels are about as likely; none
# of its labels is likely.
SuggestionReason = Literal["typical", "new", "boundary", "unsure"]
TEXT_FIELD = "text"  # is the field of the metadata that holds the text of an item


class SearchOptions(TypedDict, total=False):
    """Options of `search`."""

    weights: Weights | None
    where: Filter | None
    version: VersionName | None
    balance: float | None
    explain: bool | int


class LocalSearchOptions(SearchOptions, total=False):
    """Options of `Collection.search`."""

    max_bytes: int | None


class RangeOptions(TypedDict, total=False):
    """Options of `range_search`."""

    distance: int | None
    where: Filter | None
    version: VersionName | None
    most: int | None


class LocalRangeOptions(RangeOptions, total=False):
    """Options of `Collection.range_search`."""

    max_bytes: int | None


class Vote(NamedTuple):
    """A vote on an item as a hit of a query, for `feedback_many`."""

    query: Vector | NDArray[Any] | None  # (D,)
    id: Id
    vote: float | str  # "up", "down", or a number in [-1, 1]; 0 takes the vote back
    source: str = ""  # whose it is
    position: int | None = None  # rank from 1 at which the hit was shown
    query_id: Id | None = None  # in place of the query: a stored item, whose `reconstruct` is the query


@dataclass(frozen=True)
class Item:
    """A stored item, without its code."""

    id: Id
    labels: list[Any]
    metadata: dict[str, Any] | None


@dataclass(frozen=True)
class DoubtfulItem:
    """An item whose labels are not what its features predict."""

    id: Id
    labels: list[Any]
    predicted: list[Any]  # labels that are predicted instead, best first
    chance: float  # that its labels are wrong, 0 to 1


@dataclass(frozen=True)
class LabelSuggestion:
    """An unlabelled item whose labels would teach much, with the labels that are predicted of it."""

    id: Id
    labels: list[tuple[Any, float]]  # with their chances, 0 to 1, best first; none before enough is learnt
    usefulness: float  # beside that of the most useful one, 0 to 1
    reason: SuggestionReason


@dataclass(frozen=True)
class AuditEntry:
    """A change of a collection, as its audit log has it."""

    number: int  # from 1, in the order of the changes
    time: str  # UTC, ISO 8601
    who: str
    what: str  # the verb; with the version for `tag` and `rollback`
    rows: int  # how many items, rows or votes it was about
    ids: list[Id]  # the first of these items, at most 10
    version_before: int  # of the model
    version_after: int


@dataclass(frozen=True)
class ForgetReport:
    """What was forgotten, and what is left to do."""

    items: int  # that were there
    votes: int  # on them, or of the source
    unlearnt: int  # rows that were learnt of them, and have been taken out exactly
    versions: list[int]  # that had learnt from them, and are dropped
    snapshots: dict[str, int]  # that still hold some of the items, or votes of the source, and how many
    remains: list[str]  # what the collection still holds of them, one sentence each


@dataclass(frozen=True)
class VoteEntry:
    """A vote that counts, as `votes` lists it. `feedback(query, id, 0, source=source)` takes it back."""

    number: int  # a later vote has a higher one
    time: str | None  # UTC, ISO 8601; None where neither its version nor its entry of the audit log is kept
    source: str  # whose it is
    id: Id  # of the item, which may be deleted
    vote: float  # from -1 to 1
    position: int | None  # rank from 1 at which the hit was shown
    query: Any  # the features as a list, or a code in hexadecimal digits: what `feedback` takes
    query_id: Id | None  # an item whose `reconstruct` is the query, if there is one


@dataclass(frozen=True)
class LabelShare:
    """A label that is predicted, and its share of the prediction.

    The prediction is a vector with a number for each label. The share is the square of a label's number over the sum of
    all squares, negative numbers left out: from 0 to 1, and 1 together. It says nothing of how sure the prediction is.
    """

    label: Any
    share: float


@dataclass(frozen=True)
class Explanation:
    """A score as a sum over bits, what places a hit on the first page, and its rank by another version of the model."""

    bits: list[float]  # what each bit adds; they sum to the score
    groups: list[float]  # the same for each eight bits, a byte of the code
    rank: int  # among all items that match the filter, from 1
    other_version: int
    other_score: float  # by that version
    other_rank: int
    similarity: float | None = None  # how similar it is to the query, from -1 to 1; the cosine, if rescored
    labels: float | None = None  # the cosine of the labels of query and hit; None where labels do not place it
    query_labels: list[LabelShare] | None = None  # of the query: predicted, or of its nearest items; at most 5
    hit_labels: list[LabelShare] | None = None  # predicted of the hit, and those that it has now
    shared_labels: list[LabelShare] | None = None  # of both, with the smaller share
    up_votes: int = 0  # on this hit of this very query, which put it first,
    down_votes: int = 0  # or last
    vote_score: float | None = None  # what votes on any items and queries add to the score; None: nothing of their own
    label_weight: float | None = None  # how much labels count beside similarity on the first page, from 0 to 1
    # label_weight * labels + (1 - label_weight) * similarity, and what votes add, orders the first page; None elsewhere
    page_score: float | None = None


@dataclass(frozen=True)
class Hit(Item):
    """An item with its score, and what placed it: liked hits are first, near duplicates next, disliked ones last.

    Between them the first hits are ordered by labels and similarity, or by similarity alone where labels do not count;
    the others by score.
    """

    score: float
    version: int = field(default=0, compare=False)  # of the model that ranked it
    placed: Place = field(default="score", compare=False)
    explanation: Explanation | None = None  # only with explain=
    distance: int | None = None  # to the query, where hits are ranked by Hamming distance
    learnt_rank: int | None = None  # of hybrid_search: from 1 in the learnt ranking,
    lexical_rank: int | None = None  # and in that by words; None where it is not among the first of it


@dataclass(frozen=True)
class Answer:
    """Hits, best first; the version of the model that ranked them, 0 before learning; and how they are ranked."""

    hits: list[Hit]
    version: int
    ranking: str
    missing: float = 0.0  # the share of the items whose shard did not answer, of a collection on a cluster
    balance: float | None = None  # from 0, similarity, to 1, same labels; None where the ranking has none
