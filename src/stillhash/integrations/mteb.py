"""MTEB: evaluate an encoder by exact search over its codes, in the place of float embeddings."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput, MissingExtra, NotFitted
from stillhash.hashers import Tally
from stillhash.numeric.codes import signs
from stillhash.numeric.validation import check_bits, check_integer
from stillhash.search import Index

try:
    mteb_models: Any = import_module("mteb.models")
except ImportError as error:
    raise MissingExtra("stillhash.integrations.mteb needs MTEB: pip install 'stillhash[mteb]'") from error

FIT_DOCUMENTS = 20_000  # at most, of the first ones


class StillhashSearchIndex:
    """A search backend of MTEB (`IndexEncoderSearchProtocol`): documents are codes, and queries weigh their bits.

    The hash functions are fitted to the first documents, once. MTEB has no labels, so nothing is learnt.
    """

    def __init__(self, bits: int = 256) -> None:
        self.bits = check_bits(bits)
        self.clear()

    def clear(self) -> None:
        """Remove all documents, and the hash functions."""
        self._hasher: Tally | None = None
        self._index = Index(self.bits)
        self._rows: dict[str, int] = {}

    def add_documents(self, embeddings: Any, idxs: list[str]) -> None:
        """Encode documents, and add them under their ids."""
        features, names = np.asarray(embeddings), [str(name) for name in idxs]
        if features.ndim != 2 or len(features) != len(names):
            raise InvalidInput(f"embeddings: expected ({len(names)}, D), one for each id, got {features.shape}")
        if not names:
            return
        hasher = self._hasher or Tally(self.bits).fit(features[:FIT_DOCUMENTS])
        self._index.add(hasher.encode(features))
        self._rows.update(zip(names, range(len(self._index) - len(names), len(self._index)), strict=True))
        self._hasher = hasher

    def search(
        self,
        embeddings: Any,
        top_k: int,
        similarity_fn: Callable[[Any, Any], Any],
        top_ranked: dict[str, list[str]] | None = None,
        query_idx_to_id: dict[int, str] | None = None,
    ) -> tuple[list[list[float]], list[list[int]]]:
        """Return the scores and rows of the best documents of each query, or of those that `top_ranked` has for it.

        Rows are those of the documents in the order in which they were added; with `top_ranked`, of its list. The
        similarity of the model is not used: a score is weights . signs(code).
        """
        if self._hasher is None:
            raise NotFitted("search: expected documents, got none: call add_documents before")
        check_integer(top_k, "top_k", 1)
        weights = self._hasher.weigh(np.asarray(embeddings))
        if top_ranked is None:
            hits = self._index.search(weights, min(top_k, len(self._index)))
            return hits.scores.tolist(), hits.ids.tolist()
        if query_idx_to_id is None:
            raise InvalidInput("query_idx_to_id: expected the ids of queries with top_ranked, got None")
        pairs = [self._rank(one, top_ranked.get(query_idx_to_id[row], []), top_k) for row, one in enumerate(weights)]
        return [scores for scores, _ in pairs], [rows for _, rows in pairs]

    def _rank(self, weights: NDArray[Any], names: list[str], k: int) -> tuple[list[float], list[int]]:
        """Rank these documents only."""
        if not names:
            return [], []
        codes = self._index.codes([self._rows[name] for name in names])
        scores = signs(codes, self.bits) @ weights
        order = np.argsort(-scores, kind="stable")[:k]
        return scores[order].tolist(), order.tolist()


def search_codes(encoder: Any, bits: int = 256) -> Any:
    """Return a model for `mteb.evaluate`: an encoder of MTEB, whose documents are searched as codes of so many bits."""
    return mteb_models.SearchEncoderWrapper(encoder, index_backend=StillhashSearchIndex(bits))
