"""What a hasher has learnt, as small immutable arrays that weigh queries; and the protocol of hashers."""

from collections.abc import Callable, Hashable
from typing import Any, Literal, NamedTuple, Protocol, Self

from numpy.typing import ArrayLike

from stillhash.numeric.ranking import Ranking
from stillhash.numeric.validation import Codes, Doubles, Floats


class Model(NamedTuple):
    """The learnt part of a ranking: weights = side(q) @ M + m.

    side(q) is the features of a query, the signs of its code, or its predicted labels: max(q @ U + u, 0) to the power
    of `power`. "hamming" and "looks" need no M: their weights are the signs of the query's code, and the query before
    it is quantised. N, if there is one, is a correction by the features: + q @ N.

    With a `balance` r, weights are r times those, of unit norm, and 1 - r times the looks, of unit norm. With V, the
    first page is ordered by the labels predicted of query and code: see `numeric.ranking`.
    """

    side: Literal["hamming", "looks", "features", "code", "labels"]
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
    label_bits: int = 0  # so many of the first bits hold the labels of rows that were stored with them, not their looks
    plain_share: float = 0.0  # of the stored rows, those without labels
    held_share: float = 0.0  # of the stored codes, those that hold labels
    label_names: list[Hashable] | None = None  # of the columns of U; None: not known
    label_weights: Floats | None = None  # (labels,): how much sharing each counts; None: all alike

    @property
    def learnt(self) -> bool:
        return self.M is not None or self.N is not None

    def resolve_balance(self, balance: float | None = None) -> float | None:
        """Return the balance that a search by this one has; None, for both, leaves it to the model, or is none."""
        if self.side == "looks":
            return 0.0
        return self.balance if balance is None else balance


class LabelSpace(NamedTuple):
    """The labels of a model with U, in order; and the rows that it has learnt, for what a change of U would change."""

    names: list[Hashable]
    rows: float
    squares: Doubles  # (D, D) sum of x x^T over prepared rows x


class OnlineHasher(Protocol):
    """The protocol that search, collections and experiments rely on."""

    bits: int
    stale_: bool  # True: codes encoded earlier no longer match encode()

    def fit(self, X: ArrayLike, Y: Any = None) -> Self: ...
    def partial_fit(self, X: ArrayLike, Y: Any = None, codes: Codes | None = None) -> Self: ...
    def encode(self, X: ArrayLike, Y: Any = None) -> Codes: ...
    def weigh(self, Q: ArrayLike) -> Floats: ...
    def ranking(self, Q: ArrayLike, *, balance: float | None = None) -> Ranking: ...
    def keep(self, X: ArrayLike) -> Codes: ...
    def refresh(self, stored: Codes, features: Callable[[], ArrayLike]) -> Codes: ...
