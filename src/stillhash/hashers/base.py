"""What every method is: hash functions, a way to learn, and weights for a query.

All methods share one score, weigh(q) . signs(encode(x)). Plain Hamming ranking is the case weigh(q) = signs(encode(q)),
which this base class supplies, so a Hamming baseline is its parameters, `_begin` and `_learn`.

Callers pass raw vectors. Pre-processing belongs to the hasher and treats queries and items alike: centre on the
mean of the initial sample, scale to unit norm (a zero row stays zero). Both can be switched off.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from stillhash.errors import BadState, InvalidInput, NotFitted
from stillhash.numeric import kernels
from stillhash.numeric.alignment import unit_rows
from stillhash.numeric.codes import pack, signs, width
from stillhash.numeric.hashing import HashFunctions
from stillhash.numeric.labels import Labels, parse_labels
from stillhash.numeric.validation import Codes, Floats, check_bits, check_features, check_integer

FORMAT = 1  # of state()
STEPS, EDGE = 200, np.float32(0.02)  # of decode: the most it takes, and how far from an edge it wants to be
CHUNK = 128  # rows prepared and encoded at a time, so that they stay in the cache


class Model(NamedTuple):
    """What `weigh` knows beyond the hash functions: weights = side(q) @ M + m. Small, immutable, and easily swapped.

    What is seen of a query is its features, the signs of its code, or its labels as predicted: max(q @ U + u, 0) to the
    power of `power`. "hamming" needs no M. N, if there is one, is a correction by the features: + q @ N.
    """

    side: Literal["hamming", "features", "code", "labels"]
    M: Floats | None = None
    m: Floats | None = None
    U: Floats | None = None  # (D, labels)
    u: Floats | None = None  # (labels,)
    power: float = 1.0
    N: Floats | None = None  # (D, b)

    @property
    def learnt(self) -> bool:
        return self.M is not None or self.N is not None


class LabelSpace(NamedTuple):
    """Labels as a model sees them: of a prepared query q @ U + u; and what each adds to the weights, rare or not."""

    names: list[Hashable]
    U: Floats  # (D, labels)
    u: Floats  # (labels,)
    V: Floats  # (labels, b)


class OnlineHasher(Protocol):
    """The protocol that search, collections and experiments rely on."""

    bits: int
    stale_: bool  # True: codes encoded earlier no longer match encode()

    def fit(self, X: Any, Y: Any = None) -> Self: ...
    def partial_fit(self, X: Any, Y: Any = None) -> Self: ...
    def encode(self, X: Any) -> Codes: ...
    def weigh(self, Q: Any) -> Floats: ...
    def keep(self, X: Any) -> Codes: ...
    def refresh(self, kept: Codes, features: Callable[[], Any]) -> Codes: ...


class Hasher:
    """Base of all methods. Subclasses add parameters, `_begin` (the initial stage) and `_learn` (a labelled chunk)."""

    name: ClassVar[str]  # its key in METHODS, and in saved state
    supervised: ClassVar[bool] = True  # False: it learns from every row, labelled or not
    chunk_invariant: ClassVar[bool] = True  # False: what it learns depends on how the stream is cut into chunks
    fixed_codes: ClassVar[bool] = False  # True: codes never go stale
    tunable: ClassVar[dict[str, tuple[Any, ...]]] = {}  # values that Tuned tries, by parameter
    stale_: bool = False  # whether the last partial_fit changed encode()

    def __init__(self, bits: int = 32, *, center: bool = True, unit_norm: bool = True, random_state: int = 0) -> None:
        self.bits = bits
        self.center = center
        self.unit_norm = unit_norm
        self.random_state = random_state

    # ---- learning ----

    def fit(self, X: Any, Y: Any = None) -> Self:
        """The initial stage: fixes pre-processing and hash functions on the first few hundred rows.

        It does not learn the similarity: stream the same rows through `partial_fit` too. Calling it again starts over.
        """
        X = check_features(X, least=2)
        labels = parse_labels(Y, len(X))
        fresh = type(self)(**self.get_params())
        fresh._start(X, labels)
        for learnt in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, learnt)
        vars(self).update(vars(fresh))
        return self

    def partial_fit(self, X: Any, Y: Any = None) -> Self:
        """Learns from one chunk of the stream, of any size; rows without labels teach nothing.

        Before the hash functions are fixed, the first chunk fixes them, as `fit` would.
        """
        if not hasattr(self, "mean_"):
            check_features(X, least=2)
            self.fit(X, Y)
        X = self._checked(X)
        self.learn_rows(X, parse_labels(Y, len(X)))
        return self

    def learn_rows(self, X: Floats, labels: Labels, codes: Codes | None = None) -> None:
        """Learn from validated rows, as `partial_fit` does; `codes` are theirs, if they are encoded already."""
        learnt = labels.labelled if self.supervised else np.ones(len(X), bool)
        self.stale_ = False
        if not learnt.all():
            X, labels, codes = X[learnt], labels.rows(learnt), None if codes is None else codes[learnt]
        if len(X):
            self._learn(self.prepare(X), labels, codes)

    def _start(self, X: Floats, labels: Labels) -> None:
        self.check_parameters()
        self.n_features_in_ = X.shape[1]
        self.mean_ = X.mean(axis=0, dtype=np.float64).astype(np.float32) if self.center else np.zeros_like(X[0])
        self._begin(self.prepare(X), labels, np.random.default_rng(self.random_state))

    def check_parameters(self) -> None:
        check_bits(self.bits)
        check_integer(self.random_state, "random_state", 0)

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        raise NotImplementedError

    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        """Learn from prepared, labelled rows and, if they are known, their codes; set stale_ if encode() changes."""

    # ---- using ----

    def encode(self, X: Any) -> Codes:
        """The codes (n, ceil(bits / 8)) of rows of features."""
        return self.encode_checked(self._checked(X))

    def weigh(self, Q: Any) -> Floats:
        """The weights (m, bits) of queries: score(q, x) = weigh(q) . signs(encode(x))."""
        Q = self._checked(Q)
        return self._weights(self.model(), Q)

    def model(self) -> Model:
        """What it has learnt of the similarity so far; plain Hamming ranking if that is nothing."""
        return Model("hamming")

    def label_space(self) -> LabelSpace | None:
        """The labels its model is made of; None if it knows none one by one."""
        return None

    def functions(self) -> LinearHasher:
        raise InvalidInput(f"{type(self).__name__} has no hash functions that stand still")

    def weigh_by(self, model: Model, Q: Any) -> Floats:
        """The weights of queries by a model of the same hash functions, of another time perhaps."""
        return self._weights(model, self._checked(Q))

    def keep(self, X: Any) -> Codes:
        """What `refresh` needs of rows besides their raw features: (n, 0), nothing, unless a method says otherwise."""
        return np.empty((len(self._checked(X)), 0), np.uint8)

    def refresh(self, kept: Codes, features: Callable[[], Any]) -> Codes:
        """The codes that encode() gives now, for when they went stale; `features` reads the raw rows, if needed."""
        return self.encode(features())

    def encode_checked(self, X: Floats) -> Codes:
        """The codes of rows that passed the door."""
        return self._chunked(X, lambda rows: self._codes(self.prepare(rows)))

    def _weights(self, model: Model, Q: Floats) -> Floats:
        """Of checked queries."""
        if model.M is None:
            weights = signs(self.encode_checked(Q), self.bits)
        else:
            weights = kernels.project(self._side(model, Q), model.M)
        if model.m is not None:
            weights = weights + model.m
        return weights if model.N is None else weights + kernels.project(self.prepare(Q), model.N)

    def _side(self, model: Model, Q: Floats) -> Floats:
        """Of checked queries, what a model multiplies."""
        if model.side == "code":
            return signs(self.encode_checked(Q), self.bits)
        seen = self.prepare(Q)
        return seen if model.U is None else raised(kernels.project(seen, model.U) + model.u, model.power)

    def _chunked(self, rows: NDArray[Any], code: Callable[[Any], Codes]) -> Codes:
        """The codes of all rows, a few at a time."""
        codes = np.empty((len(rows), width(self.bits)), np.uint8)
        for s in range(0, len(rows), CHUNK):
            codes[s : s + CHUNK] = code(rows[s : s + CHUNK])
        return codes

    def _codes(self, X: Floats) -> Codes:
        """Of prepared rows."""
        raise NotImplementedError

    # ---- pre-processing ----

    def _checked(self, X: Any) -> Floats:
        if not hasattr(self, "mean_"):
            raise NotFitted(
                f"this {type(self).__name__} is not fitted yet: call fit, or partial_fit, with a first sample"
            )
        return check_features(X, columns=self.n_features_in_, whose=type(self).__name__)

    def prepare(self, X: Floats) -> Floats:
        """Return validated rows centred and scaled, as the hash functions and the model see them."""
        if self.center:
            X = X - self.mean_
        if self.unit_norm:
            norms = np.sqrt(np.einsum("ij,ij->i", X, X))[:, None]
            X = np.divide(X, np.where(norms > 0, norms, np.float32(1)), out=X if self.center else None)
        return X

    n_features_in_: int
    mean_: Floats

    # ---- state ----

    def state(self) -> bytes:
        """Everything it is and has learnt, in the safetensors format. `load` brings it back to the byte."""
        self._checked(np.empty((0, getattr(self, "n_features_in_", 1))))
        about = {"format": FORMAT, "method": self.name, "params": self.params_to_json(), "extra": self._extra()}
        try:
            text = json.dumps(about, sort_keys=True)
        except TypeError as error:
            raise InvalidInput(f"state() wants parameters and labels that JSON can hold: {error}") from None
        arrays = {name: np.ascontiguousarray(array) for name, array in self._arrays().items()}
        return safetensors.numpy.save(arrays, {"stillhash": text})

    @classmethod
    def load(cls, state: bytes) -> Self:
        """The hasher that `state()` described. Nothing in the bytes is executed."""
        about, arrays = read_state(state)
        if about["method"] != cls.name:
            raise BadState(f"state is of the method {about['method']!r}; {cls.__name__} wants {cls.name!r}")
        try:
            hasher = cls(**cls.params_from_json(about["params"]))
            hasher.check_parameters()
            hasher._restore(arrays, about["extra"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadState(f"state does not describe a {cls.__name__}: {error}") from error
        return hasher

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """The learnt arrays by name; subclasses add theirs."""
        return {"mean": self.mean_}

    def _extra(self) -> dict[str, Any]:
        """What else is learnt, as JSON."""
        return {}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        self.mean_ = arrays["mean"]
        self.n_features_in_ = len(self.mean_)

    def params_to_json(self) -> dict[str, Any]:
        """The parameters as JSON can hold them."""
        return self.get_params()

    @classmethod
    def params_from_json(cls, params: dict[str, Any]) -> dict[str, Any]:
        return params

    # ---- scikit-learn's conventions, without needing scikit-learn ----

    @classmethod
    def parameters(cls) -> list[str]:
        """Names of all parameters, those of the base classes included."""
        return sorted(name for name in inspect.signature(cls.__init__).parameters if name != "self")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.parameters()}

    def set_params(self, **params: Any) -> Self:
        for name, value in params.items():
            if name not in self.parameters():
                raise InvalidInput(
                    f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(self.parameters())}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {name: p.default for name, p in inspect.signature(type(self).__init__).parameters.items()}
        told = {n: v for n, v in self.get_params().items() if n == "bits" or v != defaults[n]}
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in told.items())})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False), input_tags=InputTags())


class LinearHasher(Hasher):
    """A method whose code is the sign of linear functions, x~ = sgn(W^T x + t)."""

    name = "linear"

    W_: Floats  # (D, b)
    t_: Floats  # (b,)

    def _fix(self, functions: HashFunctions) -> None:
        self.W_, self.t_ = functions

    def functions(self) -> LinearHasher:
        """The hash functions alone: what encodes, and weighs by any model, for as long as codes stand still."""
        bare = LinearHasher(self.bits, center=self.center, unit_norm=self.unit_norm)
        bare.mean_, bare.W_, bare.t_ = self.mean_, self.W_, self.t_
        bare.n_features_in_ = self.n_features_in_
        return bare

    def _codes(self, X: Floats) -> Codes:
        return pack(kernels.project(X, self.W_) + self.t_)  # Eq. 7

    def decode(self, codes: Codes) -> Floats:
        """Features (n, D) that stand for codes: they have those codes, or nearly so, and are of no other use.

        A code is a side of every hash function. These features start from the mean direction of its sides and step,
        as a perceptron does, until they lie on all of them, a little away from the edge. Each row is by itself, so it
        comes out the same in any company.
        """
        step = 1.8 / float(np.linalg.norm(self.W_, 2)) ** 2  # with less than 2 it converges
        back = np.ascontiguousarray(self.W_.T * np.float32(step))
        found = np.empty((len(codes), self.n_features_in_), np.float32)
        for place, side in enumerate(signs(codes, self.bits)[:, None]):
            x = self._scaled(kernels.project(side, back))
            for _ in range(STEPS):
                gap = np.maximum(EDGE - side * (kernels.project(x, self.W_) + self.t_), 0)
                if not gap.any():
                    break
                x = self._scaled(x + kernels.project(side * gap, back))
            found[place] = x[0] + self.mean_
        return found

    def _scaled(self, x: Floats) -> Floats:
        return unit_rows(x) if self.unit_norm else x

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {**super()._arrays(), "W": self.W_, "t": self.t_}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        self.W_, self.t_ = arrays["W"], arrays["t"]
        check_shape(self.W_, (self.n_features_in_, self.bits), "W")
        check_shape(self.t_, (self.bits,), "t")


def raised(Y: Floats, power: float) -> Floats:
    """max(Y, 0) to the power of a multiple of one half, by operations that round alike wherever they are vectorised."""
    Y = np.maximum(Y, 0)
    whole, half = divmod(round(2 * power), 2)
    result = np.sqrt(Y) if half else np.ones_like(Y)
    for _ in range(whole):
        result *= Y
    return result


def check_shape(array: NDArray[Any], shape: tuple[int, ...], name: str, dtype: type[np.generic] = np.float32) -> None:
    if array.shape != shape or array.dtype != dtype:
        wanted = np.dtype(dtype).name
        raise BadState(f"{name} has shape {array.shape} and dtype {array.dtype}; {shape} {wanted} is wanted")
    if not np.isfinite(array).all():
        raise BadState(f"{name} contains NaN or infinity")


def read_state(state: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The description and the arrays in the bytes of `state()`."""
    try:
        arrays = safetensors.numpy.load(bytes(state))
        size = int.from_bytes(state[:8], "little")
        about = json.loads(json.loads(state[8 : 8 + size])["__metadata__"]["stillhash"])
        found = about["format"]
        about["method"], about["params"], about["extra"]
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise BadState(f"state cannot be read: {error}") from error
    if found != FORMAT:
        raise BadState(f"state has format version {found}; this release reads version {FORMAT}")
    return about, arrays
