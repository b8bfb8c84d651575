"""The contract of a collection, however it is reached: the results and the errors of a local one.

Imported by tests/collection and tests/client. The importing module supplies the fixture `subject`: an empty
collection of DIM, BITS, INIT and LEARN, with the verbs of `Collection`. To cover a new verb, add calls of it to LIFE
and to REFUSED.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

import stillhash
from stillhash import Collection, Vote
from stillhash.errors import InvalidInput, StillhashError, WrongType
from tests.collection.fixtures import BITS, DIM, INIT, LEARN, some_rows
from tests.support.toys import toy

QUERIES = toy(5, DIM, 4, seed=77).X
MANY_VOTES: list[Any] = [Vote(QUERIES[2], 5, "up", "me", 3), {"query_id": 5, "id": 6, "vote": -0.5}]
X, LABELS, METADATA = some_rows(3, seed=50)
GIF = b"GIF89a and more"
BAD = X.copy()
BAD[1, 2] = np.nan

LOCAL_ONLY = {  # verbs of Collection that a client has not, and why
    "add_table": "reads a table here; `stillhash.io.table_chunks` has its rows, for `add`",
    "align": "needs both encoders, which the operator has",
    "alignments": "goes with `align`",
    "check_file": "goes with `import_file`",
    "codes": "`list_coded_items` has them, with their items",
    "duplicates": "takes minutes where there are millions of items; `POST /duplicates` starts a task",
    "encoder": "an attribute; `stats` has its name",
    "export": "writes a file here; over HTTP `GET .../export` streams items",
    "has_picture": "asks for many at once what `picture` says of one",
    "import_file": "reads a file here, and goes on by what the store notes of it; `ingest` takes rows of files",
    "learning_events": "follows from `audit`, which a client has",
    "lexical_field": "an attribute; `stats` has it",
    "path": "an attribute, of files here",
    "read_only": "an attribute, of a process",
    "repair": "upkeep of files, while no server has them open",
    "seal": "upkeep of files, which the operator does",
    "set_lexical_field": "reads all items; the operator does it by `stillhash lexical`",
    "translate": "goes with `align`",
    "warn_unknown_fields": "of warnings in this process",
    "weigh": "for codes that are searched elsewhere; goes with `codes`",
}
CLIENT_ONLY = {  # verbs of clients that Collection has not, and why
    "add_shard": "of the server's cluster",
    "cluster": "of the server's cluster",
    "drain": "of the server's cluster",
    "undrain": "of the server's cluster",
    "remove_shard": "of the server's cluster",
    "rebalance": "of the server's cluster",
    "compact_shards": "of the server's cluster",
    "ready": "of the server",
    "collection": "the name of the collection that is served",
    "collections": "of the server",
    "create_collection": "of the server; locally it is `stillhash.open`",
    "delete_collection": "of the server",
    "encode": "by the server's encoder",
    "health": "of the server",
    "ingest": "a stream; `add` takes iterables as large as memory",
    "dim": "an attribute of instances",
    "bits": "an attribute of instances",
}
OTHER_RESULTS = {  # shared verbs whose results differ by nature, and where they are tested
    "close": "ends the test",
    "snapshot": "over HTTP the server names it: tests/client/test_client.py",
}


def public_names(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def shared_verbs() -> set[str]:
    return public_names(Collection) - LOCAL_ONLY.keys() - OTHER_RESULTS.keys()


class CalledNames:
    """A collection that remembers which of its attributes were used."""

    def __init__(self, collection: Any) -> None:
        self.collection, self.names = collection, set[str]()

    def __len__(self) -> int:
        return len(self.collection)

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(self.collection, name)


@pytest.fixture
def reference(tmp_path: Path) -> Iterator[Collection]:
    """A local collection, of which the subject must not differ."""
    with stillhash.open(
        tmp_path / "reference", DIM, BITS, init_rows=INIT, learn_rows=LEARN, lexical_field="text"
    ) as collection:
        yield collection


SIZES: dict[str, Any] = {"disk_bytes": 0, "index_bytes": 0, "filter_columns": None}


def outcome(call: Callable[[Any], Any], at: Any) -> Any:
    """Return the result of a call, or the class of its error and the argument that its message names."""
    try:
        return call(at)
    except StillhashError as error:
        return type(error), re.match(r"\w*", str(error))[0]  # type: ignore[index]


def same(actual: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray):
        return (
            actual.dtype == expected.dtype and actual.shape == expected.shape and actual.tobytes() == expected.tobytes()
        )
    if isinstance(expected, dict) and "disk_bytes" in expected:  # which may differ for the same content
        return {**actual, **SIZES} == {**expected, **SIZES}
    if isinstance(expected, list) and expected and isinstance(expected[0], dict) and "created" in expected[0]:
        return [{**one, "created": 0} for one in actual] == [{**one, "created": 0} for one in expected]
    return bool(actual == expected) and repr(actual) == repr(
        expected
    )  # which also distinguishes 1 from 1.0 and -0.0 from 0.0


class Colour(Enum):
    RED = "red"


FIRST, MORE = some_rows(250, seed=1), some_rows(200, seed=2)
ODD = {"ä": ['"\\\n', None, True, 1e-300, 1e22, -0.0, 0.1, 10**30, {"": []}], "n": 2**63}
HYBRID_OPTIONS: dict[str, Any] = {"where": {"odd": True}, "version": 0, "balance": 0.5, "depth": 3, "word_weight": 2.0}
TEXTS = [{"text": text} for text in ("Red wine", "a red, red car", "é")]
Verb = tuple[str, Callable[[Any], Any]]


def listed(page: Any) -> list[Any]:
    """Return items, and the shape and the bytes of their codes."""
    items, codes = page
    return [items, codes.shape, codes.tobytes()]


LIFE: list[Verb] = [
    ("empty", lambda c: (c.count(), len(c), c.get([1]), c.versions(), c.quality(), c.stats(), c.verify())),
    ("no version yet", lambda c: c.search(QUERIES[0], version=1)),
    ("search nothing", lambda c: c.search(QUERIES)),
    ("reconstruct nothing", lambda c: c.reconstruct([])),
    ("add", lambda c: c.add(list(range(250)), *FIRST)),
    ("by cosine", lambda c: c.search(QUERIES, 20)),
    (
        "facets",
        lambda c: (c.facets(), c.facets({"odd": True}, fields=["n"], limit=3), c.suggest("a"), c.suggest("1", 3)),
    ),
    ("count some", lambda c: (c.count({"odd": True}), c.count({"labels": "a"}), c.count({}))),
    ("list some", lambda c: (c.ids(limit=5), c.ids({"odd": True}, after=20, limit=7), c.ids({"n": 2**63}))),
    ("list wrongly", lambda c: c.ids({"a": {}})),
    ("list items", lambda c: (c.list_items(limit=5), c.list_items(after=10**6))),
    ("iterate over items", lambda c: list(c.items({"odd": True}, after=20, batch=7))),
    ("list items that wait", lambda c: c.list_coded_items({"odd": True})),
    ("list items wrongly", lambda c: c.list_items({"a": {}})),
    ("list no items", lambda c: list(c.items(limit=0))),
    ("reconstruct what waits", lambda c: c.reconstruct([5, 3, 200])),
    ("learn too early", lambda c: c.learn(X, LABELS)),
    ("range too early", lambda c: c.range_search(X[0], 0.0)),
    ("early feedback", lambda c: c.feedback(X[0], 1, True)),
    ("odd metadata", lambda c: c.add(["ö", -5], X[:2], [["a", 3, 0.5], ["b"]], [ODD, {}])),
    ("get", lambda c: c.get(["ö", -5, 7, 999, 7])),
    ("fit labels alone", lambda c: c.fit(labels=LABELS)),
    ("fit", lambda c: c.fit()),
    ("fit again", lambda c: c.fit(X, LABELS)),
    ("stats after fit", lambda c: c.stats()),
    ("search", lambda c: c.search(QUERIES, 30)),
    ("items with codes", lambda c: listed(c.list_coded_items(limit=50))),
    ("no items with codes", lambda c: listed(c.list_coded_items({"n": -1}))),
    ("some items", lambda c: list(c.items(limit=90, batch=40))),
    ("add more", lambda c: c.add(np.arange(1000, 1200), MORE.X.astype(np.float64), MORE.labels, MORE.metadata)),
    ("indicators", lambda c: c.add([2000, 2001, 2002], X, np.eye(3, dtype=np.uint8))),
    ("flat labels", lambda c: c.upsert([2001, 2002, 2003], X.tolist(), ["a", 2.0, np.int64(7)], learn=False)),
    ("pictures", lambda c: c.upsert(["p", "q"], X[:2], pictures=[GIF, None])),
    ("picture", lambda c: [c.picture(name) for name in ("p", "q", "nobody")]),
    ("relabel", lambda c: c.relabel(["p", 5], [["new", 1], []])),
    ("relabelled", lambda c: c.get(["p", 5])),
    ("add labels", lambda c: c.add_labels(["p", 5, 7], ["new", Colour.RED])),
    ("labels added", lambda c: (c.get(["p", 5, 7]), c.add_labels(["p", 5, 7], "new"))),
    ("remove labels", lambda c: c.remove_labels([7, 5], ("new", "nosuch"), learn=False)),
    ("labels removed", lambda c: (c.get([5, 7]), c.remove_labels([7], [Colour.RED]))),
    ("add no labels", lambda c: c.add_labels(["p"], [])),
    ("remove no labels", lambda c: c.remove_labels(["p"], None)),
    ("add labels to nobody", lambda c: c.add_labels(["p", "nobody"], "x")),
    ("add labels to no items", lambda c: c.add_labels([], "x")),
    ("get one", lambda c: (c.get("p"), c.get(np.int64(5)), c.get(Path("nobody")))),
    ("values", lambda c: c.upsert([UUID(int=5)], X[:1], [{Colour.RED}], [{"when": date(2024, 5, 6)}])),
    ("by value", lambda c: (c.ids({"when": {"$in": {date(2024, 5, 6)}}}), c.ids({"labels": Colour.RED}))),
    ("get by value", lambda c: (c.get(UUID(int=5)), c.get([UUID(int=5)]))),
    ("update metadata", lambda c: c.update_metadata(["p", 5], {"when": date(2024, 5, 7), "n": None})),
    ("update each", lambda c: c.update_metadata(["p", 5], [{"a": np.int8(1)}, {}])),
    ("replace metadata", lambda c: c.update_metadata(["p"], replace=True)),
    ("update some", lambda c: c.update_metadata(where={"when": date(2024, 5, 7)}, metadata={"b": [1, None]})),
    ("updated", lambda c: (c.get(["p", 5]), c.count({"when": date(2024, 5, 7)}))),
    ("update nobody", lambda c: c.update_metadata(["nobody"], {})),
    ("update without metadata", lambda c: c.update_metadata(["p"])),
    ("relabel some", lambda c: c.relabel(where={"when": date(2024, 5, 7)}, labels=["z", 3.0])),
    ("relabel without labels", lambda c: c.relabel(where="all")),
    ("upsert labels", lambda c: c.upsert(["p"], labels=[["y"]])),
    ("upsert metadata", lambda c: c.upsert(["p", 5], metadata=[{"c": 1}, None])),
    ("upserted", lambda c: c.get(["p", 5])),
    ("upsert labels of nobody", lambda c: c.upsert(["p", "nobody"], labels=[["x"], ["x"]])),
    ("upsert nothing", lambda c: c.upsert(["p"])),
    ("delete some", lambda c: (c.delete(where={"labels": "y"}), c.get("p"))),
    ("delete all without a word", lambda c: c.delete(where={})),
    ("delete without ids", lambda c: c.delete()),
    ("delete twice", lambda c: c.delete([1], where="all")),
    ("pictures again", lambda c: c.upsert(["p"], X[:1], pictures=[GIF])),
    ("relabel nobody", lambda c: c.relabel(["nobody"], [["a"]])),
    ("no picture", lambda c: c.upsert(["p"], X[:1], pictures=[b"<svg>"])),
    ("reconstruct twice the same", lambda c: c.reconstruct(["p", 5, "p"])),
    ("too many in range", lambda c: c.range_search(QUERIES[0], -1e300, most=3)),
    ("no rows", lambda c: c.add([], np.empty((0, DIM)))),
    ("conflict", lambda c: c.add([5], X[:1])),
    ("versions", lambda c: c.versions()),
    ("quality", lambda c: c.quality()),
    ("suggested labels", lambda c: c.suggest_labels(7, seed=3)),
    ("other suggested labels", lambda c: c.suggest_labels(3, skip=["p", 5, "nobody"], seed=3)),
    ("too many suggested labels", lambda c: c.suggest_labels(1001)),
    ("a seed below 0", lambda c: c.suggest_labels(seed=-1)),
    ("doubtful labels", lambda c: c.doubtful_labels(7)),
    ("too many doubtful labels", lambda c: c.doubtful_labels(1001)),
    ("no doubtful labels", lambda c: c.doubtful_labels(0)),
    ("probe", lambda c: (c.probe(queries=20, items=50), c.probe("hamming", seed=3), c.probe(0).gain)),
    ("probe no version", lambda c: c.probe(10**6)),
    ("probe no queries", lambda c: c.probe(queries=0)),
    ("compare versions", lambda c: (c.compare_versions(0, queries=20), c.compare_versions("hamming", 1, items=40))),
    ("compare no version", lambda c: c.compare_versions(0, 10**6)),
    ("compare for some", lambda c: c.compare_versions(0, ids=[*range(7)], items=40)),
    ("compare for none", lambda c: c.compare_versions(0, ids=["nobody"])),
    ("one query", lambda c: c.search(QUERIES[0], np.int64(7))),
    ("a list", lambda c: c.search(QUERIES[0].tolist(), 3)),
    ("many queries", lambda c: c.search(QUERIES, 500)),
    ("where", lambda c: c.search(QUERIES, 50, where={"odd": True, "labels": {"$in": ["a", "b"]}})),
    ("where not", lambda c: c.search(QUERIES[0], where={"$not": {"tone": {"$gt": 0.5}}})),
    ("version 0", lambda c: c.search(QUERIES, 9, version=0)),
    ("version 1", lambda c: c.search(QUERIES, 9, version=1)),
    ("explained", lambda c: c.search(QUERIES[:2], 9, explain=True)),
    ("explained by 0", lambda c: c.search(QUERIES[0], 9, explain=0)),
    ("explained by 99", lambda c: c.search(QUERIES[0], 9, explain=99)),
    ("range", lambda c: c.range_search(QUERIES, 0.25, where={"odd": False})),
    ("range of all", lambda c: c.range_search(QUERIES[0], -np.inf)),
    ("range of version", lambda c: c.range_search(QUERIES[0], np.float32(-1.5), version=1)),
    (
        "texts",
        lambda c: c.update_metadata([1000, 1001, 30], TEXTS),
    ),
    ("words", lambda c: (c.lexical_search("RED car"), c.lexical_search('"red wine" e', 1), c.lexical_search("?!"))),
    ("words of some", lambda c: c.lexical_search("red é", where={"n": {"$gt": 0}})),
    ("words and query", lambda c: c.hybrid_search(QUERIES[0], "red", 5)),
    ("words and query, all options", lambda c: c.hybrid_search(QUERIES[1], "e", 4, **HYBRID_OPTIONS)),
    ("words and queries", lambda c: c.hybrid_search(QUERIES, "red")),
    ("reconstruct", lambda c: c.reconstruct([1000, "ö", 5])),
    ("reconstruct nobody", lambda c: c.reconstruct([1000, "nobody"])),
    ("search the reconstructed", lambda c: c.search(c.reconstruct([1000])[0], 3)),
    ("vote", lambda c: c.feedback(QUERIES[0], 1000, True)),
    ("votes", lambda c: c.feedback(QUERIES[1], ["ö", 5], np.array([0.5, -1]), source="me", position=[None, 9])),
    ("many votes", lambda c: c.feedback_many(MANY_VOTES)),
    ("many votes, one bad", lambda c: c.feedback_many([*MANY_VOTES, {"id": 5}])),
    ("list of votes", lambda c: [replace(vote, time="") for vote in c.votes()]),
    ("votes of one", lambda c: [replace(vote, time="") for vote in c.votes("me", 1)]),
    ("votes on a query", lambda c: [replace(vote, time="") for vote in c.votes(query=QUERIES[1], limit=5)]),
    ("votes before", lambda c: [replace(vote, time="") for vote in c.votes(after=c.votes(limit=1)[0].number)]),
    ("no list of votes", lambda c: c.votes(limit=0)),
    ("explained after votes", lambda c: c.search(QUERIES[:2], 3, explain=0)),
    ("vote taken back", lambda c: c.feedback(QUERIES[0], 1000, 0)),
    ("vote on nobody", lambda c: c.feedback(QUERIES[0], "nobody", True)),
    ("after votes", lambda c: c.search(QUERIES, 30)),
    ("learn", lambda c: c.learn(X, LABELS)),
    ("flush", lambda c: c.flush()),
    ("tag", lambda c: c.tag(1, "first")),
    ("tag again", lambda c: c.tag(2, "first")),
    ("rollback", lambda c: c.rollback(1)),
    ("rolled back", lambda c: c.search(QUERIES, 30)),
    ("delete", lambda c: c.delete([5, 6, "nobody"])),
    ("compact", lambda c: c.compact()),
    ("no codes to build", lambda c: (c.build_rescoring(), c.build_rescoring([5, "nobody"], X[:2], rescore_bits=4))),
    ("codes of other bits", lambda c: c.build_rescoring(rescore_bits=2)),
    ("compacted", lambda c: (c.stats()["deleted"], c.search(QUERIES, 30))),
    ("forget", lambda c: c.forget([7, "nobody"])),
    ("forget some", lambda c: c.forget(where={"n": 2**63})),
    ("forget a source", lambda c: c.forget(source="me")),
    ("forgotten", lambda c: (c.get([7, "ö"]), c.search(QUERIES, 30))),
    ("versions after forgetting", lambda c: c.versions()),
    ("audit", lambda c: [replace(entry, time="", who="") for entry in c.audit(after=0, limit=1000)]),
    ("latest entries", lambda c: [entry.what for entry in c.audit(limit=2)]),
    ("a page of entries", lambda c: [entry.number for entry in c.audit(3, 2)]),
    ("entries of nobody", lambda c: c.audit(who="nobody & no one=?")),
    ("sample", lambda c: sorted(str(item) for item in c.sample(10_000))),
    ("end", lambda c: (c.count(), c.dim, c.bits, c.stats(), c.quality(), c.verify(), c.search(QUERIES, 1000))),
]


def test_every_verb_gives_the_results_of_a_local_collection(subject: Any, reference: Collection) -> None:
    called = CalledNames(subject)
    for name, call in LIFE:
        expected, actual = outcome(call, reference), outcome(call, called)
        pairs = zip(actual, expected, strict=True) if name in ("empty", "end") else [(actual, expected)]
        for one, other in pairs:
            assert same(one, other), f"{name}: {str(one)[:300]} is not {str(other)[:300]}"
    assert shared_verbs() - called.names == set(), "verbs without a call in LIFE"


REFUSED: list[Callable[[Any], Any]] = [
    lambda c: c.add(5, X),
    lambda c: c.add([1.5, 2, 3], X),
    lambda c: c.add(["x\ny", 2, 3], X),
    lambda c: c.add([7, 7, 8], X),
    lambda c: c.add([7, 8], X),
    lambda c: c.add([7, 8, 9], X[:, :5]),
    lambda c: c.add([7, 8, 9], X[0]),
    lambda c: c.add([7, 8, 9], BAD),
    lambda c: c.upsert([7, 8, 9], X * np.inf),
    lambda c: c.build_rescoring([7, 8, 9]),
    lambda c: c.build_rescoring([7, 7, 9], X),
    lambda c: c.build_rescoring([7, 8, 9], BAD),
    lambda c: c.build_rescoring([7, 8, 9], X, rescore_bits=1),
    lambda c: c.upsert([7, 8, 9], X.astype(complex)),
    lambda c: c.upsert([7, 8, 9], [["x"] * DIM] * 3),
    lambda c: c.upsert([7, 8, 9], X, ["a"]),
    lambda c: c.upsert([7, 8, 9], X, [[b"x"], [], []]),
    lambda c: c.upsert([7, 8, 9], X, None, {"a": 1}),
    lambda c: c.upsert([7, 8, 9], X, None, [{"a": np.nan}, {}, {}]),
    lambda c: c.delete("abc"),
    lambda c: c.delete([5, 5]),
    lambda c: c.get(5.0),
    lambda c: c.reconstruct([None]),
    lambda c: c.sample(0),
    lambda c: c.audit(-1),
    lambda c: c.audit(2**63),
    lambda c: c.audit(limit=0),
    lambda c: c.audit(limit=100_001),
    lambda c: c.audit(limit=2.5),
    lambda c: c.audit(who=""),
    lambda c: c.audit(who="a\nb"),
    lambda c: c.sample("2"),
    lambda c: c.search(X[0], 0),
    lambda c: c.search(X[0], 2.5),
    lambda c: c.search(X[0], True),
    lambda c: c.search(X[0, :5]),
    lambda c: c.search(X[None]),
    lambda c: c.search(BAD),
    lambda c: c.search("query"),
    lambda c: c.search([[1.0, 2.0], [1.0]]),
    lambda c: c.search(X[0], where={"$nor": []}),
    lambda c: c.search(X[0], where="odd"),
    lambda c: c.search(X[0], where={"a": np.nan}),
    lambda c: c.search(X[0], version=99),
    lambda c: c.search(X[0], version=-1),
    lambda c: c.search(X[0], version="2"),
    lambda c: c.search(X[0], version=2.0),
    lambda c: c.lexical_search(None),
    lambda c: c.lexical_search("x" * 10_001),
    lambda c: c.lexical_search(" ".join(map(str, range(1000)))),
    lambda c: c.lexical_search("x", 0),
    lambda c: c.lexical_search("x", where={"$nor": []}),
    lambda c: c.hybrid_search(BAD[1], "x"),
    lambda c: c.hybrid_search(X[0], 3),
    lambda c: c.hybrid_search(X[0], "x", depth=0),
    lambda c: c.hybrid_search(X[0], "x", word_weight=0),
    lambda c: c.hybrid_search(X[0], "x", word_weight="1"),
    lambda c: c.hybrid_search(X[0], "x", version=99),
    lambda c: c.learn(BAD, LABELS),
    lambda c: c.learn(X, LABELS[:2]),
    lambda c: c.fit(X[:1], LABELS[:1]),
    lambda c: c.feedback(X, 1, True),
    lambda c: c.feedback(X[0], [], True),
    lambda c: c.feedback(X[0], [1, 2], [True]),
    lambda c: c.feedback(X[0], 1, 1.5),
    lambda c: c.feedback(X[0], 1, True, position=0),
    lambda c: c.feedback(X[0], 1, True, source="\n"),
    lambda c: c.tag("1", "name"),
    lambda c: c.tag(1, None),
    lambda c: c.tag(99, "name"),
    lambda c: c.rollback(None),
    lambda c: c.rollback(99),
    lambda c: c.forget(),
    lambda c: c.forget([1], source="me"),
    lambda c: c.forget(5),
    lambda c: c.forget(where={"$nor": []}),
]


def test_invalid_arguments_are_refused_as_by_a_local_collection(subject: Any, reference: Collection) -> None:
    for collection in (subject, reference):
        collection.add(list(range(320)), *some_rows(320))
    before = subject.stats(), subject.versions()
    for number, call in enumerate(REFUSED):
        expected, actual = outcome(call, reference), outcome(call, subject)
        assert isinstance(expected, tuple) and actual[1] == expected[1], f"call {number}: {actual}"
        assert {actual[0], expected[0]} in ({expected[0]}, {InvalidInput, WrongType}), f"call {number}: {actual}"
    for call in (lambda c: c.range_search(X[0], "high"), lambda c: c.range_search(X[0], np.nan)):
        with pytest.raises(InvalidInput, match="threshold"):
            call(subject)
    assert (subject.stats(), subject.versions()) == before
