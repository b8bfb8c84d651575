"""Search, encode and learn on many machines: shards are Ray actors that hold codes and no model."""

from stillhash.cluster.local import LocalCluster, connected  # isort: skip  (before Ray, which reads its settings at import)
from stillhash.cluster.bulk import ingest, publish
from stillhash.cluster.datasets import encode_dataset, learn_dataset
from stillhash.cluster.evaluation import evaluate_dataset
from stillhash.cluster.hybrid_index import HybridIndexFactory
from stillhash.cluster.index import ClusterIndex, PartialHits

__all__ = [
    "ClusterIndex",
    "HybridIndexFactory",
    "LocalCluster",
    "PartialHits",
    "connected",
    "encode_dataset",
    "evaluate_dataset",
    "ingest",
    "learn_dataset",
    "publish",
]
