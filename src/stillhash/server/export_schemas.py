"""Request and response models of the routes that list all items."""

from typing import Annotated, Any

from pydantic import BaseModel, Field, StrictBool, StrictInt

from stillhash.server.schemas import MAX_INT64, CountBody, JsonId


class ExportBody(CountBody):
    after: Annotated[JsonId | None, Field(description="Only items past this id.", examples=["a"])] = None
    codes: Annotated[StrictBool, Field(description="Whether each item comes with its code, in base64.")] = False


class ListItemsBody(ExportBody):
    limit: Annotated[StrictInt, Field(ge=1, le=MAX_INT64)] = 1000


class CodedItem(BaseModel):
    """An item, and its code where that was requested."""

    id: JsonId
    labels: list[Any]
    metadata: dict[str, Any] | None
    code: Annotated[str | None, Field(description="In base64; null before hash functions are fitted.")] = None


class ItemPageResponse(BaseModel):
    items: Annotated[list[CodedItem], Field(description="In order of their ids; fewer than `limit` if they are large.")]
    after: Annotated[JsonId | None, Field(description="`after` of the next page; null if there are no more items.")]
