"""Encode texts to queries of a collection, and align another encoder of texts to it."""

import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from stillhash.collection import Collection
from stillhash.encoders import Encoder, open_encoder
from stillhash.errors import InvalidInput
from stillhash.numeric.validation import Floats

ALIGN_BATCH = 250  # items read at a time
MAX_SAMPLED_IDS = 100_000


class TextQueryEncoder:
    """Encode texts to features (D,) of a collection, by its own encoder or by one that is aligned to it."""

    has_text, has_images = True, False

    def __init__(self, collection: Collection, encoder: Encoder) -> None:
        self.collection, self.encoder = collection, encoder

    def text(self, words: str) -> Floats:
        """Return the features of a text."""
        return np.asarray(self.collection.translate(self.encoder.encode_texts([words]), self.encoder)[0])

    def image(self, data: bytes, name: str = "image") -> Floats:
        """Refuse an image: the encoder is for texts."""
        raise InvalidInput(f"query: expected a text, since {self.encoder.name!r} encodes texts, got {name!r}")

    def image_file(self, path: Path) -> Floats:
        """Refuse an image, as `image` does."""
        return self.image(b"", path.name)


def open_query_encoder(collection: Collection, encoder: str | None = None) -> TextQueryEncoder:
    """Open the encoder that a collection of texts remembers, or another one that is aligned to it."""
    name = encoder or (collection.encoder.name if collection.encoder else None)
    if name is None:
        raise InvalidInput("encoder: expected a name, since this collection was made from vectors and has no encoder")
    opened = open_encoder(name)
    if not opened.has_text:
        raise InvalidInput(f"encoder: expected one of texts, got {name!r}")
    collection.translate([[0.0] * opened.dim], opened)  # refuses one that is neither its own nor aligned
    return TextQueryEncoder(collection, opened)


def align_texts(collection: Collection, encoder: str, max_texts: int = 1000) -> dict[str, Any]:
    """Encode texts of the collection's items with a new encoder and with its own, and align the new one."""
    if collection.encoder is None:
        raise InvalidInput("encoder: expected features of both encoders, since this collection was made from vectors")
    ids, texts = collection.ids(limit=MAX_SAMPLED_IDS), list[str]()
    sample = iter(random.Random(0).sample(ids, len(ids)))
    while len(texts) < max_texts and (some := list(islice(sample, ALIGN_BATCH))):  # some items may have no text
        metadata = [item.metadata or {} for item in collection.get(some) if item is not None]
        texts += [each["text"] for each in metadata if isinstance(each.get("text"), str)]
    if not texts:
        raise InvalidInput("collection: expected items with a text in their metadata, got none")
    new, own = open_encoder(encoder), open_encoder(collection.encoder.name)
    return collection.align(new, *(each.encode_texts(texts[:max_texts]) for each in (new, own)))
