"""Request and response models of the HTTP API. The collection validates the values."""

import base64
from typing import Annotated, Any, Literal, Self

import numpy as np
from fastapi import Query, Request
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError

from stillhash.collection import Answer, AuditEntry, DoubtfulItem, Item, LabelSuggestion, VoteEntry
from stillhash.collection.filters.facets import MAX_FACET_VALUES, MAX_SUGGESTED, SuggestionKind
from stillhash.collection.learning.label_quality import MAX_SUGGESTIONS
from stillhash.collection.learning.probe import (
    MAX_PROBE_ITEMS,
    MAX_PROBE_QUERIES,
    MAX_PROBE_SEED,
    MIN_PROBE_ITEMS,
    PROBE_ITEMS,
    PROBE_QUERIES,
)
from stillhash.collection.learning.votes import MAX_LISTED_VOTES
from stillhash.collection.ranking import DEFAULT_DEPTH
from stillhash.collection.storage.lexical import MAX_TERMS, MAX_WORDS_LENGTH
from stillhash.errors import InvalidInput
from stillhash.hashers import DEFAULT_HASHER
from stillhash.numeric.validation import MAX_BITS
from stillhash.server.bodies import OpenApi, RequestBody, count_queries, read_body
from stillhash.server.collection_lifecycle import NAME_PATTERN
from stillhash.server.responses import JSON_MEDIA, to_error

_NUMBERS = {"type": "array", "items": {"type": "number"}}
_CODE = {"type": "string", "pattern": "^[0-9a-fA-F]+$"}
_ONE_QUERY = {"anyOf": [{"type": "number"}, _NUMBERS, _CODE]}
FeatureRows = Annotated[  # an array if the rows came raw
    Any,
    Field(
        description="Rows of numbers; of hexadecimal digits, where the collection has codes only.",
        json_schema_extra={"type": "array", "items": {"anyOf": [_NUMBERS, _CODE]}},
        examples=[[[0.1, 0.2, 0.3]]],
    ),
]
QueryVectors = Annotated[
    Any,
    Field(
        description="One query, or a list of queries; in hexadecimal digits, where the collection has codes only.",
        json_schema_extra={"anyOf": [{"type": "array", "items": _ONE_QUERY}, _CODE]},
        examples=[[0.1, 0.2, 0.3]],
    ),
]
OptionalQuery = Annotated[
    Any,
    Field(
        description="One query; in hexadecimal digits, where the collection has codes only. null: any.",
        json_schema_extra={"anyOf": [_NUMBERS, _CODE, {"type": "null"}]},
    ),
]
WeightVectors = Annotated[
    Any,
    Field(
        description="Weights of the bits, for one query or several, in place of queries.",
        json_schema_extra={"type": "array", "items": {"anyOf": [{"type": "number"}, _NUMBERS]}},
    ),
]


# ---- items, queries, learning and the server ----


MAX_INT64 = 2**63 - 1
MAX_AUDIT_PAGE = 10_000  # entries

JsonId = StrictInt | str
JsonVote = StrictBool | float | Literal["up", "down"]
JsonIds = Annotated[list[JsonId], Field(examples=[["a", 7]])]
JsonLabel = StrictInt | float | str
JsonLabels = Annotated[list[JsonLabel], Field(fail_fast=True)]  # of millions of wrong ones, one is named
LabelLists = Annotated[list[JsonLabels] | None, Field(description="The labels of each row.", examples=[[["cat"]]])]
FilterCondition = Annotated[
    dict[str, Any] | None,
    Field(description="Only items that meet this condition.", examples=[{"year": {"$gte": 1990}}]),
]

AuditAfter = Annotated[
    int | None, Query(ge=0, le=MAX_INT64, description="The last number of the page before; 0 for the oldest entries.")
]
AuditLimit = Annotated[int, Query(ge=1, le=MAX_AUDIT_PAGE)]
AuditName = Annotated[str | None, Query(description="Only the changes of this key.")]


