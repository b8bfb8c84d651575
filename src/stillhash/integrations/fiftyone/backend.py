"""The settings of an index, and how FiftyOne creates one.

FiftyOne looks for `StillhashSimilarity` in the module of its config.
"""

from pathlib import Path
from typing import Any

import fiftyone.constants
from fiftyone.brain import brain_config
from fiftyone.brain.similarity import Similarity, SimilarityConfig

from stillhash.integrations.fiftyone.index import StillhashSimilarityIndex

BACKEND = "stillhash"
SIMILARITY_BITS = 256


def register() -> None:
    """Let `compute_similarity(backend="stillhash")` use this backend, in this process.

    FIFTYONE_BRAIN_SIMILARITY_BACKENDS, or the file of the brain's configuration, does the same for all processes.
    """
    name = f"{StillhashSimilarityConfig.__module__}.{StillhashSimilarityConfig.__qualname__}"
    brain_config.similarity_backends.setdefault(BACKEND, {}).setdefault("config_cls", name)


class StillhashSimilarityConfig(SimilarityConfig):
    """Settings of an index.

    folder : the folder of all indexes; by default `stillhash` beside the other files of FiftyOne.
    collection : the name of the index in it; by default one that does not exist yet.
    bits, init_rows, learn_rows, keep_features : as in `stillhash.open`. Without `keep_features` an index takes far less
        disk, and `get_embeddings`, and queries by ids, use vectors that are rebuilt from codes.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        collection: str | None = None,
        bits: int = SIMILARITY_BITS,
        init_rows: int = 3000,
        learn_rows: int = 1000,
        keep_features: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        default = Path(fiftyone.constants.FIFTYONE_CONFIG_DIR, BACKEND)
        self.folder = str(default if folder is None else Path(folder).resolve())
        self.collection = collection
        self.bits = bits
        self.init_rows = init_rows
        self.learn_rows = learn_rows
        self.keep_features = keep_features

    @property
    def method(self) -> str:
        """Return the name of the backend."""
        return BACKEND

    @property
    def max_k(self) -> int | None:
        """Return how many neighbours a query has at most: None, any number."""
        return None

    @property
    def supports_least_similarity(self) -> bool:
        """Return whether the least similar can come first."""
        return True

    @property
    def supported_aggregations(self) -> tuple[str, ...]:
        """Return how several queries can be searched as one."""
        return ("mean",)

    def load_credentials(self, folder: str | Path | None = None) -> None:
        """Use another folder than the stored one, for an index that was moved."""
        self.folder = self.folder if folder is None else str(Path(folder).resolve())


class StillhashSimilarity(Similarity):
    """Creates indexes, for `compute_similarity`."""

    def initialize(self, samples: Any, brain_key: str | None) -> StillhashSimilarityIndex:
        """Return an index, which is empty if it is new."""
        return StillhashSimilarityIndex(samples, self.config, brain_key, backend=self)
