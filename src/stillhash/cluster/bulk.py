"""From parts to a collection: all of them at once, under hash functions that are the same and a hasher that may have
learnt meanwhile."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import stillhash.collection as collections
from stillhash.cluster.encoding import still_functions
from stillhash.cluster.manifest import Plan, read_plan
from stillhash.cluster.part_files import read_part
from stillhash.collection import Collection
from stillhash.collection.bulk_load import Batch, bulk_load, is_loaded
from stillhash.collection.encoder_alignment import EncoderIdentity
from stillhash.collection.types import check_path
from stillhash.errors import BadState, Conflict
from stillhash.hashers import Hasher
from stillhash.numeric.validation import check_integer, check_number


def publish(
    out: str | Path,
    path: str | Path,
    hasher: Hasher,
    *,
    learnt: int = 0,
    init_rows: int = 3000,
    learn_rows: int = 1000,
    keep_versions: int = 32,
    source_cap: float = 1000.0,
) -> Collection:
    """Makes a collection of the parts that `encode_dataset` left in `out`: it is there with all its items, or not.

    Its codes are the very files in `out` wherever they can be linked, and `out` is needed no more. Its first version is
    what the hasher has learnt, from `learnt` rows; the other settings are those of `stillhash.open`. Once it was done,
    doing it again opens the collection that is there.
    """
    out, path = check_path(out), check_path(path)
    settings = {
        "init_rows": check_integer(init_rows, "init_rows", 1),
        "learn_rows": check_integer(learn_rows, "learn_rows", 1),
        "keep_versions": check_integer(keep_versions, "keep_versions", 2),
        "source_cap": check_number(source_cap, "source_cap", above=0),
    }
    plan = read_plan(out)
    fingerprint = hashlib.sha256(still_functions(hasher).state()).hexdigest()
    if fingerprint != plan.about["functions"]:
        raise Conflict(f"hasher has other hash functions than made the codes in {out.name}: their fingerprint differs")
    source = hashlib.sha256(plan.text() + hasher.state()).hexdigest()
    if not is_loaded(path, source):
        encoder = EncoderIdentity(**plan.about["origin"]) if "origin" in plan.about else None
        rows = check_integer(learnt, "learnt", 0)
        bulk_load(path, hasher, _batches(out, plan), source=source, learnt=rows, encoder=encoder, settings=settings)
    return collections.open(path)


def _batches(out: Path, plan: Plan) -> Iterator[Batch]:
    for number, (first, _) in enumerate(plan.parts):
        try:
            segment, items = read_part(out, number, first, plan.about["bits"])
        except BadState as error:
            raise BadState(
                f"part {number} of {len(plan.parts)} in {out.name} is not there, or not whole; encode_dataset goes on "
                f"with what is missing: {error}"
            ) from error
        yield Batch(segment, items.ids, items.labels, items.metadata, items.pictures)