class AddBody(RequestBody):
    raw_field = row_field = "features"
    ids: JsonIds
    features: FeatureRows
    labels: LabelLists = None
    metadata: Annotated[list[dict[str, Any] | None] | None, Field(examples=[[{"year": 1995}]])] = None
    pictures: Annotated[
        list[str | None] | None, Field(description="A small image (PNG, JPEG, WebP, GIF) of each row, in base64.")
    ] = None
    learn: StrictBool = True

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Collection.add`, with the pictures decoded."""
        try:
            pictures = [text and base64.b64decode(text, validate=True) for text in self.pictures or ()]
        except ValueError as error:
            raise InvalidInput(f"pictures: expected base64: {error}") from None
        return {**vars(self), "pictures": None if self.pictures is None else pictures}


class UpsertBody(AddBody):
    features: Annotated[
        FeatureRows, Field(description="null to replace only labels or metadata, of items that all exist.")
    ] = None

    def row_count(self) -> int:
        return len(self.ids) if self.features is None else super().row_count()


class IdsBody(RequestBody):
    row_field = "ids"
    ids: JsonIds


class BuildRescoringBody(RequestBody):
    raw_field = row_field = "features"
    ids: JsonIds
    features: FeatureRows
    rescore_bits: Annotated[StrictInt | None, Field(description="As of a new collection; others start again.")] = None


class DeleteBody(RequestBody):
    ids: Annotated[list[JsonId] | None, Field(description="Either ids or where.", examples=[["a", 7]])] = None
    where: Annotated[
        dict[str, Any] | Literal["all"] | None,
        Field(description="Items that meet this condition; all for every item.", examples=[{"year": {"$gte": 1990}}]),
    ] = None


class RelabelBody(DeleteBody):
    row_field = "ids"
    labels: Annotated[
        list[JsonLabels] | list[JsonLabel] | None,
        Field(description="The labels of each id; with where, one list for all items.", examples=[[["cat"]]]),
    ] = None
    learn: StrictBool = True


class UpdateMetadataBody(DeleteBody):
    row_field = "ids"
    metadata: Annotated[
        dict[str, Any] | list[dict[str, Any] | None] | None,
        Field(description="For all items, or for each id; null removes a field.", examples=[{"year": 1995}]),
    ] = None
    replace: Annotated[StrictBool, Field(description="Replace all fields, not only these.")] = False


class CountBody(RequestBody):
    where: FilterCondition = None


class ListIdsBody(CountBody):
    after: Annotated[JsonId | None, Field(description="The last id of the list before.", examples=["a"])] = None
    limit: Annotated[StrictInt, Field(ge=1, le=MAX_INT64)] = 1000


class PictureBody(RequestBody):
    id: Annotated[JsonId, Field(examples=["a"])]


class QueryBody(RequestBody):
    raw_field = row_field = "query"
    query: QueryVectors
    where: FilterCondition = None
    version: Annotated[
        Annotated[StrictInt, Field(ge=0, le=MAX_INT64)] | Literal["hamming"] | None,
        Field(description="Of the model; 0 is before anything was learnt."),
    ] = None


class SearchBody(QueryBody):
    query: QueryVectors = None
    weights: WeightVectors = None
    k: Annotated[StrictInt, Field(ge=1, le=MAX_INT64)] = 10
    balance: Annotated[
        float | None, Field(ge=0, le=1, description="From 0, similarity, to 1, same labels; null is automatic.")
    ] = None
    explain: Annotated[
        StrictBool | StrictInt,
        Field(description="true, or the number of a version to compare with.", json_schema_extra={"minimum": 0}),
    ] = False

    def row_count(self) -> int:
        """Count the queries, or the weights that came in their place."""
        return super().row_count() if self.weights is None else count_queries(self.weights)


class RangeSearchBody(QueryBody):
    threshold: float | None = None
    distance: Annotated[
        StrictInt | None, Field(ge=0, le=MAX_BITS, description="A Hamming distance, in place of the threshold.")
    ] = None
    most: Annotated[StrictInt | None, Field(ge=1, le=MAX_INT64, description="Refuse more hits than this.")] = None


class LearnBody(RequestBody):
    raw_field = row_field = "features"
    features: FeatureRows
    labels: LabelLists


class FitBody(LearnBody):
    features: FeatureRows = None
    labels: LabelLists = None


class FeedbackBody(RequestBody):
    raw_field = row_field = "query"
    query: QueryVectors
    id: Annotated[JsonId | list[JsonId], Field(description="An item, or several.", examples=["a"])]
    vote: Annotated[
        JsonVote | list[JsonVote],
        Field(description="'up', 'down', or a number in [-1, 1], for all or for each; 0 takes a vote back."),
    ]
    source: str = ""
    position: Annotated[
        StrictInt | list[StrictInt | None] | None,
        Field(description="Rank from 1 at which the hit was shown, for all or for each.", examples=[9]),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Collection.feedback`; a raw query comes as a row of an array."""
        single_row = isinstance(self.query, np.ndarray) and len(self.query) == 1
        return {**vars(self), "query": self.query[0] if single_row else self.query}


class RollbackBody(RequestBody):
    version: Annotated[StrictInt, Field(ge=1, le=MAX_INT64, examples=[1])]


class TagBody(RollbackBody):
    name: Annotated[str, Field(min_length=1, examples=["good"])]


class SearchResponse(BaseModel):
    answers: Annotated[list[Answer], Field(description="One for each query.")]


class ItemsResponse(BaseModel):
    items: Annotated[list[Item | None], Field(description="One for each id, null where there is no such item.")]


class IdsResponse(BaseModel):
    ids: Annotated[list[JsonId], Field(description="In order; the last one is `after` of the next list.")]


class CountResponse(BaseModel):
    count: int


class MissingResponse(BaseModel):
    missing: Annotated[int, Field(description="Items that still have none.")]


class VersionResponse(BaseModel):
    version: Annotated[int, Field(description="The version of the model that is now current.")]


class VersionInfo(BaseModel):
    """One version of the model."""

    model_config = ConfigDict(extra="allow")
    version: int
    created: str
    kind: str
    rows: int
    tag: str | None
    current: bool


class VersionsResponse(BaseModel):
    versions: list[VersionInfo]


class RankingMeasures(BaseModel):
    map: Annotated[float, Field(description="Mean average precision of the whole ranking.")]
    precision: Annotated[float, Field(description="Share of relevant hits among the first ten.")]
    ndcg: Annotated[float, Field(description="nDCG of the first ten; the gain is the Jaccard of the labels.")]


class QualityPoint(RankingMeasures):
    version: Annotated[int, Field(description="The version that learnt the rows of this point.")]
    rows: Annotated[int, Field(description="Labelled rows learnt before this point.")]
    before: Annotated[RankingMeasures, Field(description="Of the same rows before learning, ranked by cosine.")]
    drift: bool


class QualityResponse(BaseModel):
    curve: list[QualityPoint]
    alarms: list[int]


class DoubtfulLabelsResponse(BaseModel):
    wrong_label_share: Annotated[float | None, Field(description="Estimated, of all labelled rows; null without one.")]
    items: Annotated[list[DoubtfulItem], Field(description="The most doubtful first.")]


class AuditResponse(BaseModel):
    entries: Annotated[list[AuditEntry], Field(description="The latest last.")]


class FeaturesResponse(BaseModel):
    features: Annotated[
        list[list[float]] | list[str], Field(description="Codes in hexadecimal digits, where there are codes only.")
    ]


class PictureResponse(BaseModel):
    picture: Annotated[str | None, Field(description="In base64; null if the item has none.")]


class VerifyResponse(BaseModel):
    problems: Annotated[list[str], Field(description="Empty if everything is intact.")]


class SnapshotResponse(BaseModel):
    name: Annotated[str, Field(description="Of its folder, in the server's folder of snapshots.")]
    bytes: int


class StatsResponse(BaseModel):
    """Settings, counts, bytes, quality."""

    model_config = ConfigDict(extra="allow")
    items: int
    version: int
    fitted: bool
    codes_see_labels: Annotated[bool, Field(description="Whether codes of items that are added with labels hold them.")]


class ReadyResponse(BaseModel):
    ready: Literal[True]
    degraded: dict[str, list[int]]


class HealthResponse(BaseModel):
    status: Literal["ok"]
    stillhash: str
    collections: dict[str, int]


# ---- labels ----


class LabelsBody(IdsBody):
    labels: Annotated[list[JsonLabel], Field(description="For all items.", examples=[["cat"]])]
    learn: StrictBool = True


class EarlierLabels(BaseModel):
    """An item whose labels changed, and those that it had."""

    id: JsonId
    labels: list[Any]


class LabelsResponse(BaseModel):
    before: Annotated[list[EarlierLabels], Field(description="The items that changed; `relabel` takes it back.")]


# ---- counts and suggestions of labels and values ----

JsonValue = Annotated[Any, Field(description="A text, a number, a boolean or null.")]


class FacetsBody(RequestBody):
    where: FilterCondition = None
    fields: Annotated[
        list[StrictStr] | None, Field(description="Null: all that filters answer from memory.", examples=[["year"]])
    ] = None
    limit: Annotated[StrictInt, Field(ge=1, le=MAX_FACET_VALUES, description="Values of each field.")] = 20


class JsonFacetValue(BaseModel):
    """A value, how many items have it, and the first of these."""

    value: JsonValue
    count: int
    example: JsonId


class JsonFacet(BaseModel):
    """The values of a field, or the labels."""

    field: str
    items: int
    distinct: Annotated[int | None, Field(description="Null: too many to count.")]
    values: list[JsonFacetValue]
    minimum: float | None
    maximum: float | None


class FacetsResponse(BaseModel):
    items: Annotated[int, Field(description="That meet the condition.")]
    labels: JsonFacet
    fields: list[JsonFacet]


class SuggestBody(RequestBody):
    text: Annotated[StrictStr, Field(description="What somebody types.", examples=["ca"])]
    limit: Annotated[StrictInt, Field(ge=1, le=MAX_SUGGESTED)] = 10


class JsonSuggestion(BaseModel):
    """A label, an id, or a value of a field."""

    kind: SuggestionKind
    value: JsonValue
    count: int
    field: str | None
    near: Annotated[bool, Field(description="It does not begin so, but is nearly the same.")]


class SuggestResponse(BaseModel):
    suggestions: list[JsonSuggestion]


# ---- words ----

JsonWords = Annotated[
    str,
    Field(
        description=f'Words, and "phrases" in double quotes: at most {MAX_TERMS}, and {MAX_WORDS_LENGTH} characters.',
        examples=['blue "summer night"'],
    ),
]
HitCount = Annotated[StrictInt, Field(ge=1, le=MAX_INT64)]


class LexicalSearchBody(RequestBody):
    words: JsonWords
    k: HitCount = 10
    where: FilterCondition = None

    def fetched_hits(self) -> int:
        """Return how many hits are ranked."""
        return self.k


class HybridSearchBody(QueryBody):
    words: JsonWords
    k: HitCount = 10
    balance: Annotated[
        float | None, Field(ge=0, le=1, description="From 0, similarity, to 1, same labels; null is automatic.")
    ] = None
    depth: Annotated[HitCount, Field(description="Hits of each ranking that are fused; at least k are.")] = (
        DEFAULT_DEPTH
    )
    word_weight: Annotated[float, Field(gt=0, description="How much words count beside the learnt ranking.")] = 1.0

    def fetched_hits(self) -> int:
        """Return how many hits are ranked."""
        return max(self.k, self.depth)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Collection.hybrid_search`; a raw query comes as a row of an array."""
        single_row = isinstance(self.query, np.ndarray) and len(self.query) == 1
        return {**vars(self), "query": self.query[0] if single_row else self.query}


