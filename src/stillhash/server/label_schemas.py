"""Request and response models of the routes that add and remove labels."""

from typing import Annotated, Any

from pydantic import BaseModel, Field, StrictBool

from stillhash.server.schemas import IdsBody, JsonId, JsonLabel


class LabelsBody(IdsBody):
    labels: Annotated[list[JsonLabel], Field(description="For all items.", examples=[["cat"]])]
    learn: StrictBool = True


class EarlierLabels(BaseModel):
    """An item whose labels changed, and those that it had."""

    id: JsonId
    labels: list[Any]


class LabelsResponse(BaseModel):
    before: Annotated[list[EarlierLabels], Field(description="The items that changed; `relabel` takes it back.")]
