"""Any history: the lexical index has exactly the words of the items, and ranks them as BM25 from its definition.

STILLHASH_LEXICAL is how many histories are run; 100 make a campaign.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

import stillhash
from stillhash import Collection
from stillhash.collection.storage.lexical import lexical_problems
from stillhash.errors import Conflict
from tests.collection.bm25 import bm25, text_of
from tests.collection.fixtures import BITS, DIM, INIT, some_rows

pytestmark = pytest.mark.filterwarnings("ignore::stillhash.errors.UnknownField")
HISTORIES = int(os.environ.get("STILLHASH_LEXICAL", "10"))
IDS = st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True)
TEXTS = st.lists(st.sampled_from(["red", "Red", "blüe", "green", "e-mail", "don't", "OR", "(", "x", "_"]), max_size=6)
METADATA = st.none() | st.fixed_dictionaries(
    {}, optional={"text": TEXTS.map(" ".join) | st.integers(0, 3) | st.none(), "n": st.integers(0, 2)}
)
NESTED = TEXTS.map(lambda words: {"title": {"text": " ".join(words)}})
FIELDS = st.sampled_from(["text", "text", "title.text", None])
WORDS = st.sampled_from(["red", "RED blue", '"e mail" x', '"red green" OR', "e-mail don't", "() _", "", "red red x é"])
WHERE = st.sampled_from([None, {"n": 1}, {"n": {"$in": [0, 2]}}, {"n": 9}])

Stored = tuple[int, dict[str, Any] | None]  # row and metadata


class LexicalHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="stillhash-"))
        self.path, self.copies = self.folder / "c", 0
        self.collection: Collection = stillhash.open(self.path, DIM, BITS, init_rows=INIT, lexical_field="text")
        self.field: str | None = "text"
        self.items: dict[int, Stored] = {}
        self.next_row = 0

    def teardown(self) -> None:
        self.collection.close()
        shutil.rmtree(self.folder)

    def _put(self, ids: list[int], metadata: list[Any], put: Callable[..., int]) -> None:
        put(ids, some_rows(len(ids)).X, None, metadata)
        for name, data in zip(ids, metadata, strict=True):
            self.items[name] = self.next_row, data
            self.next_row += 1

    @rule(ids=IDS, data=st.data())
    def add(self, ids: list[int], data: Any) -> None:
        metadata = data.draw(st.lists(METADATA | NESTED, min_size=len(ids), max_size=len(ids)))
        if self.items.keys() & set(ids):
            with pytest.raises(Conflict):
                self.collection.add(ids, some_rows(len(ids)).X, None, metadata)
        else:
            self._put(ids, metadata, self.collection.add)

    @rule(ids=IDS, data=st.data())
    def upsert(self, ids: list[int], data: Any) -> None:
        self._put(ids, data.draw(st.lists(METADATA, min_size=len(ids), max_size=len(ids))), self.collection.upsert)

    @rule(metadata=METADATA.filter(lambda data: data is not None) | NESTED, where=WHERE)
    def update(self, metadata: dict[str, Any], where: Any) -> None:
        self.collection.update_metadata(metadata=metadata, where=where or "all")
        for name in self._matching(where):
            row, before = self.items[name]
            merged = {**(before or {}), **metadata}
            self.items[name] = row, {key: value for key, value in merged.items() if value is not None}

    @rule(data=st.data())
    @precondition(lambda self: self.items)
    def replace_metadata(self, data: Any) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.items)), min_size=1, unique=True))
        metadata = data.draw(st.lists(METADATA | NESTED, min_size=len(ids), max_size=len(ids)))
        self.collection.upsert(ids, metadata=metadata)
        for name, entry in zip(ids, metadata, strict=True):
            self.items[name] = self.items[name][0], entry

    @rule(ids=IDS, forget=st.booleans())
    def delete(self, ids: list[int], forget: bool) -> None:
        (self.collection.forget if forget else self.collection.delete)(ids)
        self.items = {name: stored for name, stored in self.items.items() if name not in ids}

    @rule(where=WHERE.filter(bool))
    def delete_matching(self, where: dict[str, Any]) -> None:
        gone = self._matching(where)
        self.collection.delete(where=where)
        self.items = {name: stored for name, stored in self.items.items() if name not in gone}

    @rule(field=FIELDS)
    def set_field(self, field: str | None) -> None:
        self.field = field
        assert self.collection.set_lexical_field(field) == len(self._texts())

    @rule(step=st.sampled_from(["compact", "seal", "repair", "reopen", "snapshot"]))
    def maintain(self, step: str) -> None:
        self.copies += 1
        copy = self.folder / f"{self.copies}"
        if step in ("reopen", "snapshot"):
            if step == "snapshot":
                self.collection.snapshot(copy)
                self.path = copy
            path = self.collection._store.path if step == "reopen" else copy
            self.collection.close()
            self.collection = stillhash.open(path)
        else:
            getattr(self.collection, step)()

    @rule(words=WORDS, where=WHERE, k=st.sampled_from([1, 3, 20]))
    def search(self, words: str, where: Any, k: int) -> None:
        if self.field is None:
            with pytest.raises(Conflict):
                self.collection.lexical_search(words)
            return
        rows, matching = {row: name for name, (row, _) in self.items.items()}, self._matching(where)
        expected = [(rows[row], score) for row, score in bm25(self._texts(), words) if rows[row] in matching][:k]
        hits = self.collection.lexical_search(words, k, where=where).hits
        assert [hit.id for hit in hits] == [name for name, _ in expected]
        np.testing.assert_allclose([hit.score for hit in hits], [score for _, score in expected], rtol=1e-9)
        assert all(hit.metadata == self.items[hit.id][1] for hit in hits)

    @invariant()
    def the_index_has_the_words_of_the_items(self) -> None:
        with self.collection._store.reading() as connection:
            assert lexical_problems(connection) == []
        assert self.collection.lexical_field == self.field

    def _texts(self) -> dict[int, str]:
        texts = {} if self.field is None else {r: text_of(data, self.field) for r, data in self.items.values()}
        return {row: text for row, text in texts.items() if text is not None}

    def _matching(self, where: dict[str, Any] | None) -> set[int]:
        if where is None:
            return set(self.items)
        values = where["n"]["$in"] if isinstance(where["n"], dict) else [where["n"]]
        return {name for name, (_, data) in self.items.items() if data and data.get("n") in values}


@pytest.mark.medium
def test_any_history_equals_the_definition() -> None:
    run_state_machine_as_test(
        LexicalHistory,
        settings=settings(max_examples=HISTORIES, stateful_step_count=20, deadline=None, phases=[Phase.generate]),
    )