# ---- suggested labels ----


class SuggestLabelsBody(RequestBody):
    row_field = "skip"
    count: Annotated[StrictInt, Field(ge=1, le=MAX_SUGGESTIONS, description="Items, at most.")] = 20
    skip: Annotated[
        JsonIds, Field(default_factory=list, description="Items that are not suggested, nor soon the like.")
    ]
    seed: Annotated[
        StrictInt | None, Field(ge=0, le=MAX_INT64, description="Of what is drawn at random; null: any.")
    ] = None


class SuggestLabelsResponse(BaseModel):
    suggestions: Annotated[
        list[LabelSuggestion], Field(description="The most useful first; their labels are pairs of label and chance.")
    ]


# ---- the probe, and the comparison of versions ----

NamedVersion = Annotated[StrictInt, Field(ge=0, le=MAX_INT64)] | Literal["hamming"]
CURRENT_VERSION = "Of the model; 0 is before anything was learnt, null the current one."


class ProbeSizesBody(RequestBody):
    queries: Annotated[StrictInt, Field(ge=1, le=MAX_PROBE_QUERIES, description="Items that are queries.")] = (
        PROBE_QUERIES
    )
    items: Annotated[StrictInt, Field(ge=MIN_PROBE_ITEMS, le=MAX_PROBE_ITEMS, description="Items that they rank.")] = (
        PROBE_ITEMS
    )
    seed: Annotated[StrictInt, Field(ge=0, le=MAX_PROBE_SEED, description="Which items are chosen.")] = 0


