"""River: its own checks of its conventions, and what the transformer learns from a stream."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("river", reason="river is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed, and the checks of River need it")
pytest.importorskip("pandas", reason="pandas is not installed")

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st
from river import checks, compose, evaluate, linear_model, metrics, neighbors, preprocessing

from stillhash import Tally
from stillhash.errors import InvalidInput, WrongType
from stillhash.integrations.river import MAX_STREAM_FEATURES, MAX_STREAM_LABELS, StillhashTransformer
from tests.support.guides import run_guide

pytestmark = pytest.mark.integrations
SETTINGS = list(StillhashTransformer._unit_test_params())
CHECKS = 28  # that River has for a supervised transformer of rows and tables
SMALL: dict[str, Any] = {"bits": 32, "init_rows": 50, "batch_rows": 10}


def all_checks() -> Iterator[Any]:
    for number, params in enumerate(SETTINGS):
        for check in checks.yield_checks(StillhashTransformer(**params)):
            yield pytest.param(params, check, id=f"{number}-{check.__name__}")


@pytest.mark.parametrize(("params", "check"), list(all_checks()))
def test_checks_of_river(params: dict[str, Any], check: partial[None]) -> None:
    check(StillhashTransformer(**params))


def test_no_check_is_skipped() -> None:
    assert len(list(all_checks())) == CHECKS * len(SETTINGS)
    assert StillhashTransformer()._unit_test_skips() == set()


def stream(rows: int, seed: int = 0) -> list[tuple[dict[str, float], str]]:
    """Return rows of three labels, whose features tell the label through noise."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(3, 10))
    y = rng.integers(3, size=rows)
    X = centres[y] + rng.normal(size=(rows, 10))
    names = [f"x{column}" for column in range(10)]
    return [
        (dict(zip(names, row, strict=True)), "abc"[label]) for row, label in zip(X.tolist(), y.tolist(), strict=True)
    ]


def test_codes_stay_and_the_labels_are_learnt() -> None:
    bits, labels = StillhashTransformer(**SMALL), StillhashTransformer(output="labels", **SMALL)
    rows = stream(400)
    for x, y in rows[:50]:
        assert set(bits.transform_one(x).values()) == {0} and labels.transform_one(x) == {}
        bits.learn_one(x, y)
        labels.learn_one(x, y)
    codes, right = [bits.transform_one(x) for x, _ in rows], 0
    assert all(set(code.values()) == {-1, 1} and list(code)[:2] == ["bit0", "bit1"] for code in codes)
    for x, y in rows[50:]:
        evidence = labels.transform_one(x)
        right += max(evidence, key=lambda name: evidence[name]) == f"label={y}"
        bits.learn_one(x, y)
        labels.learn_one(x, y)
    assert codes == [bits.transform_one(x) for x, _ in rows]
    assert right > 0.75 * 350


def test_the_same_is_learnt_as_by_the_hasher_itself() -> None:
    """The slow twin: all rows at once, features in columns."""
    rows = stream(200)
    transformer = StillhashTransformer(output="labels", **SMALL)
    for x, y in rows:
        transformer.learn_one(x, y)
    X = np.array([[x[name] for name in sorted(x)] for x, _ in rows], np.float32)
    y = [[label] for _, label in rows]
    hasher = Tally(32, codes_see_labels=False).fit(X[:50], y[:50]).partial_fit(X, y)
    model, space = hasher.model(), hasher.label_space()
    assert model.U is not None and model.u is not None and space is not None
    expected = hasher.prepare(X[:20]) @ model.U + model.u
    for (x, _), values in zip(rows[:20], expected, strict=True):
        names = [f"label={name}" for name in space.names]
        assert transformer.transform_one(x) == pytest.approx(dict(zip(names, values.tolist(), strict=True)), abs=1e-4)


@settings(max_examples=10)
@given(data=st.data())
def test_tables_equal_rows_wherever_they_are_cut(data: st.DataObject) -> None:
    rows = stream(90)
    cuts = sorted(data.draw(st.sets(st.integers(1, 89), max_size=6)))
    missing = data.draw(st.sets(st.tuples(st.integers(0, 89), st.integers(0, 9)), max_size=20))
    sparse = [
        ({name: value for column, (name, value) in enumerate(x.items()) if (row, column) not in missing}, y)
        for row, (x, y) in enumerate(rows)
    ]
    one, many = (StillhashTransformer(output="labels", **SMALL) for _ in range(2))
    for x, y in sparse:
        one.learn_one(x, y)
    for start, end in zip([0, *cuts], [*cuts, 90], strict=True):
        many.learn_many(pd.DataFrame([x for x, _ in sparse[start:end]]), pd.Series([y for _, y in sparse[start:end]]))
    table = pd.DataFrame([x for x, _ in sparse], index=[f"row {row}" for row in range(90)])
    transformed = many.transform_many(table)
    assert list(transformed.index) == list(table.index)
    for (x, _), values in zip(sparse, transformed.to_dict(orient="records"), strict=True):
        assert one.transform_one(x) == pytest.approx(values, abs=1e-5)


