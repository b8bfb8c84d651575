"""Queries that are images or words: described by an encoder, in the space of a collection."""

from __future__ import annotations

from stillhash.collection import Collection
from stillhash.encoders import Encoder, open_encoder
from stillhash.encoders.files import encode_bytes
from stillhash.errors import InvalidInput
from stillhash.numeric.validation import Floats


class Describer:
    """Features (D,) of images and of texts, as a collection takes them: its own encoder's, or over a bridge."""

    def __init__(self, collection: Collection, encoder: Encoder) -> None:
        self.collection, self.encoder = collection, encoder
        self.has_text = encoder.has_text

    def image(self, data: bytes, name: str = "image") -> Floats:
        return self._there(encode_bytes(self.encoder, data, name)[None])

    def text(self, words: str) -> Floats:
        return self._there(self.encoder.encode_texts([words]))

    def _there(self, features: Floats) -> Floats:
        (row,) = self.collection.translate(features, self.encoder)
        found: Floats = row
        return found


def describer(collection: Collection, encoder: str | None = None) -> Describer:
    """By the encoder that a collection remembers, or by another that it has a bridge from."""
    name = encoder or (collection.encoder.name if collection.encoder else None)
    if name is None:
        raise InvalidInput("this collection was made from ready vectors; no encoder is known that images could go to")
    opened = open_encoder(name)
    found = Describer(collection, opened)
    collection.translate([[0.0] * opened.dim], opened)  # refuses one that is neither its own nor bridged
    return found
