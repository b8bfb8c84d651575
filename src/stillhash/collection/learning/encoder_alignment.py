"""Which encoder computed the features of a collection, and linear maps from other encoders into its space.

Features of two encoders have nothing in common, so a collection records its encoder and refuses others. An alignment
maps the features of another encoder into the collection's space: the codes stay, and nothing is encoded again.
"""

import json
from sqlite3 import Connection
from typing import Any, NamedTuple, Protocol

import numpy as np
import safetensors
import safetensors.numpy

from stillhash.collection.search_view import ModelStore
from stillhash.collection.storage.schema import get_meta, meta_with_prefix, parse_json, set_meta
from stillhash.collection.storage.store import Store
from stillhash.errors import BadState, Conflict, InvalidInput
from stillhash.numeric.regression import Alignment, fit_alignment
from stillhash.numeric.validation import Floats, check_arrays, check_features, check_integer

MIN_PAIRS = 20  # fewer pairs are refused; a few hundred are better
ALIGNMENT_PREFIX = "alignment "  # keys in the table `meta` begin with it, and end with the fingerprint of the encoder


class EncoderInfo(Protocol):
    """What a collection needs to know of an encoder."""

    @property
    def name(self) -> str: ...
    @property
    def dim(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...


class EncoderIdentity(NamedTuple):
    """An encoder, as a collection records it."""

    name: str
    fingerprint: str
    dim: int

    def __str__(self) -> str:
        return f"{self.name} ({self.fingerprint[:12]})"


def identify(encoder: EncoderInfo) -> EncoderIdentity:
    """Validate and return what a collection records of an encoder."""
    identity = EncoderIdentity(encoder.name, encoder.fingerprint, check_integer(encoder.dim, "encoder.dim", 1))
    if not all(isinstance(text, str) and text and text.isprintable() for text in identity[:2]):
        raise InvalidInput(f"encoder: expected a printable name and fingerprint, got {identity[:2]!r}")
    return identity


def collection_encoder(store: ModelStore) -> EncoderIdentity | None:
    """Return the encoder of this collection; None if it takes vectors of any source."""
    encoder = store.settings.get("encoder")
    return None if encoder is None else EncoderIdentity(**encoder)


def check_encoder(store: ModelStore, connection: Connection, theirs: EncoderIdentity) -> bool:
    """Return whether an encoder is the collection's own; raise Conflict if it is neither that nor aligned."""
    ours = collection_encoder(store)
    if ours is not None and theirs.fingerprint == ours.fingerprint:
        return True
    if get_meta(connection, ALIGNMENT_PREFIX + theirs.fingerprint) is not None:
        return False
    expected = "an aligned encoder" if ours is None else f"{ours} or an aligned encoder"
    raise Conflict(f"encoder: expected {expected}, got {theirs}. Use align with images that both have encoded.")


def build_alignment(
    store: Store, connection: Connection, encoder: EncoderInfo, pairs: tuple[Any, Any]
) -> dict[str, Any]:
    """Fit and store an alignment from another encoder, replacing an earlier one; return its description."""
    theirs, ours = identify(encoder), collection_encoder(store)
    if ours is not None and theirs.fingerprint == ours.fingerprint:
        raise InvalidInput(f"encoder: expected another one than the collection's own, got {theirs}")
    X = check_features(pairs[0], "theirs", columns=theirs.dim, whose="that encoder", least=MIN_PAIRS)
    Y = check_features(pairs[1], "ours", columns=store.settings["dim"], whose="this collection", least=MIN_PAIRS)
    if len(X) != len(Y):
        raise InvalidInput(f"theirs: expected {len(Y)} rows, as many as ours, got {len(X)}")
    alignment, explained = fit_alignment(X, Y)
    description = {"name": theirs.name, "dim": theirs.dim, "pairs": len(X), "explained": explained}
    data = safetensors.numpy.save(dict(alignment._asdict()), {"alignment": json.dumps(description)})
    set_meta(connection, ALIGNMENT_PREFIX + theirs.fingerprint, data)
    return description


def align_features(store: ModelStore, connection: Connection, encoder: EncoderInfo, features: Any) -> Floats:
    """Map features of an encoder into this collection's space; return them as they are if they are its own."""
    theirs = identify(encoder)
    X = check_features(features, "features", columns=theirs.dim, whose="that encoder")
    if check_encoder(store, connection, theirs):
        return X
    try:
        arrays = safetensors.numpy.load(get_meta(connection, ALIGNMENT_PREFIX + theirs.fingerprint))
        axes = {"mean": "float32 theirs", "A": "float32 theirs ours", "offset": "float32 ours"}
        check_arrays(arrays, axes, {"theirs": theirs.dim, "ours": store.settings["dim"]})
        return np.ascontiguousarray(Alignment(**arrays).apply(X))
    except (safetensors.SafetensorError, KeyError, TypeError) as error:
        raise BadState(f"encoder: the alignment from {theirs} cannot be read: {error}") from error


def list_alignments(connection: Connection) -> list[dict[str, Any]]:
    """Describe the alignments of this collection."""
    alignments = []
    for fingerprint, data in meta_with_prefix(connection, ALIGNMENT_PREFIX).items():
        try:
            header = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")], dict, "alignment")
            description = parse_json(header["__metadata__"]["alignment"], dict, "alignment")
        except (TypeError, KeyError) as error:
            raise BadState(f"alignment: cannot be read: {error}") from error
        alignments.append({"fingerprint": fingerprint, **description})
    return alignments
