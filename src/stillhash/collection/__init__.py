"""The durable, growing index: `open` a folder, add items, search, and let the similarity learn."""

import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stillhash.collection.collection import Collection
from stillhash.collection.learning.encoder_alignment import EncoderIdentity, EncoderInfo, check_encoder, identify
from stillhash.collection.learning.trainer import MIN_INIT_ROWS, fix_identity
from stillhash.collection.maintenance.repair import RepairReport, repair
from stillhash.collection.settings import (
    check_codes_only,
    check_codes_see_labels,
    check_flag,
    check_params,
    check_rescore_bits,
)
from stillhash.collection.storage.audit import acting_as
from stillhash.collection.storage.lexical import check_new_field
from stillhash.collection.storage.store import Store
from stillhash.collection.transfer.table_import import ImportProgress
from stillhash.collection.types import (
    Answer,
    AuditEntry,
    DoubtfulItem,
    ForgetReport,
    Hit,
    Item,
    LabelSuggestion,
    Vote,
    VoteEntry,
)
from stillhash.collection.validation import check_filter_fields, check_path, check_rows
from stillhash.errors import Conflict, InvalidInput, StoreFailed, report_shortages
from stillhash.hashers import DEFAULT_HASHER, METHODS, check_fixed_codes
from stillhash.numeric.sufficient_stats import MIN_SIMILARITY_CODE
from stillhash.numeric.validation import check_bits, check_choice, check_integer, check_number
from stillhash.search import Index, searcher_for

DEFAULT_BITS = MIN_SIMILARITY_CODE


@report_shortages
def open(
    path: str | Path,
    dim: int | None = None,
    bits: int | None = None,
    *,
    method: str = DEFAULT_HASHER.name,
    params: dict[str, Any] | None = None,
    codes_see_labels: bool = True,
    codes_only: bool = False,
    encoder: EncoderInfo | None = None,
    init: Any = None,
    init_rows: int = 3000,
    learn_rows: int = 1000,
    keep_versions: int = 32,
    source_cap: float = 1000.0,
    filter_fields: Iterable[str] | None = None,
    lexical_field: str | None = None,
    keep_features: bool = False,
    rescore_bits: int | None = None,
    read_only: bool = False,
    searcher: Callable[[int], Any] = Index,
    device: str = "cpu",
    wait: float = 0.0,
) -> Collection:
    """Open a collection, or create one if there is none and `dim`, or `codes_only` with `bits`, is given.

    dim, bits : length of the features, and of the codes (128 by default). For an existing collection they may be left
        out, and must be its own otherwise. All that follows applies to new collections only.
    method, params : the hasher, by its name in METHODS; one with fixed codes.
    codes_see_labels : items that are added with labels get codes that hold them, and rank far better by labels. Exact
        repeats of an item are found at any length; near duplicates of it from 128 bits on, since shorter codes have too
        few bits left. Only some methods can, the default one too; for the others, and in `stats()` of their
        collections, it is False.
    codes_only : items are ready codes of `bits` bits, such as perceptual hashes or binary embeddings: all verbs take
        packed codes (uint8, see `stillhash.codes`), or hexadecimal texts, in place of features. Search ranks by Hamming
        distance until something is learnt.
    encoder : what computes the features; a new collection records its name and fingerprint, and has its dim. An
        existing one must have been created with it, or have an alignment from it.
    init : a sample to fit the hash functions on at once: features (n, D), or a pair of features and labels.
    init_rows : rows that the hash functions are fitted on, at least 300. They are fitted once there are so many, or
        from 300 on by all there are, once something is to be learnt: by `relabel`, `feedback`, `learn` or `flush`.
        Until then search ranks by cosine, votes count for their own query, and labels wait to be learnt.
    learn_rows : labelled rows of a step of learning; fewer wait for others. Where items have rescoring codes and the
        method is "tally", the first row is learnt at once, and later ones in steps that double until they are so many.
    keep_versions : versions that can be rolled back to.
    source_cap : votes that one source of feedback counts for at most.
    filter_fields : fields of the metadata that filters answer from memory; None: the first 64 that occur. Filters on
        others read all items.
    lexical_field : a field of the metadata whose words are indexed, for `lexical_search` and `hybrid_search`; it can be
        changed later by `set_lexical_field`.
    keep_features : store the features of items too, as float16, which they are rounded to, so that `reconstruct`
        returns them. It takes 2 bytes per feature on disk, and learning takes about half as long again.
    rescore_bits : store a rescoring code of each item, of 1, 2, 4 or 8 bits per feature, by which the first hits can be
        scored again; 0: none. The default is 2, of at most 512 features 4, and 0 with `codes_only` or where `unit_norm`
        is off. For an existing collection it must be its own.
    read_only : search beside a process that writes.
    searcher : returns an index for codes of so many bits, in place of `Index`.
    device : where codes are searched, if not by a searcher: "cpu", "cuda", "cuda:1", or "auto", a GPU if there is one.
    wait : seconds for another process that writes to an existing collection to end; then this one takes over. Conflict
        if it does not; infinity waits for as long as it takes.
    """
    if wait != math.inf:
        check_number(wait, "wait", low=0)
    if device != "cpu":
        if searcher is not Index:
            raise InvalidInput(f"device: expected cpu with a searcher of your own, got {device!r:.100}")
        searcher = searcher_for(device)
    path = check_path(path)
    identity = None if encoder is None else identify(encoder)
    exists = (path / "store.db").is_file()
    if identity is not None:
        if dim is not None and dim != identity.dim:
            raise InvalidInput(f"dim: expected {identity.dim}, the dim of {identity.name}, got {dim}")
        dim = None if exists else identity.dim
    codes_only = check_flag(codes_only)
    if exists or read_only or (dim is None and not codes_only):
        return Collection(_open_store(path, dim, bits, rescore_bits, identity, read_only, codes_only, wait), searcher)
    check_choice(keep_features, "keep_features", choices=(True, False))
    settings: dict[str, Any] = {
        "dim": 0 if dim is None else check_integer(dim, "dim", 1),
        "bits": check_bits(DEFAULT_BITS if bits is None else bits),
        "method": check_fixed_codes(method),
        "params": check_params(_with_precision(params, method, keep_features), method),
        "codes_see_labels": check_codes_see_labels(codes_see_labels, method),
        "init_rows": check_integer(init_rows, "init_rows", MIN_INIT_ROWS),
        "learn_rows": check_integer(learn_rows, "learn_rows", 1),
        "keep_versions": check_integer(keep_versions, "keep_versions", 2),
        "source_cap": check_number(source_cap, "source_cap", above=0),
        "filter_fields": check_filter_fields(filter_fields),
        "lexical_field": check_new_field(lexical_field),
        "keep_features": bool(keep_features),
        "encoder": None if identity is None else identity._asdict(),
    }
    if codes_only:
        settings = check_codes_only(settings, dim, bits, init)
    settings["rescore_bits"] = check_rescore_bits(rescore_bits, settings)
    sample = init if isinstance(init, tuple) else (init,)
    if not 1 <= len(sample) <= 2:
        raise InvalidInput(f"init: expected features, or features and labels, got {len(sample)} parts")
    if init is not None:
        check_rows(sample[0], sample[1] if len(sample) == 2 else None, settings["dim"], "init", least=2)
    try:
        store = Store.create(path, settings)
    except OSError as error:
        raise StoreFailed(f"path: a collection cannot be created at {str(path)!r}: {error}") from error
    if codes_only:
        with ExitStack() as on_error:
            on_error.callback(store.close)
            fix_identity(store)
            on_error.pop_all()
    collection = Collection(store, searcher)
    if init is not None:
        collection.fit(*sample)
    return collection


