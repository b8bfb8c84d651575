"""Hashers as transformers of scikit-learn: the signs of the codes as features of the next step of a pipeline.

Nothing here imports scikit-learn, or pandas or polars before a table of theirs is chosen by `set_output`.
"""

import sys
from importlib import import_module
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stillhash.errors import InvalidInput, MissingExtra, NotFitted
from stillhash.hashers.state import OUTPUT_CONFIG
from stillhash.numeric.codes import signs
from stillhash.numeric.validation import Codes, Floats, check_choice

OutputTable = Literal["default", "pandas", "polars"]


class CodeTransformer:
    """The verbs by which a pipeline calls a transformer."""

    bits: int
    n_features_in_: int

    def fit(self, X: ArrayLike, Y: Any = None) -> Self:
        raise NotImplementedError

    def encode(self, X: ArrayLike, Y: Any = None, *, threads: int | None = None) -> Codes:
        raise NotImplementedError

    def transform(self, X: ArrayLike) -> Any:
        """Return the signs (n, bits) of the codes of rows, -1 and +1, as an array, or as the table of `set_output`.

        Twice the Hamming distance of two codes is the Manhattan distance of their signs; their Euclidean distance
        orders alike.
        """
        rows: Floats = signs(self.encode(X), self.bits)
        kind = self._output_table()
        if kind == "default":
            return rows
        try:
            library = import_module(kind)
        except ImportError as error:
            raise MissingExtra(f"set_output: {kind} is not installed: pip install {kind}") from error
        names = self.get_feature_names_out().tolist()
        if kind == "polars":
            return library.DataFrame(rows, schema=names, orient="row")
        return library.DataFrame(rows, columns=names, index=getattr(X, "index", None))

    def fit_transform(self, X: ArrayLike, y: Any = None) -> Any:
        """Fix the hash functions on these rows, as `fit` does, and return what `transform` returns of them."""
        return self.fit(X, y).transform(X)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the columns that `transform` returns: tally0, tally1, ...

        input_features: the names of the features, which are checked for their number and make no difference.
        """
        if not hasattr(self, "n_features_in_"):
            raise NotFitted(f"this {type(self).__name__} is not fitted. Call fit, or partial_fit, with a first sample.")
        if input_features is not None and len(input_features) != self.n_features_in_:
            expected = f"input_features: expected {self.n_features_in_} names"
            raise InvalidInput(f"{expected}, got {len(input_features)}")
        return np.array([f"{type(self).__name__.lower()}{bit}" for bit in range(self.bits)], object)

    def set_output(self, *, transform: OutputTable | None = None) -> Self:
        """Choose what `transform` returns: "default", an array, or a table of "pandas" or "polars"; None: as before."""
        if transform is not None:
            check_choice(transform, "transform", choices=("default", "pandas", "polars"))
            setattr(self, OUTPUT_CONFIG, {"transform": transform})
        return self

    def _output_table(self) -> str:
        """Return the kind of table that was set for this hasher, or in scikit-learn's configuration for all."""
        own = getattr(self, OUTPUT_CONFIG, {}).get("transform")
        if own is None and (sklearn := sys.modules.get("sklearn")) is not None:
            own = sklearn.get_config()["transform_output"]
        return str(own or "default")
