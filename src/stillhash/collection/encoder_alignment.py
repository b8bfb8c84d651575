"""Which encoder made the features, and bridges from others.

Features of two encoders have nothing in common, so a collection remembers what made its own and refuses the rest. A
bridge takes the features of another encoder into its space: then old codes go on serving, and nothing is encoded anew.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, Protocol

import numpy as np
import safetensors
import safetensors.numpy

from stillhash.collection.storage.integrity import Connection
from stillhash.collection.storage.store import Store
from stillhash.errors import BadState, Conflict, InvalidInput
from stillhash.numeric.alignment import Bridge, build_bridge
from stillhash.numeric.validation import Floats, check_features, check_integer

LEAST = 20  # pairs; a few hundred are better
SHORT = 12  # characters of a fingerprint that a message shows


class EncoderInfo(Protocol):
    """What a collection wants to know of an encoder."""

    @property
    def name(self) -> str: ...
    @property
    def dim(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...


class Origin(NamedTuple):
    """An encoder, as a collection remembers it."""

    name: str
    fingerprint: str
    dim: int


def origin(encoder: EncoderInfo) -> Origin:
    told = Origin(encoder.name, encoder.fingerprint, check_integer(encoder.dim, "encoder.dim", 1))
    if not all(isinstance(text, str) and text and text.isprintable() for text in told[:2]):
        raise InvalidInput(f"encoder has name {told.name!r} and fingerprint {told.fingerprint!r}; texts are wanted")
    return told


def remembered(store: Store) -> Origin | None:
    """The encoder of this collection; None if it takes ready vectors."""
    told = store.settings.get("encoder")
    return None if told is None else Origin(**told)


def check_origin(store: Store, connection: Connection, theirs: Origin) -> bool:
    """Whether features of an encoder are of this collection's own space; refuses those that no bridge takes there."""
    ours = remembered(store)
    if ours is not None and theirs.fingerprint == ours.fingerprint:
        return True
    if store.meta(connection, _key(theirs)) is not None:
        return False
    made = "ready vectors" if ours is None else f"{ours.name} ({ours.fingerprint[:SHORT]})"
    raise Conflict(
        f"encoder is {theirs.name} ({theirs.fingerprint[:SHORT]}), but {store.path.name} was made with {made}, whose "
        "features have another meaning; bridge fits one to the other by images described with both"
    )


def build(store: Store, connection: Connection, theirs: Origin, pairs: tuple[Any, Any]) -> dict[str, Any]:
    """Fits a bridge from another encoder, in the place of an earlier one, and says how good it is."""
    ours = remembered(store)
    if ours is not None and theirs.fingerprint == ours.fingerprint:
        raise InvalidInput(f"encoder is {theirs.name}, which this collection was made with; there is nothing to bridge")
    X = check_features(pairs[0], "theirs", columns=theirs.dim, whose="that encoder", least=LEAST)
    Y = check_features(pairs[1], "ours", columns=store.settings["dim"], whose="this collection", least=LEAST)
    if len(X) != len(Y):
        raise InvalidInput(f"theirs has {len(X)} rows, ours has {len(Y)}; the same things in both are wanted")
    bridge, explained = build_bridge(X, Y)
    about = {"name": theirs.name, "dim": theirs.dim, "pairs": len(X), "explained": explained}
    data = safetensors.numpy.save(dict(bridge._asdict()), {"bridge": json.dumps(about)})
    store.set_meta(connection, _key(theirs), data)
    return about


def crossed(store: Store, connection: Connection, theirs: Origin, features: Any) -> Floats:
    """Features of an encoder, in this collection's space: by a bridge, or as they are if they are its own."""
    X = check_features(features, "features", columns=theirs.dim, whose="that encoder")
    if check_origin(store, connection, theirs):
        return X
    try:
        arrays = safetensors.numpy.load(store.meta(connection, _key(theirs)))
        return np.ascontiguousarray(Bridge(**arrays).cross(X))
    except (safetensors.SafetensorError, TypeError) as error:
        raise BadState(f"the bridge from {theirs.name} cannot be read: {error}") from error


def bridges(connection: Connection) -> list[dict[str, Any]]:
    """The bridges that there are."""
    found = connection.execute("SELECT key, value FROM meta WHERE key LIKE 'bridge %' ORDER BY key").fetchall()
    told = []
    for key, data in found:
        size = int.from_bytes(data[:8], "little")
        told.append({"fingerprint": key[7:], **json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["bridge"])})
    return told


def _key(encoder: Origin) -> str:
    return f"bridge {encoder.fingerprint}"