def test_new_and_missing_features() -> None:
    rows = stream(100)
    transformer = StillhashTransformer(**SMALL)
    for x, y in rows:
        transformer.learn_one(x, y)
    x = rows[0][0]
    assert transformer.transform_one({**x, "new": 1e9, 7: 3}) == transformer.transform_one(x)
    means = {name: float(np.mean([row[name] for row, _ in rows[:50]])) for name in ("x1", "x2")}
    fewer = {name: value for name, value in x.items() if name not in means}
    assert transformer.transform_one({**fewer, "x1": None}) == transformer.transform_one({**x, **means})
    assert set(transformer.transform_one({}).values()) <= {-1, 1}
    again = pickle.loads(pickle.dumps(transformer))
    for x, y in rows:
        transformer.learn_one(x, y)
        again.learn_one(x, y)
    assert [again.transform_one(x) for x, _ in rows] == [transformer.transform_one(x) for x, _ in rows]


@pytest.mark.parametrize(
    ("y", "names"),
    [
        (True, {"label=True"}),
        (np.bool_(True), {"label=True"}),
        (3, {"label=3"}),
        (["b", "a"], {"label=a", "label=b"}),
        ({"a", 1}, {"label=a", "label=1"}),
        ({"a": True, "b": False}, {"label=a"}),
        (None, set()),
        ([], set()),
    ],
)
def test_targets(y: Any, names: set[str]) -> None:
    transformer = StillhashTransformer(output="labels", **SMALL)
    for number, (x, _) in enumerate(stream(60)):
        transformer.learn_one(x, [y, "p", "q"][number % 3])
    assert set(transformer.transform_one({})) == names | {"label=p", "label=q"}


def test_labels_and_features_are_bounded() -> None:
    transformer = StillhashTransformer(output="labels", bits=8, init_rows=20, batch_rows=100)
    for number, (x, _) in enumerate(stream(MAX_STREAM_LABELS + 200)):
        transformer.learn_one({"x0": x["x0"], "x1": x["x1"]}, number)
    assert len(transformer.transform_one({})) == MAX_STREAM_LABELS
    wide = StillhashTransformer(**SMALL)
    wide.learn_one({"a": 1.0}, "y")
    before = pickle.dumps(wide)
    with pytest.raises(InvalidInput):
        wide.learn_one(dict.fromkeys(range(MAX_STREAM_FEATURES), 1.0), "y")
    assert pickle.dumps(wide) == before


@pytest.mark.parametrize("bad", [{"a": "text"}, {"a": float("nan")}, {"a": float("inf")}, {"a": [1]}, {"a": 1e30}, [1]])
def test_bad_rows_change_nothing(bad: Any) -> None:
    for rows in (10, 60):
        transformer = StillhashTransformer(**SMALL)
        for x, y in stream(rows):
            transformer.learn_one(x, y)
        before = pickle.dumps(transformer)
        with pytest.raises(InvalidInput):
            transformer.learn_one(bad, "a")
        with pytest.raises(InvalidInput):
            transformer.transform_one(bad)
        assert pickle.dumps(transformer) == before


def test_bad_tables_change_nothing() -> None:
    transformer = StillhashTransformer(**SMALL)
    before = pickle.dumps(transformer)
    for table, y in ((pd.DataFrame({"a": [1.0, 2.0]}), [1]), (pd.DataFrame({"a": [1.0, "x"]}), [1, 2])):
        with pytest.raises(InvalidInput):
            transformer.learn_many(table, y)
    with pytest.raises(WrongType):
        transformer.learn_many([{"a": 1.0}], [1])
    assert pickle.dumps(transformer) == before


@pytest.mark.parametrize(
    "wrong", [{"bits": 3}, {"output": "signs"}, {"init_rows": 1}, {"batch_rows": 0}, {"seed": None}, {"bits": "64"}]
)
def test_wrong_parameters(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        StillhashTransformer(**wrong)


@pytest.mark.parametrize(
    ("output", "model"),
    [
        ("bits", neighbors.KNNClassifier(5)),
        ("labels", linear_model.SoftmaxRegression()),
        ("bits", linear_model.SoftmaxRegression()),
    ],
)
def test_progressive_validation_in_a_pipeline(output: Any, model: Any) -> None:
    transformer = StillhashTransformer(output=output, **{**SMALL, "bits": 16})
    pipeline = compose.Pipeline(preprocessing.StandardScaler(), transformer, model)
    accuracy = evaluate.progressive_val_score(stream(400), pipeline, metrics.Accuracy())
    assert accuracy.get() > 0.65  # by chance 0.33
    assert pipeline.clone()["StillhashTransformer"].output == output


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_guide("integrations/river.md", monkeypatch, tmp_path) >= 2
