"""The durable, growing index: `open` a folder, add items, search, and let the similarity learn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stillhash.collection.collection import Collection
from stillhash.collection.encoder_alignment import EncoderIdentity, EncoderInfo, check_encoder, identify
from stillhash.collection.storage.repair import RepairReport, repair
from stillhash.collection.storage.store import Store
from stillhash.collection.types import Answer, Hit, Item, check_labels, check_path
from stillhash.errors import Conflict, InvalidInput, StoreFailed
from stillhash.hashers import DEFAULT_HASHER, METHODS
from stillhash.numeric.validation import check_bits, check_features, check_integer, check_number
from stillhash.search import Index

LEAST_INIT = 300


def open(
    path: str | Path,
    dim: int | None = None,
    bits: int | None = None,
    *,
    method: str = DEFAULT_HASHER.name,
    params: dict[str, Any] | None = None,
    encoder: EncoderInfo | None = None,
    init: Any = None,
    init_rows: int = 3000,
    learn_rows: int = 1000,
    keep_versions: int = 32,
    source_cap: float = 1000.0,
    read_only: bool = False,
    searcher: Callable[[int], Any] = Index,
) -> Collection:
    """Opens a collection, or makes a new one if `dim` is given and there is none.

    dim, bits : length of the features, and of the codes (64 if not given). For a collection that is there they may be
        left out, and must be its own otherwise. All that follows counts for new ones only.
    method, params : the hasher, by its name in METHODS; one whose codes never go stale.
    encoder : what makes the features; a new collection remembers its name and fingerprint, and has its dim. One that is
        there must have been made with it, or have a bridge from it.
    init : a sample to fit the hash functions on at once: features (n, D), or a pair of features and labels.
    init_rows : rows that the hash functions are fitted on, at least 300; until then search ranks by cosine.
    learn_rows : labelled rows that make a step of learning, and a version.
    keep_versions : versions that can be rolled back to.
    source_cap : thumbs that one source of feedback counts for at most, however many it gives.
    read_only : search beside a process that writes.
    searcher : makes what searches codes of so many bits; `stillhash.cluster.HybridIndexFactory` does so on a cluster.
    """
    path = check_path(path)
    made_by = None if encoder is None else identify(encoder)
    if made_by is not None:
        dim = _agreed(dim, made_by, path)
    if not (path / "store.db").is_file() and dim is not None and not read_only:
        settings = {
            "dim": check_integer(dim, "dim", 1),
            "bits": check_bits(64 if bits is None else bits),
            "method": _still(method),
            "params": _told({} if params is None else params, method),
            "init_rows": check_integer(init_rows, "init_rows", LEAST_INIT),
            "learn_rows": check_integer(learn_rows, "learn_rows", 1),
            "keep_versions": check_integer(keep_versions, "keep_versions", 2),
            "source_cap": check_number(source_cap, "source_cap", above=0),
            "encoder": None if made_by is None else made_by._asdict(),
        }
        sample = init if isinstance(init, tuple) else (init,)
        if not 1 <= len(sample) <= 2:
            raise InvalidInput(f"init has {len(sample)} parts; features, or features and labels, are wanted")
        if init is not None:
            X = check_features(sample[0], "init", columns=dim, whose="this collection", least=2)
            check_labels(sample[1] if len(sample) == 2 else None, len(X))
        try:
            collection = Collection(Store.create(path, settings), searcher)
        except OSError as error:
            raise StoreFailed(f"path is {str(path)!r}; a collection cannot be made there: {error}") from error
        if init is not None:
            collection.fit(*sample)
        return collection
    store = Store(path, writer=not read_only)
    if made_by is not None:
        try:
            with store.reading() as connection:
                check_encoder(store, connection, made_by)
        except BaseException:
            store.close()
            raise
    for name, wanted in (("dim", dim), ("bits", bits)):
        if wanted is not None and wanted != store.settings[name]:
            store.close()
            raise Conflict(f"{name} is {wanted}, but the collection {path.name} has {store.settings[name]}")
    return Collection(store, searcher)


def _agreed(dim: int | None, encoder: EncoderIdentity, path: Path) -> int | None:
    """The length of the features that an encoder makes, if a collection is to be made; else it is the collection's."""
    if dim is not None and dim != encoder.dim:
        raise InvalidInput(f"dim is {dim}, but {encoder.name} makes features of {encoder.dim}")
    return None if (path / "store.db").is_file() else encoder.dim


def _still(method: str) -> str:
    if not isinstance(method, str) or method not in METHODS or not METHODS[method].fixed_codes:
        fit = ", ".join(name for name, known in METHODS.items() if known.fixed_codes)
        raise InvalidInput(f"method is {method!r}; codes must never go stale, as with {fit}")
    return method


def _told(params: dict[str, Any], method: str) -> dict[str, Any]:
    """The parameters as the store holds them."""
    known = METHODS[method].parameters()
    if not isinstance(params, dict):
        raise InvalidInput(f"params is {params!r}; a dictionary is wanted")
    for name in params:
        if name not in known or name == "bits":
            raise InvalidInput(f"params holds {name!r}; {method} has {', '.join(known)}")
    hasher = METHODS[method](**params)
    hasher.check_parameters()
    try:
        told = json.loads(json.dumps(hasher.params_to_json()))
    except TypeError as error:
        raise InvalidInput(f"params holds what JSON cannot: {error}") from None
    return {name: told[name] for name in params}


__all__ = ["Answer", "Collection", "Hit", "Item", "RepairReport", "open", "repair"]
