"""Request and response models of the routes that count and suggest labels and values."""

from typing import Annotated, Any

from pydantic import BaseModel, Field, StrictInt, StrictStr

from stillhash.collection.facet_counts import MAX_FACET_VALUES
from stillhash.collection.suggestions import MAX_SUGGESTED, SuggestionKind
from stillhash.server.request_body import RequestBody
from stillhash.server.schemas import FilterCondition, JsonId

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
