"""What the tools take and return, as types from which the schemas of their arguments and results are built."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

MAX_TOOL_HITS, MAX_EXPLAINED_HITS = 100, 20
MAX_QUERY_TEXT, MAX_QUERY_NUMBERS = 10_000, 65_536  # characters, and numbers of a vector
MAX_ID_LENGTH = 1000

ItemName = Annotated[str, Field(max_length=MAX_ID_LENGTH)] | int
Likeness = Annotated[ItemName | None, Field(description="Id of a stored item: search for items similar to it.")]
QueryText = Annotated[
    Annotated[str, Field(max_length=MAX_QUERY_TEXT)] | None,
    Field(description="Text to search by, where `stats` says that `text_search` is possible."),
]
QueryVector = Annotated[
    Annotated[list[float], Field(max_length=MAX_QUERY_NUMBERS)] | None,
    Field(description="A vector of as many numbers as `stats` says in `dim`."),
]
ItemCondition = Annotated[
    dict[str, Any] | None,
    Field(
        description="Only items whose metadata and labels meet this condition, for example "
        '{"year": {"$gte": 1990}, "labels": "cat"}. Operators: $eq $ne $gt $gte $lt $lte $in $exists $and $or $not.'
    ),
]
MaxHits = Annotated[int, Field(ge=1, le=MAX_TOOL_HITS, description="How many hits to return, at most.")]
ExplainedCount = Annotated[int, Field(ge=1, le=MAX_EXPLAINED_HITS, description="How many hits to explain, at most.")]
BalanceValue = Annotated[
    Annotated[float, Field(ge=0, le=1)] | None,
    Field(description="From 0, similar items, to 1, items with the same labels. Automatic if left out."),
]
VotedItem = Annotated[ItemName, Field(description="Id of the hit.")]
VoteValue = Annotated[
    Literal["up", "down"] | Annotated[float, Field(ge=-1, le=1)],
    Field(description="up, down, or a number from -1 to 1; 0 takes an earlier vote back."),
]
VoteSource = Annotated[str, Field(max_length=100, description="Whose vote it is; the last one of a source counts.")]


class HitResult(BaseModel):
    """A hit."""

    id: str | int
    score: float = Field(description="Comparable only within one answer; the greater, the better.")
    labels: list[str | int | float]
    metadata: dict[str, Any] | None = Field(description="Fields of the item; its text, if it has one, is in `text`.")
    placed: str = Field(description="What placed it: liked or disliked by votes, near, labels, similarity, or score.")


class SearchResult(BaseModel):
    """Hits, best first."""

    hits: list[HitResult]
    version: int = Field(description="Version of the model that ranked them; 0 before anything is learnt.")
    ranking: str = Field(description="How they are ranked, in words.")


class ExplainedHit(BaseModel):
    """Why a hit is where it is."""

    id: str | int
    score: float
    placed: str
    rank: int = Field(description="By score, among all items that meet the condition, from 1.")
    rank_before: int = Field(description="Its rank by the earlier version, before what was learnt since.")
    score_before: float
    version_before: int
    similarity: float | None = Field(description="How similar it is to the query: the cosine, from -1 to 1.")
    labels: float | None = Field(description="How well its labels, stored and predicted, agree with the query's.")
    label_weight: float | None = Field(description="How much labels count beside similarity, from 0 to 1.")


class ExplainResult(BaseModel):
    """Explained hits, best first."""

    hits: list[ExplainedHit]
    version: int


class FeedbackResult(BaseModel):
    """What a vote did."""

    version: int = Field(description="Version of the model that has learnt from the vote.")


class StatsResult(BaseModel):
    """A collection in numbers."""

    name: str
    items: int
    dim: int = Field(description="Numbers of a vector.")
    bits: int = Field(description="Bits of a code.")
    fitted: bool = Field(description="Whether items have codes; before that they are ranked by cosine.")
    version: int = Field(description="Current version of the model.")
    text_search: Literal["none", "vectors", "words", "vectors and words"] = Field(
        description="What `text` searches by: vectors of an encoder, words of a lexical index, or nothing."
    )
    feedback: bool = Field(description="Whether votes are accepted.")
    encoder: str | None
    quality: float | None = Field(description="Mean average precision of the last labelled rows before learning them.")
