"""Tuned: choose parameters from the stream itself."""

import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState
from stillhash.hashers.base import Hasher
from stillhash.hashers.linear import LinearHasher
from stillhash.hashers.model import LabelSpace, Model
from stillhash.hashers.ohsl import OHSL
from stillhash.hashers.parameters import AT_LEAST_ONE, COUNT, one_of, parameter
from stillhash.hashers.tally import Tally
from stillhash.numeric import kernels
from stillhash.numeric.codes import signs, width
from stillhash.numeric.labels import Labels, concat_labels, drop_unused, share_label
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Floats

TUNABLE: dict[str, type[Hasher]] = {method.name: method for method in (Tally, OHSL)}
RANKED_CODES = 2000  # recent codes that a test ranks
TEST_QUERIES = 200  # rows of a chunk that are queries of a test


@dataclass(eq=False, repr=False, kw_only=True)
class Tuned(Hasher):
    """A race of candidates over the same fixed codes: test each chunk first, learn it then, drop the worse half.

    Candidates are all combinations of the method's `tunable` values. Before a chunk is learnt, a sample of its rows
    queries the latest codes by each candidate; the mean average precision, prequential, is the candidate's score. The
    race has log2(candidates) rounds of equal length, and after each the worse half is dropped. After `race` rows one is
    left, and from then on learning costs what that one costs.

    Budget: n candidates learn `race` rows at most 2 n / log2(n) times altogether, and nothing beyond.

    Parameters
    ----------
    bits, center, unit_norm : code length b, 8 to 512, and pre-processing: see Hasher.
    method : whose parameters are tuned, "tally" or "ohsl".
    race : rows until one candidate is left.
    random_state : seed of the hash functions.
    """

    name = "tuned"
    chunk_invariant = False
    fixed_codes = True
    saved_arrays: ClassVar = {"recent": "uint8 n bytes"}
    saved_values: ClassVar = {"rows": COUNT}
    saved_labels = "recent"

    method: str = parameter("tally", one_of(*TUNABLE))
    race: int = parameter(20_000, AT_LEAST_ONE)

    @property
    def chosen_(self) -> dict[str, Any]:
        """Return the parameters of the best candidate so far."""
        return {name: getattr(self.candidates_[0], name) for name in self.candidates_[0].tunable}

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        method = TUNABLE[self.method]
        shared: dict[str, Any] = {"center": False, "unit_norm": False, "random_state": self.random_state}
        self.candidates_ = [  # in the race, the best so far first; their rows are prepared here
            method(self.bits, **dict(zip(method.tunable, values, strict=True)), **shared)
            for values in itertools.product(*method.tunable.values())
        ]
        for candidate in self.candidates_:
            candidate.begin(X, labels)
        self.scores_ = [(0.0, 0)] * len(self.candidates_)  # of this round: sum of average precisions, queries
        self.rows_ = 0  # learnt so far
        self.recent_: Codes = np.empty((0, width(self.bits)), np.uint8)  # (RANKED_CODES or fewer, bytes), and labels_

    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        racing = len(self.candidates_) > 1
        both = concat_labels(self.labels_, labels) if racing else self.labels_
        if racing:
            self._test(X, both)
        codes = self._codes(X) if codes is None else codes
        for candidate in self.candidates_:
            candidate._learn(X, labels, codes)
        before, self.rows_ = self.rows_, self.rows_ + len(X)
        if racing:
            codes = np.concatenate([self.recent_, codes])
            latest = np.arange(len(codes)) >= len(codes) - RANKED_CODES
            self.recent_, self.labels_ = codes[latest], drop_unused(both.rows(latest))
            self._halve(before)

    @one_thread
    def _test(self, X: Floats, both: Labels) -> None:
        """Rank the recent codes by each candidate, for rows of this chunk, which is not learnt yet."""
        known, queries = len(self.recent_), np.zeros(len(both), bool)
        queries[known + np.unique(np.linspace(0, len(X) - 1, min(TEST_QUERIES, len(X))).astype(int))] = True
        shared = share_label(both.rows(queries), both.rows(np.arange(len(both)) < known)).astype(np.float32)
        answerable = shared.any(axis=1)
        if not answerable.any():
            return
        items = signs(self.recent_, self.bits).T
        for i, candidate in enumerate(self.candidates_):
            weights = candidate.weigh(X[queries[known:]][answerable])
            precisions = kernels.rank_quality(weights @ items, shared[answerable])[:, 0]
            total, count = self.scores_[i]
            self.scores_[i] = total + float(precisions.sum()), count + len(precisions)
        order = sorted(range(len(self.scores_)), key=lambda i: -self.scores_[i][0])  # all had the same queries
        self.candidates_ = [self.candidates_[i] for i in order]
        self.scores_ = [self.scores_[i] for i in order]

    def _halve(self, before: int) -> None:
        rounds = math.ceil(math.log2(math.prod(map(len, TUNABLE[self.method].tunable.values()))))
        ends = [round(self.race * (r + 1) / rounds) for r in range(rounds)]
        for _ in range(sum(before < end <= self.rows_ for end in ends)):
            self.candidates_ = self.candidates_[: max(1, (len(self.candidates_) + 1) // 2)]
            self.scores_ = [(0.0, 0)] * len(self.candidates_)
        if len(self.candidates_) == 1:
            self.recent_, self.labels_ = self.recent_[:0], Labels.empty()

    def _codes(self, X: Floats) -> Codes:
        return self.candidates_[0].encode_checked(X)

    def model(self) -> Model:
        return self.candidates_[0].model()

    def label_space(self) -> LabelSpace | None:
        return self.candidates_[0].label_space()

    def functions(self) -> LinearHasher:
        bare = self.candidates_[0].functions()  # candidates have rows that are prepared already
        bare.center, bare.unit_norm, bare.mean_ = self.center, self.unit_norm, self.mean_
        return bare

    def _arrays(self) -> dict[str, NDArray[Any]]:
        states = {f"candidate{i}": np.frombuffer(c.state(), np.uint8) for i, c in enumerate(self.candidates_)}
        return {**super()._arrays(), **states}

    def _extra(self) -> dict[str, Any]:
        return {**super()._extra(), "scores": self.scores_}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        self.scores_ = [(float(total), int(count)) for total, count in extra["scores"]]
        states = [arrays[f"candidate{i}"].tobytes() for i in range(len(self.scores_))]
        self.candidates_ = [TUNABLE[self.method].load(state) for state in states]
        if not states or any(c.n_features_in_ != self.n_features_in_ or c.bits != self.bits for c in self.candidates_):
            raise BadState(f"candidates: expected {self.n_features_in_} features and {self.bits} bits, got others")