def _with_precision(params: dict[str, Any] | None, method: str, keep_features: bool) -> Any:
    """Return parameters by which learning can be undone exactly, where the features for that are kept."""
    if keep_features and "double_sums" in METHODS[method].parameters() and isinstance(params, dict | None):
        return {"double_sums": True, **(params or {})}
    return {} if params is None else params


def _open_store(
    path: Path,
    dim: int | None,
    bits: int | None,
    rescore_bits: int | None,
    encoder: EncoderIdentity | None,
    read_only: bool,
    codes_only: bool,
    wait: float,
) -> Store:
    """Open an existing store, if these are its own."""
    with ExitStack() as on_error:
        store = Store(path, writer=not read_only, wait=wait)
        on_error.callback(store.close)
        if encoder is not None:
            with store.reading() as connection:
                check_encoder(store, connection, encoder)
        for name, value in (("dim", dim), ("bits", bits), ("rescore_bits", rescore_bits)):
            if value is not None and value != store.settings[name]:
                raise Conflict(f"{name}: expected {store.settings[name]}, as {path.name} has, got {value}")
        if codes_only and not store.settings["codes_only"]:
            raise Conflict(f"codes_only: expected False, as {path.name} has features, got True")
        if store.settings["codes_only"] and not read_only:
            fix_identity(store)
        on_error.pop_all()
    return store


__all__ = [
    "Answer",
    "AuditEntry",
    "Collection",
    "DoubtfulItem",
    "ForgetReport",
    "Hit",
    "ImportProgress",
    "Item",
    "LabelSuggestion",
    "RepairReport",
    "Vote",
    "VoteEntry",
    "acting_as",
    "open",
    "repair",
]
