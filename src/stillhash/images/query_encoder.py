"""Encode images and texts to queries of a collection."""

from __future__ import annotations

from pathlib import Path

from stillhash.collection import Collection
from stillhash.encoders import Encoder, open_encoder
from stillhash.encoders.files import encode_bytes
from stillhash.encoders.pixels import read_bytes
from stillhash.errors import InvalidInput
from stillhash.numeric.validation import Floats


class CollectionEncoder:
    """Encode to features (D,) of a collection, by its own encoder or by one that is aligned to it."""

    def __init__(self, collection: Collection, encoder: Encoder) -> None:
        self.collection, self.encoder = collection, encoder
        self.has_text = encoder.has_text

    def image(self, data: bytes, name: str = "image") -> Floats:
        return self._translate(encode_bytes(self.encoder, data, name)[None])

    def image_file(self, path: Path) -> Floats:
        return self.image(read_bytes(path), path.name)

    def text(self, words: str) -> Floats:
        return self._translate(self.encoder.encode_texts([words]))

    def _translate(self, features: Floats) -> Floats:
        query: Floats = self.collection.translate(features, self.encoder)[0]
        return query


def open_query_encoder(collection: Collection, encoder: str | None = None) -> CollectionEncoder:
    """Open the encoder that a collection remembers, or another one that is aligned to it."""
    name = encoder or (collection.encoder.name if collection.encoder else None)
    if name is None:
        raise InvalidInput("encoder: expected a name, since this collection was made from vectors and has no encoder")
    opened = open_encoder(name)
    collection.translate([[0.0] * opened.dim], opened)  # refuses one that is neither its own nor aligned
    return CollectionEncoder(collection, opened)