class ProbeBody(ProbeSizesBody):
    version: Annotated[NamedVersion | None, Field(description=CURRENT_VERSION)] = None


class CompareVersionsBody(ProbeSizesBody):
    one: Annotated[NamedVersion, Field(examples=[0])]
    other: Annotated[NamedVersion | None, Field(description=CURRENT_VERSION)] = None
    ids: Annotated[list[JsonId] | None, Field(description="The queries, in place of chosen ones.")] = None


# ---- the list of votes ----


class ListVotesBody(RequestBody):
    raw_field = row_field = "query"
    query: OptionalQuery = None
    source: Annotated[str | None, Field(description="Only the votes of this source.", examples=["ann"])] = None
    after: Annotated[
        StrictInt | None, Field(ge=0, le=MAX_INT64, description="The number of the last vote of the list before.")
    ] = None
    limit: Annotated[StrictInt, Field(ge=1, le=MAX_LISTED_VOTES)] = 100

    def row_count(self) -> int:
        """Count the queries: one, or none."""
        return 0 if self.query is None else super().row_count()

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Collection.votes`; a raw query comes as a row of an array."""
        single_row = isinstance(self.query, np.ndarray) and len(self.query) == 1
        return {**vars(self), "query": self.query[0] if single_row else self.query}


class VotesResponse(BaseModel):
    votes: Annotated[list[VoteEntry], Field(description="The latest first.")]


# ---- collections ----

MAX_CREATE_BYTES = 1 << 16
MAX_CREATED_DIM, MAX_CREATED_ROWS = 1 << 14, 1 << 24  # over HTTP; the operator can create larger ones


class CreateCollectionBody(BaseModel):
    """The arguments of `stillhash.open` that a client may choose. Of encoders only those that open no files."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: Annotated[str, Field(pattern=f"^{NAME_PATTERN}$", examples=["films"])]
    dim: Annotated[
        StrictInt | None, Field(ge=1, le=MAX_CREATED_DIM, description="Length of the features.", examples=[512])
    ] = None
    bits: Annotated[StrictInt | None, Field(description="Length of the codes; null is 128.")] = None
    method: Annotated[str, Field(description="The hasher.")] = DEFAULT_HASHER.name
    params: Annotated[dict[str, Any] | None, Field(description="Of the hasher.")] = None
    codes_see_labels: StrictBool = True
    codes_only: Annotated[StrictBool, Field(description="Items are ready codes; with bits, and without dim.")] = False
    init_rows: Annotated[StrictInt, Field(le=MAX_CREATED_ROWS, description="That hash functions are fitted on.")] = 3000
    learn_rows: Annotated[StrictInt, Field(le=MAX_CREATED_ROWS, description="Labelled rows of a learning step.")] = 1000
    keep_versions: Annotated[StrictInt, Field(le=MAX_CREATED_ROWS)] = 32
    source_cap: Annotated[float, Field(description="Votes that one source counts for at most.")] = 1000.0
    filter_fields: Annotated[list[str] | None, Field(description="Fields that filters answer from memory.")] = None
    lexical_field: Annotated[str | None, Field(description="A field whose words are indexed.")] = None
    keep_features: Annotated[StrictBool, Field(description="Store features too, to read them back.")] = False
    rescore_bits: Annotated[
        StrictInt | None,
        Field(description="Bits per feature of rescoring codes; null is 2, or 4 of at most 512 features."),
    ] = None
    encoder: Annotated[
        Literal["classic", "words"] | None, Field(description="Of images, or of texts; without dim.")
    ] = None

    @classmethod
    async def from_request(cls, request: Request) -> Self:
        """Parse the body of a request that belongs to no collection yet."""
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media not in ("", JSON_MEDIA):
            raise InvalidInput(f"content-type: expected {JSON_MEDIA}, got {media!r}")
        try:
            return cls.model_validate_json(await read_body(request, MAX_CREATE_BYTES))
        except ValidationError as error:
            raise to_error(error) from None

    @classmethod
    def openapi_body(cls) -> OpenApi:
        return {"required": True, "content": {JSON_MEDIA: {"schema": cls.model_json_schema()}}}

    def settings(self) -> dict[str, Any]:
        """Return the arguments of `stillhash.open` but the path."""
        if self.dim is None and not self.codes_only and self.encoder is None:
            raise InvalidInput("dim: expected the length of the features, an encoder, or codes_only and bits, got none")
        return self.model_dump(exclude={"name"})


class DeleteCollectionBody(RequestBody):
    confirm: Annotated[str, Field(description="The name of the collection, again.", examples=["films"])]


class DeletedResponse(BaseModel):
    name: str


class CollectionsResponse(BaseModel):
    collections: Annotated[list[str], Field(description="Their names.")]
    items: Annotated[dict[str, int], Field(description="The number of items of each.")]
