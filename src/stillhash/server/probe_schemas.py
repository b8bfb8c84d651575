"""Request models of the probe, and of the comparison of versions. Responses are the library's own."""

from typing import Annotated, Literal

from pydantic import Field, StrictInt

from stillhash.collection.probe import MAX_PROBE_ITEMS, MAX_PROBE_QUERIES, PROBE_ITEMS, PROBE_QUERIES
from stillhash.collection.probe_reader import MAX_PROBE_SEED, MIN_PROBE_ITEMS
from stillhash.server.request_body import RequestBody
from stillhash.server.schemas import MAX_INT64, JsonId

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
