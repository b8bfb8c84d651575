"""The contract of every method. Imported by tests/hashers, which runs it over METHODS."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

from stillhash import METHODS, load
from stillhash.errors import BadState, InvalidInput, NotFitted, StoreFailed, WrongType
from stillhash.experiments.metrics import evaluate
from stillhash.hashers import Hasher, LinearHasher, Tally
from stillhash.hashers.state import read_state, write_state
from stillhash.numeric.codes import signs
from stillhash.numeric.labels import parse_labels
from tests.support.toys import toy


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> type[Hasher]:
    return METHODS[request.param]


def learnt(method: type[Hasher], chunk: int = 100, **params: Any) -> Hasher:
    X, Y = toy()
    hasher = method(bits=32, **params).fit(X[:300], Y[:300])
    for s in range(0, 600, chunk):
        hasher.partial_fit(X[s : min(600, s + chunk)], Y[s : min(600, s + chunk)])
    return hasher


def test_shapes_and_kinds(method: type[Hasher]) -> None:
    hasher, X = learnt(method), toy().X
    codes, weights = hasher.encode(X), hasher.weigh(X[:7])
    assert codes.shape == (1200, 4) and codes.dtype == np.uint8
    assert weights.shape == (7, 32) and weights.dtype == np.float32
    assert hasher.encode(X[:0]).shape == (0, 4) and hasher.weigh(X[:0]).shape == (0, 32)


@pytest.mark.parametrize("bits", [8, 13, 48, 100])
def test_any_code_length(method: type[Hasher], bits: int) -> None:
    X, Y = toy(400)
    hasher = method(bits=bits).partial_fit(X, Y)
    assert signs(hasher.encode(X), bits).shape == (400, bits)
    assert hasher.weigh(X).shape == (400, bits)


def test_inputs_are_left_untouched(method: type[Hasher]) -> None:
    X, Y = toy(400)
    before = X.copy(), Y.copy()
    X.flags.writeable = Y.flags.writeable = False
    hasher = method(bits=16).fit(X, Y).partial_fit(X, Y)
    hasher.encode(X), hasher.weigh(X)
    np.testing.assert_array_equal(X, before[0])
    np.testing.assert_array_equal(Y, before[1])


def test_encode_and_weigh_are_pure(method: type[Hasher]) -> None:
    hasher, X = learnt(method), toy().X
    before = hasher.state()
    codes, weights = hasher.encode(X), hasher.weigh(X)
    assert hasher.encode(X).tobytes() == codes.tobytes()
    assert hasher.weigh(X).tobytes() == weights.tobytes()
    assert hasher.state() == before


def test_the_order_and_type_of_the_array_do_not_matter(method: type[Hasher]) -> None:
    hasher, X = learnt(method), toy().X
    codes, weights = hasher.encode(X), hasher.weigh(X)
    wide = np.zeros((len(X), 2 * X.shape[1]), np.float32)
    wide[:, ::2] = X
    for same in (np.asfortranarray(X), wide[:, ::2], X.astype(np.float64), X.tolist()):
        assert hasher.encode(same).tobytes() == codes.tobytes()
        assert hasher.weigh(same).tobytes() == weights.tobytes()


def test_a_row_has_the_same_code_and_weights_in_any_batch(method: type[Hasher]) -> None:
    hasher, X = learnt(method), toy().X
    codes, weights = hasher.encode(X), hasher.weigh(X)
    for r in (0, 5, 700):
        assert hasher.encode(X[r : r + 1]).tobytes() == codes[r].tobytes()
        assert hasher.weigh(X[r : r + 1]).tobytes() == weights[r].tobytes()


def test_the_same_seed_gives_the_same_state(method: type[Hasher]) -> None:
    assert learnt(method).state() == learnt(method).state()
    assert learnt(method, random_state=1).state() != learnt(method).state()


def test_chunking_changes_results_only_by_rounding(method: type[Hasher]) -> None:
    if not method.chunk_invariant:
        pytest.skip(f"{method.__name__} learns chunk by chunk")
    X = toy().X
    whole, parts = learnt(method, chunk=600), learnt(method, chunk=7)
    assert whole.encode(X).tobytes() == parts.encode(X).tobytes()
    np.testing.assert_allclose(parts.weigh(X), whole.weigh(X), rtol=0, atol=1e-4 * np.abs(whole.weigh(X)).max())


def test_state_round_trips_and_learns_on_identically(method: type[Hasher]) -> None:
    hasher, (X, Y) = learnt(method), toy()
    state = hasher.state()
    again = method.load(state)
    assert again.state() == state
    assert type(load(state)) is method
    for part in (hasher, again):
        part.partial_fit(X[600:], Y[600:])
    assert again.state() == hasher.state()
    assert again.weigh(X).tobytes() == hasher.weigh(X).tobytes()
    assert again.get_params() == hasher.get_params()


def test_files_and_copies_learn_on_identically(method: type[Hasher], tmp_path: Path) -> None:
    hasher, (X, Y) = learnt(method), toy()
    hasher.stale_ = True
    hasher.save(tmp_path / "a.hasher")
    joblib.dump(hasher, tmp_path / "a.joblib")
    copies = [
        load(tmp_path / "a.hasher"),
        method.load(str(tmp_path / "a.hasher")),
        load((tmp_path / "a.hasher").read_bytes()),
        pickle.loads(pickle.dumps(hasher)),
        copy.deepcopy(hasher),
        joblib.load(tmp_path / "a.joblib"),
    ]
    assert [each.stale_ for each in copies] == [False] * 3 + [True] * 3
    before, answers = hasher.state(), weights_and_codes(hasher)
    hasher.partial_fit(X[600:], Y[600:])
    for each in copies:
        assert type(each) is method and each.state() == before and weights_and_codes(each) == answers
        assert each.partial_fit(X[600:], Y[600:]).state() == hasher.state()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.hasher", "a.joblib"]


def test_hashers_that_are_not_fitted_are_copied_with_their_parameters(method: type[Hasher]) -> None:
    hasher = method(bits=16, random_state=3)
    for each in (pickle.loads(pickle.dumps(hasher)), copy.deepcopy(hasher), copy.copy(hasher)):
        assert type(each) is method and each is not hasher and each.get_params() == hasher.get_params()
        with pytest.raises(NotFitted):
            each.encode(toy(20).X)


def test_files_that_cannot_be_written_or_read_are_refused(method: type[Hasher], tmp_path: Path) -> None:
    hasher = learnt(method)
    with pytest.raises(StoreFailed):
        hasher.save(tmp_path / "none" / "a")
    with pytest.raises(NotFitted):
        method().save(tmp_path / "a")
    for path in (tmp_path / "a", tmp_path):
        with pytest.raises(BadState):
            load(path)
    for nothing in (None, 3):
        with pytest.raises(WrongType, match=r"^state"):
            load(nothing)  # type: ignore[arg-type]
    hasher.save(tmp_path / "a")
    data = (tmp_path / "a").read_bytes()
    for at in range(8, len(data), len(data) // 40):
        (tmp_path / "b").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(BadState):
            load(tmp_path / "b")


def test_damaged_or_foreign_state_is_refused(method: type[Hasher]) -> None:
    state = learnt(method).state()
    other = next(m for m in METHODS.values() if m is not method)
    for bad in (b"", b"nonsense", state[:100], state[:-1]):
        with pytest.raises(BadState):
            method.load(bad)
    with pytest.raises(BadState, match=r"^state\b"):
        other.load(state)
    with pytest.raises(BadState, match=r"^state\b"):
        method.load(state.replace(b'\\"format\\": 1', b'\\"format\\": 9'))


def test_parameters_of_earlier_releases_are_read_if_they_mean_the_same(method: type[Hasher]) -> None:
    hasher = learnt(method)
    for name, left in method.retired.items():
        for value in (left, "another"):
            description, arrays = read_state(hasher.state())
            description["params"][name] = value
            earlier = write_state(description, arrays)
            if value == left:
                assert method.load(earlier).state() == hasher.state()
            else:
                with pytest.raises(BadState, match=name):
                    method.load(earlier)


def test_stored_codes_equal_encode_of_everything_seen(method: type[Hasher]) -> None:
    if method.codes_see_labels:
        pytest.skip(f"{method.__name__} never encodes stored rows again, while its hash functions change")
    X, Y = toy()
    hasher = method(bits=32).fit(X[:300], Y[:300])
    stored, codes = hasher.keep(X[:0]), hasher.encode(X[:0])
    for s in range(0, 1200, 200):
        hasher.partial_fit(X[s : s + 200], Y[s : s + 200])
        if hasher.stale_:
            codes = hasher.refresh(stored, lambda s=s: X[:s])
        stored = np.concatenate([stored, hasher.keep(X[s : s + 200])])
        codes = np.concatenate([codes, hasher.encode(X[s : s + 200])])
    assert codes.tobytes() == hasher.encode(X).tobytes()


def test_fixed_codes_never_change(method: type[Hasher]) -> None:
    X, Y = toy()
    hasher = method(bits=32).fit(X[:300], Y[:300])
    before = hasher.encode(X)
    stale = [hasher.partial_fit(X[s : s + 200], Y[s : s + 200]).stale_ for s in range(0, 1200, 200)]
    if method.fixed_codes:
        assert not any(stale) and hasher.encode(X).tobytes() == before.tobytes()
    elif method.codes_see_labels:
        assert not any(stale)  # codes stay as they were stored
    elif not any(stale):
        assert hasher.encode(X).tobytes() == before.tobytes()  # stale_ announces every change


def test_labels_matter_to_codes_of_labelled_rows_only(method: type[Hasher]) -> None:
    hasher, (X, Y) = learnt(method), toy()
    Y[::5] = 0  # rows without labels
    before, plain, codes = hasher.state(), hasher.encode(X), hasher.encode(X, Y)
    assert codes[::5].tobytes() == plain[::5].tobytes()
    assert (codes.tobytes() == plain.tobytes()) == (not method.codes_see_labels)
    for r in (0, 1, 700):
        assert hasher.encode(X[r : r + 1], Y[r : r + 1]).tobytes() == codes[r].tobytes()
    assert hasher.encode(X[:0], Y[:0]).shape == (0, 4) and hasher.state() == before
    with pytest.raises(InvalidInput, match=r"^Y\b"):
        hasher.encode(X, Y[1:])


def test_codes_that_the_caller_has_change_nothing(method: type[Hasher]) -> None:
    X, Y = toy()
    Y[::5] = 0  # rows without labels
    hasher = learnt(method)
    again = method.load(hasher.state())
    again.learn_rows(X, parse_labels(Y, len(X)), again.encode(X))
    assert again.state() == hasher.partial_fit(X, Y).state()


def test_an_earlier_model_answers_as_it_did(method: type[Hasher]) -> None:
    if not method.fixed_codes:
        pytest.skip(f"{method.__name__} changes its codes")
    X, Y = toy()
    hasher = learnt(method)
    model, before = hasher.model(), hasher.weigh(X)
    hasher.partial_fit(X[600:], Y[600:])
    assert hasher.weigh_by(model, X).tobytes() == before.tobytes()
    bare = LinearHasher.load(hasher.functions().state())
    assert bare.encode(X).tobytes() == hasher.encode(X).tobytes()
    assert bare.weigh_by(model, X).tobytes() == before.tobytes()


def weights_and_codes(hasher: Hasher) -> tuple[bytes, bytes]:
    X, _ = toy()
    return hasher.weigh(X).tobytes(), hasher.encode(X).tobytes()


def test_rows_without_labels_are_ignored(method: type[Hasher]) -> None:
    if not method.supervised:
        pytest.skip(f"{method.__name__} learns without labels")
    X, Y = toy()
    hasher = learnt(method)
    before = hasher.state()
    learnt_part = weights_and_codes if isinstance(hasher, Tally) else method.state  # Tally counts them besides
    hasher.partial_fit(X).partial_fit(X, np.zeros_like(Y)).partial_fit(X[:2], [[], None]).partial_fit(X[:0], Y[:0])
    assert learnt_part(hasher) == learnt_part(method.load(before))
    some = Y.copy()
    some[::2] = 0
    labelled_only = method.load(before).partial_fit(X[1::2], Y[1::2])
    assert learnt_part(hasher.partial_fit(X, some)) == learnt_part(labelled_only)


def test_quality_does_not_fall_below_a_random_order(method: type[Hasher]) -> None:
    X, Y = toy()
    queries, answers = toy(200, seed=5)
    hasher = learnt(method)
    quality = evaluate(hasher.weigh(queries), hasher.encode(X), answers, Y)
    chance = float((answers @ Y.T.astype(int) > 0).mean())
    assert quality.map > chance + 0.05


BAD_FEATURES = [
    (lambda X: np.where(np.arange(len(X))[:, None] == 3, np.nan, X), InvalidInput),
    (lambda X: np.where(np.arange(len(X))[:, None] == 3, np.inf, X), InvalidInput),
    (lambda X: np.where(np.arange(len(X))[:, None] == 3, -np.inf, X), InvalidInput),
    (lambda X: np.where(np.arange(len(X))[:, None] == 3, 1e30, X), InvalidInput),
    (lambda X: X[:, 1:], InvalidInput),  # 47 features of 48
    (lambda X: X[0], InvalidInput),
    (lambda X: X[:, :0], InvalidInput),
    (lambda X: X.astype(complex), InvalidInput),
    (lambda X: X.astype(str), WrongType),
    (lambda X: [["a"] * X.shape[1]], WrongType),
    (lambda X: None, InvalidInput),
]


@pytest.mark.parametrize(("spoil", "error"), BAD_FEATURES)
def test_bad_features_are_refused_and_nothing_changes(method: type[Hasher], spoil: Any, error: type[Exception]) -> None:
    hasher, (X, Y) = learnt(method), toy()
    before, bad = hasher.state(), spoil(X)
    for call in (hasher.encode, hasher.weigh, lambda X: hasher.partial_fit(X, Y)):
        with pytest.raises(error, match=r"^X\b"):
            call(bad)
    if np.shape(bad) != (len(X), X.shape[1] - 1):  # another number of features is fine for a new fit
        with pytest.raises(error, match=r"^X\b"):
            hasher.fit(bad)
    assert hasher.state() == before


@pytest.mark.parametrize("labels", [[1, 2], np.full((1200, 8), 2), [[float("nan")]] * 1200, [[{}]] * 1200])
def test_bad_labels_are_refused_and_nothing_changes(method: type[Hasher], labels: Any) -> None:
    hasher, X = learnt(method), toy().X
    before = hasher.state()
    for call in (hasher.partial_fit, hasher.fit):
        with pytest.raises(InvalidInput, match=r"^Y\b"):
            call(X, labels)
    assert hasher.state() == before


@pytest.mark.parametrize("bits", [0, 7, 513, -1, 8.5, "32", True, None])
def test_bad_bits_are_refused(method: type[Hasher], bits: Any) -> None:
    X = toy(50).X
    with pytest.raises(InvalidInput, match=r"^bits\b"):
        method(bits=bits).fit(X)


def test_before_fit(method: type[Hasher]) -> None:
    X = toy(20).X
    for call in (method().encode, method().weigh):
        with pytest.raises(NotFitted):
            call(X)
    with pytest.raises(NotFitted):
        method().state()
    with pytest.raises(InvalidInput, match=r"^X\b"):
        method().fit(X[:1])
    with pytest.raises(InvalidInput, match=r"^nonsense\b"):
        method().set_params(nonsense=1)


def test_repr_lists_what_differs_from_the_defaults(method: type[Hasher]) -> None:
    assert repr(method(bits=16, random_state=3)) == f"{method.__name__}(bits=16, random_state=3)"
