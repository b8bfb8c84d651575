"""Request and response models of the list of votes."""

from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, StrictInt

from stillhash.collection import VoteEntry
from stillhash.collection.vote_listing import MAX_LISTED_VOTES
from stillhash.server.request_body import RequestBody
from stillhash.server.row_schemas import OptionalQuery
from stillhash.server.schemas import MAX_INT64


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
