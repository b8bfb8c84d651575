"""Tuned: parameters chosen from the stream itself, without a human."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import BadState
from stillhash.hashers.base import Hasher, LabelSpace, LinearHasher, Model
from stillhash.hashers.listwise import TallyListwise
from stillhash.hashers.ohsl import OHSL
from stillhash.hashers.tally import Tally
from stillhash.numeric import kernels
from stillhash.numeric.codes import signs, width
from stillhash.numeric.kept import in_use, joined, restored, sharing
from stillhash.numeric.labels import Labels
from stillhash.numeric.threads import one_thread
from stillhash.numeric.validation import Codes, Floats, check_choice, check_codes, check_integer

TUNABLE: dict[str, type[Hasher]] = {method.name: method for method in (Tally, TallyListwise, OHSL)}
NONE = Labels(np.zeros(1, np.int64), np.empty(0, np.int64), [])
WINDOW, ASKED = 2000, 200  # codes that are ranked, and rows of a chunk that ask, in the prequential measure


class Tuned(Hasher):
    """A race of candidates over the same fixed codes: test each chunk first, learn it then, drop the worse half.

    Candidates are all combinations of the method's `tunable` values. Before a chunk is learnt, a sample of its rows
    asks each candidate for the latest codes; the mean average precision of the answers, which nobody had seen, is the
    candidate's score. The race has log2(candidates) rounds of equal length, and after each the worse half goes. After
    `race` rows one is left, and from then on learning costs what that one costs.

    Budget: n candidates learn `race` rows at most 2 n / log2(n) times altogether, and nothing beyond.

    Parameters
    ----------
    bits : code length b, 8 to 512.
    method : whose parameters are tuned, "tally", "tally-listwise" or "ohsl".
    race : rows until one candidate is left.
    center, unit_norm : pre-processing of features and queries.
    random_state : seed of the hash functions.
    """

    name = "tuned"
    chunk_invariant = False
    fixed_codes = True

    def __init__(
        self,
        bits: int = 32,
        *,
        method: str = "tally",
        race: int = 20_000,
        center: bool = True,
        unit_norm: bool = True,
        random_state: int = 0,
    ) -> None:
        super().__init__(bits, center=center, unit_norm=unit_norm, random_state=random_state)
        self.method = method
        self.race = race

    def check_parameters(self) -> None:
        super().check_parameters()
        check_choice(self.method, "method", tuple(TUNABLE))
        check_integer(self.race, "race", 1)

    candidates_: list[Hasher]  # still in the race, the best so far first; they see prepared rows
    scores_: list[tuple[float, int]]  # of this round: sum of average precisions, number of queries
    rows_: int  # learnt so far
    recent_: Codes  # (at most WINDOW, bytes)
    labels_: Labels  # of the recent codes

    @property
    def chosen_(self) -> dict[str, Any]:
        """The parameters of the candidate that leads."""
        return {name: getattr(self.candidates_[0], name) for name in self.candidates_[0].tunable}

    def _begin(self, X: Floats, labels: Labels, rng: np.random.Generator) -> None:
        method = TUNABLE[self.method]
        as_they_are: dict[str, Any] = {"center": False, "unit_norm": False, "random_state": self.random_state}
        self.candidates_ = [
            method(self.bits, **dict(zip(method.tunable, values, strict=True)), **as_they_are)
            for values in itertools.product(*method.tunable.values())
        ]
        for candidate in self.candidates_:
            candidate._start(X, labels)
        self.scores_ = [(0.0, 0)] * len(self.candidates_)
        self.rows_ = 0
        self.recent_ = np.empty((0, width(self.bits)), np.uint8)
        self.labels_ = NONE

    # ---- the race ----

    def _learn(self, X: Floats, labels: Labels, codes: Codes | None) -> None:
        racing = len(self.candidates_) > 1
        both = joined(self.labels_, labels) if racing else self.labels_
        if racing:
            self._test(X, both)
        for candidate in self.candidates_:
            candidate._learn(X, labels, codes)
        before, self.rows_ = self.rows_, self.rows_ + len(X)
        if racing:
            codes = np.concatenate([self.recent_, self._codes(X) if codes is None else codes])
            latest = np.arange(len(codes)) >= len(codes) - WINDOW
            self.recent_, self.labels_ = codes[latest], in_use(both.rows(latest))
            self._halve(before)

    @one_thread
    def _test(self, X: Floats, both: Labels) -> None:
        """The rows of this chunk, not learnt yet, ask for the recent codes."""
        known, asked = len(self.recent_), np.zeros(len(both), bool)
        asked[known + np.unique(np.linspace(0, len(X) - 1, min(ASKED, len(X))).astype(int))] = True
        shared = sharing(both.rows(asked), both.rows(np.arange(len(both)) < known)).astype(np.float32)
        some = shared.any(axis=1)
        if not some.any():
            return
        items = signs(self.recent_, self.bits).T
        for i, candidate in enumerate(self.candidates_):
            weights = candidate.weigh(X[asked[known:]][some])
            found = kernels.rank_quality(weights @ items, shared[some], WINDOW)[:, 0]
            total, count = self.scores_[i]
            self.scores_[i] = total + float(found.sum()), count + len(found)
        order = sorted(range(len(self.scores_)), key=lambda i: -self.scores_[i][0])  # all have answered alike often
        self.candidates_ = [self.candidates_[i] for i in order]
        self.scores_ = [self.scores_[i] for i in order]

    def _halve(self, before: int) -> None:
        rounds = math.ceil(math.log2(math.prod(map(len, TUNABLE[self.method].tunable.values()))))
        ends = [round(self.race * (r + 1) / rounds) for r in range(rounds)]
        for _ in range(sum(before < end <= self.rows_ for end in ends)):
            self.candidates_ = self.candidates_[: max(1, (len(self.candidates_) + 1) // 2)]
            self.scores_ = [(0.0, 0)] * len(self.candidates_)
        if len(self.candidates_) == 1:
            self.recent_, self.labels_ = self.recent_[:0], NONE

    # ---- using ----

    def _codes(self, X: Floats) -> Codes:
        return self.candidates_[0]._codes(X)

    def model(self) -> Model:
        return self.candidates_[0].model()

    def label_space(self) -> LabelSpace | None:
        return self.candidates_[0].label_space()

    def functions(self) -> LinearHasher:
        bare = self.candidates_[0].functions()  # these see rows that are prepared already
        bare.center, bare.unit_norm, bare.mean_ = self.center, self.unit_norm, self.mean_
        return bare

    # ---- state ----

    def _arrays(self) -> dict[str, NDArray[Any]]:
        kept: dict[str, NDArray[Any]] = {
            "recent": self.recent_,
            "indptr": self.labels_.indptr,
            "indices": self.labels_.indices,
        }
        states = {f"candidate{i}": np.frombuffer(c.state(), np.uint8) for i, c in enumerate(self.candidates_)}
        return {**super()._arrays(), **kept, **states}

    def _extra(self) -> dict[str, Any]:
        return {"rows": self.rows_, "scores": self.scores_, "recent": self.labels_.names}

    def _restore(self, arrays: dict[str, NDArray[Any]], extra: dict[str, Any]) -> None:
        super()._restore(arrays, extra)
        self.rows_ = check_integer(extra["rows"], "rows", 0)
        self.scores_ = [(float(total), int(count)) for total, count in extra["scores"]]
        states = [arrays[f"candidate{i}"].tobytes() for i in range(len(self.scores_))]
        self.candidates_ = [TUNABLE[self.method].load(state) for state in states]
        if not states or any(c.n_features_in_ != self.n_features_in_ or c.bits != self.bits for c in self.candidates_):
            raise BadState("the candidates are not of this many features and bits")
        self.recent_ = check_codes(arrays["recent"], self.bits, "recent")
        self.labels_ = restored(arrays, extra["recent"], len(self.recent_))
