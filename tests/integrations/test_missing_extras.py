"""An integration whose package is not installed says which extra to install."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from stillhash.errors import MissingExtra

INTEGRATIONS = ["faiss", "fiftyone", "haystack", "river"]  # the name of the package, of the extra and of the module


@pytest.mark.parametrize("name", INTEGRATIONS)
def test_missing_package_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"stillhash.integrations.{name}"
    for loaded in [each for each in sys.modules if f"{each}.".startswith((f"{name}.", f"{module}."))]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not there
    with pytest.raises(MissingExtra, match=rf"stillhash\[{name}\]"):
        import_module(module)
