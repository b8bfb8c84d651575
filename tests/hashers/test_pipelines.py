"""Hashers as steps of pipelines of scikit-learn, and the tables that they return."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from stillhash import METHODS, Tally
from stillhash.errors import InvalidInput, NotFitted
from stillhash.hashers import FIXED_CODE_METHODS

CLASSES = np.array(["cat", "dog", "sea"])


def rows_of_classes(rows: int = 300) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    y = rng.integers(3, size=rows)
    scales = np.array([1, 100, 0.01, 1, 1, 10, 1, 1])
    return (rng.normal(size=(3, 8))[y] * 3 + rng.normal(size=(rows, 8))) * scales, CLASSES[y]


@pytest.mark.parametrize("method", METHODS.values())
def test_transform_returns_the_signs_of_codes(method: Any) -> None:
    X, y = rows_of_classes(120)
    hasher = method(bits=24)
    rows = hasher.fit_transform(X, y)
    bits = np.unpackbits(hasher.encode(X), axis=1, bitorder="little")[:, :24]
    assert rows.shape == (120, 24) and rows.dtype == np.float32
    assert np.array_equal(rows, np.where(bits, 1, -1))
    again = method(bits=24).fit(X, y)
    assert np.array_equal(rows, again.transform(X))
    names = [f"{method.__name__.lower()}{bit}" for bit in range(24)]
    assert hasher.get_feature_names_out().tolist() == names


@pytest.mark.parametrize("method", [METHODS[name] for name in FIXED_CODE_METHODS])
def test_pipeline_of_scaler_hasher_and_neighbours(method: Any) -> None:
    X, y = rows_of_classes()
    model = make_pipeline(StandardScaler(), method(bits=32), KNeighborsClassifier(5, metric="manhattan"))
    model.fit(X[:200], y[:200])
    assert model.score(X[200:], y[200:]) > 0.6  # by chance 0.33
    names = model[:-1].get_feature_names_out()
    assert len(names) == 32 and names[3] == f"{method.__name__.lower()}3"
    assert np.array_equal(clone(model).fit(X[:200], y[:200]).predict(X), model.predict(X))


def test_grid_search_over_parameters_of_a_hasher() -> None:
    X, y = rows_of_classes()
    model = Pipeline([("scale", StandardScaler()), ("codes", Tally(32)), ("classify", GaussianNB())])
    search = GridSearchCV(model, {"codes__bits": [8, 32], "codes__init": ["labels", "pca-itq"]}, cv=2)
    search.fit(X, y)
    assert search.best_score_ > 0.8
    assert search.best_estimator_["codes"].bits == search.best_params_["codes__bits"]
    assert len(search.cv_results_["params"]) == 4 and not np.isnan(search.cv_results_["mean_test_score"]).any()
    assert cross_val_score(search.best_estimator_, X, y, cv=2).min() > 0.7


@pytest.mark.parametrize("kind", ["default", "pandas", "polars"])
def test_set_output(kind: Any) -> None:
    X, y = rows_of_classes(50)
    hasher = Tally(16).set_output(transform=kind).fit(X, y)
    expected, table = Tally(16).fit(X, y).transform(X), hasher.transform(X)
    assert type(table) is {"default": np.ndarray, "pandas": pd.DataFrame, "polars": pl.DataFrame}[kind]
    assert np.array_equal(np.asarray(table), expected)
    if kind != "default":
        assert list(table.columns) == hasher.get_feature_names_out().tolist()
    copies = [clone(hasher).fit(X, y), copy.copy(hasher), copy.deepcopy(hasher), pickle.loads(pickle.dumps(hasher))]
    copies += [pickle.loads(pickle.dumps(clone(hasher))).fit(X, y), hasher.set_output()]
    assert {type(each.transform(X)) for each in copies} == {type(table)}
    assert {type(each.fit_transform(X, y)) for each in copies} == {type(table)}
    assert type(hasher.set_output(transform="default").transform(X)) is np.ndarray


def test_tables_keep_their_index_and_configuration_reaches_hashers() -> None:
    X, y = rows_of_classes(50)
    frame = pd.DataFrame(X, index=[f"row {number}" for number in range(50)])
    hasher = Tally(16).fit(frame, y)
    with config_context(transform_output="pandas"):
        table = hasher.transform(frame)
        assert isinstance(table, pd.DataFrame) and list(table.index) == list(frame.index)
        assert isinstance(Tally(16).set_output(transform="default").fit_transform(frame, y), np.ndarray)
    with config_context(transform_output="polars"):
        assert isinstance(hasher.transform(frame), pl.DataFrame)
    assert isinstance(hasher.transform(frame), np.ndarray)


def test_set_output_of_a_whole_pipeline() -> None:
    X, y = rows_of_classes(60)
    frame = pd.DataFrame(X, columns=[f"x{column}" for column in range(8)])
    union = FeatureUnion([("codes", Tally(16)), ("scaled", StandardScaler())])
    pipeline = make_pipeline(StandardScaler(), union).set_output(transform="pandas")
    table = pipeline.fit_transform(frame, y)
    assert list(table.columns)[:2] == ["codes__tally0", "codes__tally1"] and table.shape == (60, 24)
    assert list(table.columns) == pipeline.get_feature_names_out().tolist()
    columns = ColumnTransformer([("codes", Tally(8), ["x0", "x3"])], remainder="passthrough")
    table = columns.set_output(transform="polars").fit_transform(pl.from_pandas(frame), y)
    assert table.columns[0] == "codes__tally0" and table.shape == (60, 8 + 6)


@pytest.mark.parametrize("wrong", ["arrow", 3, ["pandas"]])
def test_unknown_tables_are_refused(wrong: Any) -> None:
    hasher = Tally(16).set_output(transform="pandas")
    with pytest.raises(InvalidInput, match="transform"):
        hasher.set_output(transform=wrong)
    X, y = rows_of_classes(50)
    assert isinstance(hasher.fit_transform(X, y), pd.DataFrame)  # as before


def test_names_need_hash_functions(tmp_path: Path) -> None:
    with pytest.raises(NotFitted):
        Tally(16).get_feature_names_out()
    with pytest.raises(NotFitted):
        Tally(16).transform([[1.0, 2.0]])
    X, y = rows_of_classes(50)
    hasher = Tally(16).fit(X, y)
    assert len(hasher.get_feature_names_out([f"x{column}" for column in range(8)])) == 16
    with pytest.raises(InvalidInput, match="input_features"):
        hasher.get_feature_names_out(["x"])
    hasher.save(tmp_path / "hasher")
    assert np.array_equal(Tally.load(tmp_path / "hasher").transform(X), hasher.transform(X))
