"""What every method is: hash functions, a way to learn, and weights for a query; its parameters and its saved state.

All methods share one score, weigh(q) . signs(encode(x)). Plain Hamming ranking is the case weigh(q) = signs(encode(q)),
which the base class supplies, so a Hamming baseline is its parameters, `_begin` and `_learn`.

Callers pass raw vectors. Pre-processing belongs to the hasher and treats queries and items alike: centre on the
mean of the initial sample, scale to unit norm (a zero row stays zero). Both can be switched off.

Hashers are transformers of scikit-learn too: the signs of the codes are features of the next step of a pipeline.
Nothing here imports scikit-learn, or pandas or polars before a table of theirs is chosen by `set_output`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stillhash.errors import BadState, InvalidInput, MissingExtra, NotFitted, report_shortages
from stillhash.files import saved_path, write_durably
from stillhash.hashers.state import State, add_digest, read_state, state_bytes, write_state
from stillhash.numeric import kernels
from stillhash.numeric.codes import signs, width
from stillhash.numeric.labels import Labels, parse_labels
from stillhash.numeric.ranking import Ranking, half_power
from stillhash.numeric.regression import unit_rows
from stillhash.numeric.validation import (
    Codes,
    Doubles,
    Floats,
    check_arrays,
    check_bits,
    check_choice,
    check_codes,
    check_features,
    check_integer,
    check_number,
)

if TYPE_CHECKING:
    from stillhash.hashers.linear import LinearHasher

ENCODE_ROWS = 128  # rows are prepared and encoded at a time, so that they stay in the cache
OUTPUT_CONFIG = "_sklearn_output_config"  # holds what `set_output` chose, where scikit-learn's `clone` looks for it
PICKLED_BESIDE_STATE = ("stale_", OUTPUT_CONFIG)  # attributes are pickled beside the state
OutputTable = Literal["default", "pandas", "polars"]


Side = Literal["hamming", "similarity", "features", "code", "labels"]  # of a query, that a model multiplies


class Model(NamedTuple):
    """The learnt part of a ranking: weights = side(q) @ M + m.

    side(q) is the features of a query, the signs of its code, or its predicted labels: max(q @ U + u, 0) to the power
    of `power`. "hamming" and "similarity" need no M: their weights are the signs of the query's code, and the query
    before it is quantised. N, if there is one, is a correction by the features: + q @ N.

    With a `balance` r, weights are r times those, of unit norm, and 1 - r times those of similarity. With V, the
    first page is ordered by the labels predicted of query and code: see `numeric.ranking`.
    """

    side: Side
    M: Floats | None = None
    m: Floats | None = None
    U: Floats | None = None  # (D, labels)
    u: Floats | None = None  # (labels,)
    power: float = 1.0
    N: Floats | None = None  # (D, b)
    balance: float | None = None  # None: weights as they are, and the first page by score
    V: Floats | None = None  # (b, labels), and
    v: Floats | None = None  # (labels,): of a code, x @ V + v are predicted
    query_length: float = 0.0  # of labels predicted of the rows learnt, the root mean square; 0: not known
    query_power: float = 1.0  # that predicted labels are raised to on the first page, of queries
    item_power: float = 1.0  # and of codes
    label_bits: int = 0  # so many of the first bits hold the labels of rows that were stored with them, not features
    plain_share: float = 0.0  # of the stored rows, those without labels
    held_share: float = 0.0  # of the stored codes, those that hold labels
    label_names: list[Hashable] | None = None  # of the columns of U; None: not known
    label_weights: Floats | None = None  # (labels,): how much sharing each counts; None: all alike

    @property
    def learnt(self) -> bool:
        return self.M is not None or self.N is not None

    def resolve_balance(self, balance: float | None = None) -> float | None:
        """Return the balance that a search by this one has; None, for both, leaves it to the model, or is none."""
        if self.side == "similarity":
            return 0.0
        return self.balance if balance is None else balance


class LabelSpace(NamedTuple):
    """The labels of a model with U, in order; and the rows that it has learnt, for what a change of U would change."""

    names: list[Hashable]
    rows: float
    squares: Doubles  # (D, D) sum of x x^T over prepared rows x


# Parameters, with their checks, which serve for saved values too.

Check = Callable[[Any, str], object]  # refuses a bad value of a parameter, by its name
POSITIVE: Check = partial(check_number, above=0)
NOT_NEGATIVE: Check = partial(check_number, low=0)
COUNT: Check = partial(check_integer, low=0)
AT_LEAST_ONE: Check = partial(check_integer, low=1)
FLAG: Check = partial(check_choice, choices=(True, False))


def one_of(*choices: Any) -> Check:
    return partial(check_choice, choices=choices)


def optional(check: Check) -> Check:
    return lambda value, name: None if value is None else check(value, name)


def parameter(default: Any, check: Check) -> Any:
    """Return a dataclass field; `Hasher.check_parameters` runs its check."""
    return field(default=default, metadata={"check": check})


@report_shortages
@dataclass(eq=False, repr=False)
class Hasher:
    """Base of all methods. Subclasses add parameters, `_begin` (the initial stage) and `_learn` (a labelled chunk).

    For lack of memory `fit` changes nothing; after a `partial_fit` that raises, use a copy from before it (`state`).

    bits : code length b, 8 to 512.
    center, unit_norm : pre-processing of features and queries.
    random_state : seed of all that is drawn.
    """

    name: ClassVar[str]  # its key in METHODS, and in saved state
    supervised: ClassVar[bool] = True  # False: it learns from every row, labelled or not
    chunk_invariant: ClassVar[bool] = True  # False: what it learns depends on how the stream is cut into chunks
    fixed_codes: ClassVar[bool] = False  # True: codes never go stale
    # Entries of the next two add to those of the base classes.
    saved_arrays: ClassVar[dict[str, str]] = {"mean": "float32 D"}  # learnt arrays, less "_": see `check_arrays`
    saved_values: ClassVar[dict[str, Check]] = {}  # learnt numbers, less "_"
    saved_labels: ClassVar[str] = ""  # under what name the names of labels_, of n rows, are saved
    # Parameters that earlier releases had and saved, each by the value that is left, which is not a parameter any more.
    retired: ClassVar[dict[str, Any]] = {}

    bits: int = parameter(32, check_bits)
    _: KW_ONLY
    center: bool = parameter(True, FLAG)
    unit_norm: bool = parameter(True, FLAG)
    random_state: int = parameter(0, COUNT)

    codes_see_labels = False  # True: rows that are encoded with their labels get codes that hold them
    rescore_bits = 0  # others: rows are learnt by rescoring codes of so many bits a dimension
    stale_ = False  # whether the last partial_fit changed encode()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        report_shortages(cls)

    def fit(self, X: ArrayLike, Y: Any = None) -> Self:
        """Fix pre-processing and hash functions on the first few hundred rows: the initial stage.

        It does not learn the similarity: stream the same rows through `partial_fit` too. Calling it again starts over.
        """
        X = check_features(X, least=2)
        labels = parse_labels(Y, len(X))
        fresh = type(self)(**self.get_params())
        fresh.begin(X, labels)
        for learnt in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, learnt)
        vars(self).update(vars(fresh))
        return self

    def partial_fit(self, X: ArrayLike, Y: Any = None, codes: Codes | None = None) -> Self:
        """Learn from one chunk of the stream, of any size; rows without labels teach nothing.

        codes: those that are stored of these rows, if they were encoded with labels; None: as `encode(X)` returns.
        Before the hash functions are fixed, the first chunk fixes them, as `fit` would.
        """
        if not hasattr(self, "mean_"):
            self.fit(X, Y)
        X = self._checked(X)
        if codes is not None and len(check_codes(codes, self.bits)) != len(X):
            raise InvalidInput(f"codes: expected one for each of {len(X)} rows, got {len(codes)}")
        self.learn_rows(X, parse_labels(Y, len(X)), codes)
        return self

    def learn_rows(self, X: Floats, labels: Labels, codes: Codes | None = None) -> None:
        """Learn from validated rows, as `partial_fit` does; `codes` are theirs, if they are encoded already."""
        learnt = labels.labelled if self.supervised else np.ones(len(X), bool)
        self.stale_ = False
        if not learnt.all():
            X, labels, codes = X[learnt], labels.rows(learnt), None if codes is None else codes[learnt]
        if len(X):
            self._learn(self.prepare(X), labels, codes)

    def count_unlabelled(self, rows: int) -> None:
        """Take note of so many rows that are stored without labels, where they make a difference."""

    def begin(self, X: Floats, labels: Labels) -> None:
        """Do the initial stage on validated rows."""
        self.check_parameters()
        self.n_features_in_: int = X.shape[1]
        mean = X.mean(axis=0, dtype=np.float64).astype(np.float32) if self.center else np.zeros_like(X[0])
        self.mean_: Floats = mean  # (D,)
        self.labels_ = Labels.empty()  # of rows that are stored, where saved_labels says that any are
        self._begin(self.prepare(X), labels, np.random.default_rng(self.random_state))

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        raise NotImplementedError

    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        """Learn from prepared, labelled rows and, if they are known, their codes; set stale_ if encode() changes."""

    def encode(self, X: ArrayLike, Y: Any = None, *, threads: int | None = None) -> Codes:
        """Encode rows of features to packed codes (n, ceil(bits / 8)); only `codes_see_labels` methods use labels Y.

        threads: the most that linear hash functions use; None: one for each usable core. Few rows use fewer.
        """
        X = self._checked(X)
        return self.encode_checked(X, None if Y is None else parse_labels(Y, len(X)), threads)

    def encode_checked(self, X: Floats, labels: Labels | None = None, threads: int | None = None) -> Codes:
        """Encode rows that are validated already."""
        if labels is not None and self.codes_see_labels and (labelled := labels.labelled).any():
            codes = np.empty((len(X), width(self.bits)), np.uint8)
            codes[labelled] = self._labelled_codes(self.prepare(X[labelled]), labels.rows(labelled))
            codes[~labelled] = self._encode_features(X[~labelled], threads)
            return codes
        return self._encode_features(X, threads)

    def weigh(self, Q: ArrayLike) -> Floats:
        """Return the weights (m, bits) of queries: score(q, x) = weigh(q) . signs(encode(x))."""
        self._check_fitted()
        return self.weigh_by(self.model(), Q)

    def weigh_by(self, model: Model, Q: ArrayLike) -> Floats:
        """Return the weights of queries by a model of the same hash functions, of this or an earlier version."""
        Q = self._checked(Q)
        if model.side == "similarity" or model.balance is not None:
            return self.functions().ranking_by(model, Q).weights
        if model.M is None:
            weights = signs(self.encode_checked(Q), self.bits)
        else:
            weights = kernels.project(self._query_side(model, Q), model.M)
        if model.m is not None:
            weights = weights + model.m
        return weights if model.N is None else weights + kernels.project(self.prepare(Q), model.N)

    def ranking(self, Q: ArrayLike, *, balance: float | None = None) -> Ranking:
        """Return how queries rank codes: by their weights, and for the default method what places the first page.

        balance: from 0, hits that look alike, to 1, hits with the same labels; None as the method chooses.
        """
        self._check_fitted()
        if self.fixed_codes:
            return self.functions().ranking_by(self.model(), Q, balance=balance)
        if balance is not None:
            raise InvalidInput(f"balance: expected None for {type(self).__name__}, whose codes change, got {balance}")
        return Ranking(self.weigh(Q))

    def model(self) -> Model:
        """Return what is learnt of the similarity so far."""
        return self.initial_model()

    def initial_model(self) -> Model:
        """Return the ranking before anything is learnt: by Hamming distance, as published."""
        return Model("hamming")

    def label_space(self) -> LabelSpace | None:
        """Return the labels of its model; None if it has none one by one."""
        return None

    def functions(self) -> LinearHasher:
        """Return the hash functions alone, of a method with fixed codes."""
        raise InvalidInput(f"hasher: expected a method with fixed hash functions, got {type(self).__name__}")

    def keep(self, X: ArrayLike) -> Codes:
        """Return what `refresh` needs of rows besides their raw features: (n, 0), nothing, for most methods."""
        return np.empty((len(self._checked(X)), 0), np.uint8)

    def refresh(self, stored: Codes, features: Callable[[], ArrayLike]) -> Codes:
        """Return the codes that encode() gives now, for when they went stale; `features` reads the raw rows."""
        return self.encode(features())

    def _query_side(self, model: Model, Q: Floats) -> Floats:
        """Return what a model multiplies, of checked queries."""
        if model.side == "code":
            return signs(self.encode_checked(Q), self.bits)
        X = self.prepare(Q)
        return X if model.U is None else half_power(kernels.project(X, model.U) + model.u, model.power)

    def _in_batches(self, rows: NDArray[Any], encode: Callable[[Any], Codes]) -> Codes:
        """Encode all rows, a few at a time."""
        starts = range(0, max(1, len(rows)), ENCODE_ROWS)  # no rows have codes too, none
        return np.concatenate([encode(rows[start : start + ENCODE_ROWS]) for start in starts])

    def _encode_features(self, X: Floats, threads: int | None) -> Codes:
        """Encode validated rows without labels."""
        return self._in_batches(X, lambda rows: self._codes(self.prepare(rows)))

    def _codes(self, X: Floats) -> Codes:
        """Encode prepared rows."""
        raise NotImplementedError

    def _labelled_codes(self, X: Floats, labels: Labels) -> Codes:
        """Encode prepared rows that all have labels, where codes see labels."""
        raise NotImplementedError

    def _check_fitted(self) -> None:
        if not hasattr(self, "mean_"):
            raise NotFitted(f"this {type(self).__name__} is not fitted. Call fit, or partial_fit, with a first sample.")

    def _checked(self, X: ArrayLike, *, finite: bool = True) -> Floats:
        self._check_fitted()
        return check_features(X, columns=self.n_features_in_, whose=type(self).__name__, finite=finite)

    def prepare(self, X: Floats) -> Floats:
        """Return validated rows centred and scaled, as the hash functions and the model see them."""
        if self.center:
            X = X - self.mean_
        return unit_rows(X, out=X if self.center else None) if self.unit_norm else X

    def state(self) -> bytes:
        """Return all parameters and learnt arrays, in the safetensors format. `load` restores them to the byte."""
        self._check_fitted()
        about = {"method": self.name, "params": self.params_to_json(), "extra": self._extra()}
        return write_state(about, self._arrays())

    @classmethod
    def load(cls, state: State) -> Self:
        """Return the hasher of these bytes of `state()`, or of the file that `save` wrote. Nothing is executed."""
        description, arrays = read_state(state_bytes(state))
        if description["method"] != cls.name:
            raise BadState(f"state: expected the method {cls.name!r}, got {description['method']!r}")
        try:
            hasher = cls(**cls.params_from_json(description["params"]))
            hasher.check_parameters()
            hasher._restore(arrays, description["extra"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadState(f"state: does not describe a {cls.__name__}: {error}") from error
        return hasher

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """Return the learnt arrays by name."""
        labels = self.labels_.arrays() if self.saved_labels else {}
        return {name: getattr(self, f"{name}_") for name in self._declared("saved_arrays")} | labels

    def _extra(self) -> dict[str, Any]:
        """Return what else is learnt, as JSON."""
        labels = {self.saved_labels: self.labels_.names} if self.saved_labels else {}
        return {name: getattr(self, f"{name}_") for name in self._declared("saved_values")} | labels

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        """Take over what `_arrays` and `_extra` gave, and derive the rest."""
        sizes = {"b": self.bits, "bytes": width(self.bits)}
        check_arrays(arrays, self._declared("saved_arrays"), sizes)
        self.n_features_in_ = sizes["D"]
        for name in self._declared("saved_arrays"):
            setattr(self, f"{name}_", arrays[name])
        for name, check in self._declared("saved_values").items():
            setattr(self, f"{name}_", check(extra[name], name))
        if self.saved_labels:
            self.labels_ = Labels.from_arrays(arrays, extra[self.saved_labels], sizes["n"])

    @classmethod
    def _declared(cls, table: str) -> dict[str, Any]:
        """Return a table of the class with the entries of its base classes, theirs first."""
        return {name: entry for base in reversed(cls.__mro__) for name, entry in vars(base).get(table, {}).items()}

    # Its parameters, which are its dataclass fields: as scikit-learn reads and sets them, and as JSON.

    def check_parameters(self) -> None:
        """Refuse parameters that no model can be fitted with."""
        for each in fields(self):
            if check := each.metadata.get("check"):
                check(getattr(self, each.name), each.name)

    def params_to_json(self) -> dict[str, Any]:
        """Return the parameters as JSON can represent them."""
        return self.get_params()

    @classmethod
    def params_from_json(cls, params: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters that `params_to_json` gave, in this release or an earlier one."""
        for name, left in cls.retired.items():
            if params.get(name, left) != left:
                raise BadState(f"{name}: expected {left!r}, which alone is left of it, got {params[name]!r}")
        return {name: value for name, value in params.items() if name not in cls.retired}

    @classmethod
    def parameters(cls) -> list[str]:
        """Return the names of all parameters, those of the base classes included."""
        return sorted(each.name for each in fields(cls) if each.init)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name."""
        return {name: getattr(self, name) for name in self.parameters()}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name."""
        for name, value in params.items():
            if name not in self.parameters():
                raise InvalidInput(f"{name}: expected one of the parameters {', '.join(self.parameters())}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {each.name: each.default for each in fields(self)}
        params = {n: v for n, v in self.get_params().items() if n == "bits" or v != defaults[n]}
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in params.items())})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        tags = {"target_tags": TargetTags(required=False), "input_tags": InputTags()}
        return Tags(estimator_type=None, transformer_tags=TransformerTags(preserves_dtype=[]), **tags)

    # Files, pickles and copies, by its state and not by its objects.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, whole or not at all; it is on disk when this returns. `stillhash.load` reads it.

        It is a safetensors file with a digest, by which `load` notices damage.
        """
        write_durably(saved_path(path), [add_digest(self.state())])

    def __reduce__(self) -> tuple[Any, ...]:
        state = self.state() if hasattr(self, "mean_") else None
        flags = {name: value for name, value in vars(self).items() if name in PICKLED_BESIDE_STATE}
        return restore_hasher, (type(self), state, self.get_params() if state is None else None), flags

    def __copy__(self) -> Self:
        """Return another hasher with the same arrays; `copy.deepcopy` copies them too."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    # The verbs by which a pipeline of scikit-learn calls a transformer.

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


def restore_hasher(cls: type[Hasher], state: bytes | None, params: dict[str, Any] | None) -> Hasher:
    """Return the hasher that was pickled or copied: of this state, or not fitted."""
    return cls(**(params or {})) if state is None else cls.load(state)
