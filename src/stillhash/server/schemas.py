"""Request and response models of the HTTP API."""

import base64
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from stillhash.collection import Answer, AuditEntry, DoubtfulItem, Item
from stillhash.errors import InvalidInput
from stillhash.numeric.validation import MAX_BITS
from stillhash.server.request_body import RequestBody, count_queries
from stillhash.server.row_schemas import FeatureRows, QueryVectors, WeightVectors

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
