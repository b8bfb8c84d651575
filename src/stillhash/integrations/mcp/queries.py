"""Search a collection by what a tool is called with: a text, a stored item, or a vector."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from stillhash.collection import Answer, Collection
from stillhash.collection.types import Filter, Id
from stillhash.encoders import Encoder, open_encoder
from stillhash.errors import InvalidInput

MAX_ANSWER_BYTES = 1 << 20  # of an answer as JSON, about
TextSearch = Literal["none", "vectors", "words", "vectors and words"]


class ToolQuery(NamedTuple):
    """A query in one of three forms."""

    text: str | None
    like: Id | None
    vector: Sequence[float] | None

    def check(self) -> "ToolQuery":
        """Raise InvalidInput unless there is exactly one form."""
        if sum(form is not None for form in self) != 1:
            raise InvalidInput("query: expected one of text, like and vector, got none or several")
        return self


class QuerySearch:
    """Search by any form of a query, and say which forms of text search are possible."""

    def __init__(self, collection: Collection, encoder: Encoder | None) -> None:
        self._collection, self._encoder = collection, encoder

    @property
    def text_search(self) -> TextSearch:
        """What a text searches by."""
        words = self._collection.lexical_field is not None
        if self._encoder is None:
            return "words" if words else "none"
        return "vectors and words" if words else "vectors"

    def features(self, query: ToolQuery) -> Any:
        """Return the features (D,) of a query; None for a text without an encoder."""
        query.check()
        if query.vector is not None:
            return query.vector
        if query.like is not None:
            return self._collection.reconstruct([query.like])[0]
        if self._encoder is None:
            return None
        return self._collection.translate(self._encoder.encode_texts([str(query.text)]), self._encoder)[0]

    def known_features(self, query: ToolQuery) -> Any:
        """Return the features (D,) of a query; InvalidInput where a text has none."""
        if (features := self.features(query)) is None:
            raise InvalidInput("text: expected like or vector, since this server has no encoder of texts")
        return features

    def search(self, query: ToolQuery, k: int, where: Filter | None, balance: float | None) -> Answer:
        """Return the k best items. A text searches by all that `text_search` has."""
        features = self.features(query)
        bounds: dict[str, Any] = {"where": where, "max_bytes": MAX_ANSWER_BYTES}
        if query.text is None or self._collection.lexical_field is None:
            if features is None:
                reason = "since this server has neither an encoder of texts nor a lexical index"
                raise InvalidInput(f"text: expected like or vector, {reason}")
            answer: Answer = self._collection.search(features, k, balance=balance, **bounds)
            return answer
        if features is None:
            return self._collection.lexical_search(query.text, k, **bounds)
        return self._collection.hybrid_search(features, query.text, k, balance=balance, **bounds)


def open_text_encoder(collection: Collection, name: str | None = None) -> Encoder | None:
    """Open the encoder of texts that a collection remembers, or an aligned one; None if it has none for texts."""
    chosen = name if name is not None or collection.encoder is None else collection.encoder.name
    if chosen is None:
        return None
    encoder = open_encoder(chosen)
    if not encoder.has_text:
        if name is not None:
            raise InvalidInput(f"encoder: expected one of texts, got {name!r}")
        return None
    collection.translate([[0.0] * encoder.dim], encoder)  # refuses one that is neither its own nor aligned
    return encoder
