"""Request and response models for collections as a whole."""

from typing import Annotated, Any, Literal, Self

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError

from stillhash.errors import InvalidInput
from stillhash.hashers import DEFAULT_HASHER
from stillhash.server.collections_folder import NAME_PATTERN
from stillhash.server.request_body import OpenApi, RequestBody, read_body
from stillhash.server.responses import JSON_MEDIA, to_error

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
    keep_features: Annotated[StrictBool, Field(description="Store features too, to forget items exactly.")] = False
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
