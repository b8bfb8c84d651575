"""Progress of verify, snapshot and export: the share never falls and ends at 1; an error of the caller ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash import Collection
from stillhash.collection.storage import verify_pages
from stillhash.collection.transfer import snapshot
from tests.collection.fixtures import BITS, DIM, INIT, some_rows

Verb = Callable[[Collection, Path, Any], Any]
VERBS: dict[str, Verb] = {
    "verify": lambda c, to, progress: c.verify(progress=progress),
    "snapshot": lambda c, to, progress: c.snapshot(to / "copy", progress=progress),
    "export": lambda c, to, progress: c.export(
        to / "copy.jsonl", progress=None if progress is None else lambda done, total: progress(done / total)
    ),
}


@pytest.fixture
def collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collection]:
    """A collection with several segments, files of features, words, and a database of many parts."""
    monkeypatch.setattr(snapshot, "COPIED_BYTES", verify_pages.PAGE_SIZE)
    monkeypatch.setattr(snapshot, "STEPS_BETWEEN_REPORTS", 1000)
    options: dict[str, Any] = {"init_rows": INIT, "learn_rows": 500, "keep_features": True, "lexical_field": "words"}
    collection = stillhash.open(tmp_path / "c", DIM, BITS, **options)
    collection.add(list(range(400)), *some_rows(400))
    collection.seal()
    X, labels, _ = some_rows(2000, seed=3)
    words = [{"words": f"item {n} of a long list"} for n in range(2000)]
    collection.add([f"t{n}" for n in range(2000)], X, labels, words)
    collection.seal()
    collection.upsert(["x"], *some_rows(1, seed=4))
    with collection:
        yield collection


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("verb", VERBS)
def test_shares_ascend_to_1(collection: Collection, tmp_path: Path, verb: str, read_only: bool) -> None:
    shares: list[float] = []
    (tmp_path / "to").mkdir()
    if read_only:
        with stillhash.open(tmp_path / "c", read_only=True) as reader:
            VERBS[verb](reader, tmp_path / "to", shares.append)
    else:
        VERBS[verb](collection, tmp_path / "to", shares.append)
    assert shares == sorted(shares) and shares[-1] == 1 and shares[0] >= 0
    if verb != "export":  # which reports a batch of items at a time
        assert len(set(shares)) > 5 and sum(0.05 < share < 0.95 for share in shares) > 3


def test_verify_reports_the_same_problems(collection: Collection, tmp_path: Path) -> None:
    file = max((tmp_path / "c" / "segments").glob("*.tiles"))
    data = bytearray(file.read_bytes())
    data[5000] ^= 1
    file.write_bytes(data)
    shares: list[float] = []
    problems = collection.verify(progress=shares.append)
    assert problems == collection.verify() and len(problems) == 1 and file.name in problems[0]
    assert shares[-1] == 1


@pytest.mark.medium
@pytest.mark.parametrize("error", [KeyError, OSError, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("verb", VERBS)
def test_an_error_of_progress_ends_it_and_leaves_nothing(
    collection: Collection, tmp_path: Path, verb: str, error: type[BaseException]
) -> None:
    to, shares = tmp_path / "to", list[float]()
    to.mkdir()
    VERBS[verb](collection, tmp_path, shares.append)
    expected, before = VERBS[verb](collection, to, None), collection.stats()
    copy = next(to.iterdir(), None)
    if copy is not None:
        copy.rename(tmp_path / "complete")
    for stop in sorted({0, len(shares) // 7, len(shares) // 2, len(shares) - 1}):
        calls = iter(range(stop))

        def cancel(share: float, calls: Iterator[int] = calls) -> None:
            if next(calls, None) is None:
                raise error("cancelled")

        with pytest.raises(error, match="cancelled"):
            VERBS[verb](collection, to, cancel)
        assert list(to.iterdir()) == []
    assert collection.stats() == before
    if verb == "verify":
        assert collection.verify() == [] == expected
