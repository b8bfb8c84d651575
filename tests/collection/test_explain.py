"""Explanations: contributions add up, and ranks are those of plain rankings."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from stillhash import Collection
from stillhash.errors import InvalidInput
from stillhash.numeric.codes import signs
from stillhash.numeric.reference import NEIGHBOUR_POWER, NEIGHBOURS, SHORT_CODE_WEIGHT, STORED_WEIGHT
from stillhash.numeric.rescoring import Rescorer
from tests.collection.fixtures import BITS, DIM, begin, some_rows
from tests.collection.golden import FOLDER
from tests.collection.reference import Twin
from tests.support.toys import toy

QUERIES = toy(4, DIM, 4, seed=77).X


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Collection, Twin]]:
    collection, twin = begin(tmp_path_factory.mktemp("explain") / "c")
    collection.seal()
    for seed in (1, 2):
        ids, rows = [f"{seed}/{r}" for r in range(90)], some_rows(90, seed)
        collection.add(ids, *rows)
        twin.put(ids, *rows)
    collection.delete(range(20))
    twin.delete(range(20))
    yield collection, twin
    collection.close()


@pytest.mark.parametrize("where", [None, {"odd": True}, {"n": -1}])
@pytest.mark.parametrize("other", [True, 1, 2, 3])
def test_bits_add_up_and_ranks_are_right(pair: tuple[Collection, Twin], other: Any, where: Any) -> None:
    collection, twin = pair
    answers = collection.search(QUERIES, 15, where=where, explain=other)
    plain = collection.search(QUERIES, 15, where=where)
    for query, answer, without in zip(QUERIES, answers, plain, strict=True):
        earlier = {id_: (place, score) for place, (score, id_) in enumerate(twin.ranking(query, where, int(other)), 1)}
        assert [(hit.id, hit.score) for hit in answer.hits] == [(hit.id, hit.score) for hit in without.hits]
        for rank, hit in enumerate(answer.hits, 1):
            explanation = hit.explanation
            assert explanation is not None and len(explanation.bits) == BITS
            assert np.float32(sum(explanation.bits)) == np.float32(hit.score)
            assert np.allclose(np.reshape(explanation.bits, (-1, 8)).sum(axis=1), explanation.groups)
            assert explanation.rank == rank and explanation.other_version == int(other)
            assert (explanation.other_rank, explanation.other_score) == earlier[hit.id]
        assert all(hit.explanation is None for hit in without.hits)


def test_one_query_and_an_earlier_version(pair: tuple[Collection, Twin]) -> None:
    collection, twin = pair
    answer = collection.search(QUERIES[0], 3, version=2, explain=twin.version)
    assert answer.version == 2 and [hit.explanation.other_version for hit in answer.hits] == [twin.version] * 3


def test_unknown_version_is_refused(pair: tuple[Collection, Twin]) -> None:
    collection, _ = pair
    for bad in (99, "x", 1.5):
        with pytest.raises(InvalidInput, match=r"^version"):
            collection.search(QUERIES[0], explain=bad)


def test_before_hash_functions_there_is_nothing_to_explain(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c", 20)
    answer = collection.search(QUERIES[0], explain=True)
    assert len(answer.hits) == 10 and all(hit.explanation is None for hit in answer.hits)
    collection.close()


# ---- in words ----


def shares_of(predicted: np.ndarray, names: list[Any]) -> list[tuple[Any, float]]:
    """The same as the library, one number at a time."""
    squares = [max(float(value), 0.0) ** 2 for value in predicted]
    pairs = [(name, square / (sum(squares) or 1.0)) for name, square in zip(names, squares, strict=True)]
    return sorted(pairs, key=lambda pair: -pair[1])


def unit(part: np.ndarray) -> np.ndarray:
    return np.asarray(part / max(np.linalg.norm(part), 1e-12))


def test_labels_and_similarity_make_the_page_score(pair: tuple[Collection, Twin]) -> None:
    collection, twin = pair
    hasher: Any = twin.hasher
    model, names, rescorer = hasher.model(), hasher.label_space().names, Rescorer(DIM, twin.rescore_bits)
    assert model.label_weights is None

    def raised(labels: np.ndarray, power: float) -> np.ndarray:
        return unit(np.maximum(labels, 0) ** power)

    def of_codes(id_: Any, by_both: bool) -> np.ndarray:
        codes, rescoring = collection.codes([id_]), twin.items[id_].rescoring[None]
        assert codes is not None
        predicted = raised((signs(codes, BITS) @ model.V + model.v)[0], model.item_power)
        features = rescorer.rotate_back(rescorer.levels(rescoring)) * rescorer.corrections(rescoring)[:, None]
        by_rescoring = raised((features @ model.U + model.u)[0], model.item_power)
        by_code = 0 if rescorer.marked(rescoring)[0] else SHORT_CODE_WEIGHT
        return unit(by_code * predicted + by_rescoring) if by_both else predicted

    def stored(id_: Any) -> np.ndarray:
        return unit(np.array([name in twin.items[id_].labels for name in names], np.float64))

    share = np.mean([bool(item.labels) for item in twin.items.values()])
    for query in QUERIES:
        predicted = raised((hasher.prepare(query[None]) @ model.U + model.u)[0], model.power)
        every = {hit.id: hit.explanation.similarity for hit in collection.search(query, 600, explain=0).hits}
        nearest = sorted(every, key=lambda id_: -every[id_])[:NEIGHBOURS]
        neighbours = unit(sum(max(every[id_], 0) ** NEIGHBOUR_POWER * stored(id_) for id_ in nearest))
        query_labels = unit(predicted + share**0.5 * neighbours)
        of_query = shares_of(query_labels, names)
        hits = collection.search(query, 15, explain=0).hits
        ordered = [hit.explanation.page_score for hit in hits if hit.placed == "labels"]
        assert len(ordered) > 10 and ordered == sorted(ordered, reverse=True)
        for hit in hits:
            why = hit.explanation
            hit_labels = unit(of_codes(hit.id, by_both=hit.placed == "labels") + STORED_WEIGHT * stored(hit.id))
            assert why.labels == pytest.approx(query_labels @ hit_labels, abs=1e-4) and 0 < why.label_weight < 1
            together = why.label_weight * why.labels + (1 - why.label_weight) * why.similarity
            assert why.page_score == pytest.approx(together, abs=1e-5)
            of_hit = shares_of(hit_labels, names)
            smaller = [min(dict(of_query)[name], dict(of_hit)[name]) for name in names]
            of_both = sorted(zip(names, smaller, strict=True), key=lambda pair: -pair[1])
            for listed, expected in (
                (why.query_labels, of_query),
                (why.hit_labels, of_hit),
                (why.shared_labels, of_both),
            ):
                expected = [(name, share) for name, share in expected if share >= 0.01][:5]
                assert [one.label for one in listed] == [name for name, _ in expected]
                assert [one.share for one in listed] == pytest.approx([share for _, share in expected], abs=1e-4)


def test_a_label_is_explained_before_it_is_learnt(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c")
    nearest = collection.search(QUERIES[0], 9).hits
    version = collection.stats()["version"]
    collection.relabel([hit.id for hit in nearest], [["fresh"]] * 9)
    answer = collection.search(QUERIES[0], 300, explain=0)
    assert answer.version == version
    why = next(hit.explanation for hit in answer.hits if hit.labels == ["fresh"])
    assert all("fresh" in [one.label for one in some] for some in (why.query_labels, why.hit_labels, why.shared_labels))
    collection.close()


def test_votes_are_counted_by_source_and_version(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c")
    query, item = QUERIES[0], collection.search(QUERIES[0], 30).hits[-1].id
    version = collection.feedback(query, item, "up", source="ann")
    collection.feedback(query, item, "up", source="bo")
    collection.feedback(query, item, "down", source="cy")
    first = collection.search(query, 1, explain=0).hits[0]
    assert first.id == item and first.placed == "liked"
    assert (first.explanation.up_votes, first.explanation.down_votes) == (2, 1)
    then = collection.search(query, 1, version=version, explain=0).hits[0].explanation
    assert (then.up_votes, then.down_votes) == (1, 0)
    collection.feedback(query, item, 0, source="bo")
    hits = {hit.id: hit.explanation for hit in collection.search(query, 320, explain=0).hits}
    assert (hits[item].up_votes, hits[item].down_votes) == (1, 1)
    assert all((why.up_votes, why.down_votes) == (0, 0) for id_, why in hits.items() if id_ != item)
    collection.close()


def test_what_votes_add_to_the_score_is_a_part_of_it(tmp_path: Path) -> None:
    X, Y = toy(600, DIM, 4, seed=5)
    collection, _ = begin(tmp_path / "c", 0)
    collection.add(range(600), X)
    before = collection.search(QUERIES[0], 600, explain=0).hits
    assert all(hit.explanation.vote_score is None and hit.explanation.query_labels is None for hit in before)
    votes = [
        {"query": X[n], "id": hit.id, "vote": "up" if (Y[n] & Y[hit.id]).any() else "down"}
        for n, answer in enumerate(collection.search(X[:250], 20))
        for hit in answer.hits
    ]
    collection.feedback_many(votes)
    scores = {hit.id: hit.score for hit in before}
    hits = collection.search(QUERIES[0], 600, explain=0).hits
    added = [hit.explanation.vote_score for hit in hits]
    assert max(map(abs, added)) > 1e-3
    assert added == pytest.approx([hit.score - scores[hit.id] for hit in hits], abs=1e-4)
    on_page = [hit.explanation for hit in hits if hit.explanation.page_score is not None]
    assert len(on_page) >= 300 and all(why.label_weight == 0 and why.labels is None for why in on_page)
    by_votes = [why.page_score - why.similarity for why in on_page]
    assert by_votes == pytest.approx([why.vote_score / (2 * BITS**0.5) for why in on_page], abs=1e-5)
    collection.close()


def test_names_of_labels_are_stored_with_a_version(tmp_path: Path) -> None:
    collection, _ = begin(tmp_path / "c")
    expected = collection.search(QUERIES, 9, explain=0)
    assert expected[0].hits[0].explanation.query_labels
    version = collection.stats()["version"]
    collection.add([f"x{n}" for n in range(90)], some_rows(90, 3).X, [["zebra"]] * 90)
    collection.close()
    with stillhash.open(tmp_path / "c", read_only=True) as reader:
        assert reader.search(QUERIES, 9, version=version, explain=0, where={"n": {"$gte": 0}})
        names = {
            one.label
            for answer in reader.search(QUERIES, 40, explain=0)
            for hit in answer.hits
            for one in hit.explanation.hit_labels
        }
        then = {
            one.label
            for answer in reader.search(QUERIES, 40, version=version, explain=0, where={"n": {"$gte": 0}})
            for hit in answer.hits
            for one in hit.explanation.hit_labels
        }
    assert "zebra" in names and then == {"a", "b", "c", "d"}


def test_a_model_of_an_earlier_release_explains_without_names(tmp_path: Path) -> None:
    with zipfile.ZipFile(FOLDER / "format-5.zip") as archive:
        archive.extractall(tmp_path)
    with stillhash.open(tmp_path / "golden") as collection:
        why = collection.search(QUERIES[0], 1, explain=0).hits[0].explanation
        assert why.query_labels is why.hit_labels is why.shared_labels is None and why.similarity is not None
        collection.feedback(QUERIES[0], 100, "up", source="ann")  # publishes a version that has them
        assert collection.search(QUERIES[0], 1, explain=0).hits[0].explanation.query_labels
