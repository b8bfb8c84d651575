"""An integration whose package is not installed says which extra has it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import pytest

from stillhash.errors import MissingExtra


@pytest.mark.parametrize("name", ["haystack", "river"])
def test_the_error_names_the_extra(name: str) -> None:
    if find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    with pytest.raises(MissingExtra, match=rf"stillhash\[{name}\]"):
        import_module(f"stillhash.integrations.{name}")
