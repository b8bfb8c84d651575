"""scikit-learn's own checks of its conventions."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from stillhash import METHODS

pytestmark = pytest.mark.filterwarnings("default")


@parametrize_with_checks([method() for method in METHODS.values()])
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("method", METHODS.values())
def test_clone_keeps_parameters(method: Any) -> None:
    copy = clone(method(bits=24, random_state=5))
    assert copy.get_params() == method(bits=24, random_state=5).get_params()
