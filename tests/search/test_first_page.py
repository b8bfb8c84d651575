"""The first page found in an index equals its definition, which ranks all codes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stillhash
from stillhash.errors import InvalidInput
from stillhash.numeric.codes import signs
from stillhash.numeric.exact_scores import snap
from stillhash.numeric.labels import parse_labels
from stillhash.numeric.ranking import Ranking, rank_all, rank_scores
from stillhash.numeric.reference import BY_LABELS, BY_SCORE, DISLIKED, LIKED, NEAR
from stillhash.numeric.rescored_page import CANDIDATES, LabelRegression, RescoredPage
from stillhash.numeric.rescoring import Rescorer
from stillhash.search import MIWQ, Scan
from stillhash.search.first_page import PLACED, search_page
from stillhash.search.merge import Floors


def make_ranking(rng, bits, queries, labels, *, coarse=False):
    """Return a random ranking; coarse weights make many ties."""
    draw = (lambda *shape: rng.integers(-2, 3, shape)) if coarse else (lambda *shape: rng.standard_normal(shape))
    part = lambda *shape: draw(*shape).astype(np.float32)  # noqa: E731
    if not labels:
        return Ranking(part(queries, bits), part(queries, bits))
    predicted = np.abs(part(queries, labels)) + np.float32(0.1)
    return Ranking(
        part(queries, bits),
        part(queries, bits),
        predicted / np.linalg.norm(predicted, axis=1, keepdims=True),
        part(bits, labels),
        part(labels),
        1.5,
        float(rng.random()),
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 900), st.sampled_from([8, 13, 64]), st.sampled_from([0, 3]), st.booleans())
def test_the_page_equals_its_definition(seed, rows, bits, labels, coarse):
    rng = np.random.default_rng(seed)
    codes = np.packbits(rng.integers(0, 2, (rows, bits), np.uint8), axis=1, bitorder="little")
    codes = codes[rng.integers(0, max(1, rows // 2), rows)]  # equal codes are ties
    ranking = make_ranking(rng, bits, 3, labels, coarse=coarse)
    k = int(rng.integers(1, rows + 20))
    expected = rank_all(ranking, codes)[:, :k]
    for index in (Scan(bits), MIWQ(bits)):
        index.add(codes)
        hits = search_page(index, ranking, k)
        assert np.array_equal(hits.ids[:, : expected.shape[1]], expected)
        assert (hits.ids[:, expected.shape[1] :] == -1).all()
        exact = signs(codes, bits).astype(np.float64)
        scores = (ranking.weights.astype(np.float64) @ exact.T)[np.arange(3)[:, None], expected]
        assert hits.scores[:, : expected.shape[1]] == pytest.approx(scores, rel=1e-5, abs=1e-5)


class Stored:
    """Rescoring codes and labels of items, by their numbers."""

    def __init__(self, codes, labels):
        self.codes, self.all_labels = codes, labels

    def rescoring_codes(self, ids):
        return self.codes[ids]

    def labels(self, ids):
        return self.all_labels.take(ids)


def make_rescored(rng, rows, bits, queries, labels, *, coarse):
    """Return a ranking with a page by rescoring codes, and what is stored of the items; labels: 0 if none is learnt."""
    dim, names = 12, ["d", "a", 3, "c", "b", "e"]
    rescorer = Rescorer(dim, int(rng.choice([1, 2, 4])))
    floats = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    Q, X = floats(queries, dim), floats(rows, dim)
    near = rng.random(rows) < 0.02
    X[near] = Q[rng.integers(0, queries, near.sum())]
    X, Q = X / np.linalg.norm(X, axis=1, keepdims=True), Q / np.linalg.norm(Q, axis=1, keepdims=True)
    X = X[rng.integers(0, max(1, rows // 2), rows)]  # equal items are ties
    sets = [[names[n] for n in rng.permutation(6)[: rng.integers(0, 4)]] for _ in range(rows)]
    stored = Stored(rescorer.encode(X), parse_labels(sets, rows))
    ranking = make_ranking(rng, bits, queries, 0, coarse=coarse)
    if rng.random() < 0.2:
        ranking = ranking._replace(similarity=ranking.weights.copy())
    votes = floats(queries, bits) if rng.random() < 0.5 else None
    page = RescoredPage(rescorer, rescorer.queries(Q), votes=votes, similar=int(rng.choice([300, 350, 700])))
    if labels:
        weights = rng.random(labels, np.float32) if rng.random() < 0.5 else None
        model = floats(dim, labels), floats(labels), floats(bits, labels), floats(labels), 1.5
        predicted = np.abs(floats(queries, labels))
        page = page._replace(
            labels=predicted / np.linalg.norm(predicted, axis=1, keepdims=True),
            strength=np.where(rng.random(queries) < 0.2, 0, rng.random(queries)).astype(np.float32),
            regression=LabelRegression(*model, names[:labels], weights),
            labelled_share=float(rng.random()),
            fixed=bool(rng.random() < 0.3),
        )
    return ranking._replace(page=page), stored


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32), st.integers(1, 1200), st.sampled_from([8, 13, 64]), st.sampled_from([0, 1, 4]), st.booleans()
)
def test_the_page_by_rescoring_codes_equals_its_definition(seed, rows, bits, labels, coarse):
    rng = np.random.default_rng(seed)
    codes = np.packbits(rng.integers(0, 2, (rows, bits), np.uint8), axis=1, bitorder="little")
    codes = codes[rng.integers(0, max(1, rows // 2), rows)]
    ranking, stored = make_rescored(rng, rows, bits, 3, labels, coarse=coarse)
    k = int(rng.integers(1, rows + 20))
    allowed = rng.random(rows) < rng.choice([0.2, 1.1])
    left = np.flatnonzero(allowed)
    of_left = Stored(stored.codes[left], stored.all_labels.take(left))
    order = left[rank_all(ranking, codes[left], of_left)]
    moved = [rng.permutation(left)[:6] for _ in range(3)] if rng.random() < 0.5 else [left[:0]] * 3
    repeats, liked, disliked = [row[:2] for row in moved], [row[2:4] for row in moved], [row[4:] for row in moved]
    index = Scan(bits)
    index.add(codes)
    ends = {"repeats": repeats, "liked": liked, "disliked": disliked}
    hits = search_page(index, ranking, k, allowed=allowed, stored=stored, **ends)
    for q in range(3):
        parts = liked[q], repeats[q], order[q][~np.isin(order[q], moved[q])], disliked[q]
        expected = np.concatenate(parts)[:k]
        assert np.array_equal(hits.ids[q, : len(expected)], expected)
        assert (hits.ids[q, len(expected) :] == -1).all()
        exact = signs(codes[expected], bits).astype(np.float64) @ ranking.weights[q]
        assert hits.scores[q, : len(expected)] == pytest.approx(exact, rel=1e-5, abs=1e-5)
        own = {name: rows[q : q + 1] for name, rows in ends.items()}
        one = search_page(index, ranking.rows(slice(q, q + 1)), k, allowed=allowed, stored=stored, **own)
        for part, alone in zip(hits[:3], one[:3], strict=True):
            assert np.array_equal(part[q], alone[0])
        for part, alone in zip(hits.candidates[q].page, one.candidates[0].page, strict=True):
            assert np.array_equal(part, alone)


@pytest.mark.parametrize("labels", [0, 4])
def test_filters_and_removed_rows_only_leave_rows_out(labels):
    rng = np.random.default_rng(labels)
    codes = np.packbits(rng.integers(0, 2, (2000, 32), np.uint8), axis=1, bitorder="little")
    index = Scan(32)
    index.add(codes)
    allowed = rng.random(2000) < 0.4
    gone = rng.choice(2000, 300, replace=False)
    index.remove(gone)
    left = np.setdiff1d(np.flatnonzero(allowed), gone)
    ranking = make_ranking(rng, 32, 4, labels)
    assert np.array_equal(
        search_page(index, ranking, 500, allowed=allowed).ids, left[rank_all(ranking, codes[left])][:, :500]
    )


def test_fewer_hits_are_the_first_of_more():
    rng = np.random.default_rng(5)
    codes = np.packbits(rng.integers(0, 2, (3000, 24), np.uint8), axis=1, bitorder="little")
    index = Scan(24)
    index.add(codes)
    ranking = make_ranking(rng, 24, 5, 6)
    everything = search_page(index, ranking, 3000).ids
    for k in (1, 10, CANDIDATES - 1, CANDIDATES, CANDIDATES + 1, 2999):
        assert np.array_equal(search_page(index, ranking, k).ids, everything[:, :k])


def test_a_stored_item_is_its_own_first_hit_whatever_was_learnt():
    rng = np.random.default_rng(1)
    X, Y = rng.standard_normal((3000, 40)), rng.integers(0, 5, 3000)
    hasher = stillhash.Tally(bits=64).fit(X[:500])
    index = Scan(64)
    index.add(hasher.encode(X))
    for rows in (0, 100, 3000):
        hasher.partial_fit(X[:rows], Y[:rows]) if rows else None
        hits = search_page(index, hasher.ranking(X[:200]), 10)
        assert (hits.ids == np.arange(200)[:, None]).any(axis=1).mean() >= 0.99
        assert (hits.placed[:, 0] == NEAR).all()


def test_liked_items_come_first_and_disliked_ones_last():
    rng = np.random.default_rng(3)
    codes = np.packbits(rng.integers(0, 2, (400, 16), np.uint8), axis=1, bitorder="little")
    index = Scan(16)
    index.add(codes)
    for labels in (0, 3):
        ranking = make_ranking(rng, 16, 2, labels)
        order = rank_all(ranking, codes)
        liked, disliked = [order[0, [350, 7]], order[1, :0]], [order[0, [0, 399]], order[1, [1]]]
        hits = search_page(index, ranking, 400, liked=liked, disliked=disliked)
        for q in range(2):
            others = order[q][~np.isin(order[q], np.concatenate([liked[q], disliked[q]]))]
            assert np.array_equal(hits.ids[q], np.concatenate([liked[q], others, disliked[q]]))
        assert (hits.placed[0, :2] == LIKED).all()
        assert (hits.placed[0, -2:] == DISLIKED).all()
        assert np.array_equal(search_page(index, ranking, 5, liked=liked, disliked=disliked).ids, hits.ids[:, :5])


def test_a_ranking_of_other_bits_is_refused():
    index = Scan(16)
    index.add(np.zeros((3, 2), np.uint8))
    with pytest.raises(InvalidInput, match="ranking: expected weights of 16 bits, got 24"):
        search_page(index, make_ranking(np.random.default_rng(0), 24, 1, 2), 1)


def test_places_are_named_by_their_numbers():
    names = {BY_SCORE: "score", BY_LABELS: "labels", NEAR: "near", LIKED: "liked", DISLIKED: "disliked"}
    assert dict(enumerate(PLACED)) == {**names, len(names): "similarity"}


def test_a_ranking_without_similarity_is_the_plain_order_by_score():
    rng = np.random.default_rng(9)
    codes = np.packbits(rng.integers(0, 2, (500, 16), np.uint8), axis=1, bitorder="little")
    index = Scan(16)
    index.add(codes)
    ranking = Ranking(rng.standard_normal((3, 16)).astype(np.float32))
    hits, plain = search_page(index, ranking, 20), index.search(ranking.weights, 20)
    assert np.array_equal(hits.ids, plain.ids)
    assert np.array_equal(hits.scores, plain.scores)
    assert [PLACED[p] for p in hits.placed[0]] == ["score"] * 20
    assert np.array_equal(np.argsort(-rank_scores(ranking, codes), axis=1, kind="stable"), rank_all(ranking, codes))


def test_floors_hide_lower_scores():
    rng = np.random.default_rng(2)
    codes = np.packbits(rng.integers(0, 2, (5000, 32), np.uint8), axis=1, bitorder="little")
    weights = rng.standard_normal((2, 32)).astype(np.float32)
    for index in (Scan(32), MIWQ(32)):
        index.add(codes)
        plain = index.search(weights, 100)
        floors = plain.scores[:, 40]
        hits = index.search_checked(weights, 100, Floors(floors, np.full(2, -np.inf, np.float32)))
        for q in range(2):
            kept = plain.scores[q] >= floors[q]
            assert np.array_equal(hits.ids[q][: kept.sum()], plain.ids[q][kept])
            assert (hits.ids[q][kept.sum() :] == -1).all()


def test_a_sample_that_misleads_changes_no_answer():
    rng = np.random.default_rng(4)
    strips, bits = 300, 16  # of 1,024 rows
    codes = np.zeros((strips * 1024, 2), np.uint8)
    codes[:] = rng.integers(0, 4, codes.shape, np.uint8)
    for strip in range(0, strips, 32):  # the strips that are sampled hold all of the best rows
        codes[strip * 1024 : strip * 1024 + 6] = 255
    weights = (rng.random((2, bits)) + 0.5).astype(np.float32)
    for threads in (1, 2):
        index = Scan(bits, threads=threads)
        index.add(codes)
        scores = (signs(codes, bits).astype(np.float64) @ snap(weights).T).astype(np.float32).T
        expected = np.argsort(-scores, axis=1, kind="stable")[:, :500]
        hits = index.search(weights, 500)
        assert np.array_equal(hits.ids, expected)
        assert np.array_equal(hits.scores, np.take_along_axis(scores, expected, 1))
