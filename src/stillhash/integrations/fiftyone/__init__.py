"""FiftyOne: a similarity backend that learns from labels of a dataset, and from votes, while its codes stay fixed."""

from importlib import import_module

from stillhash.errors import MissingExtra

try:
    import_module("fiftyone.brain")
except ImportError as error:
    raise MissingExtra("stillhash.integrations.fiftyone needs FiftyOne: pip install 'stillhash[fiftyone]'") from error

from stillhash.integrations.fiftyone.backend import StillhashSimilarity, StillhashSimilarityConfig, register
from stillhash.integrations.fiftyone.index import StillhashSimilarityIndex

__all__ = ["StillhashSimilarity", "StillhashSimilarityConfig", "StillhashSimilarityIndex", "register"]
