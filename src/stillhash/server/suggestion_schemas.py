"""Request and response models of suggested labels."""

from typing import Annotated

from pydantic import BaseModel, Field, StrictInt

from stillhash.collection import LabelSuggestion
from stillhash.collection.label_suggestions import MAX_SUGGESTIONS
from stillhash.server.request_body import RequestBody
from stillhash.server.schemas import MAX_INT64, JsonIds


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
