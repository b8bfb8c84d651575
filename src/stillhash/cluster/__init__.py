"""Search, encode and learn on many machines: shards are Ray actors that hold codes and no model."""

from stillhash.cluster.local import LocalCluster, connected  # isort: skip  (before Ray, which reads its settings at import)
from stillhash.cluster.bulk import ingest, publish
from stillhash.cluster.datasets import encode_dataset, learn_dataset
from stillhash.cluster.evaluation import evaluate_dataset
from stillhash.cluster.index import ClusterIndex
from stillhash.cluster.reader import ClusterReader, PartialHits

__all__ = [
    "ClusterIndex",
    "ClusterReader",
    "LocalCluster",
    "PartialHits",
    "connected",
    "encode_dataset",
    "evaluate_dataset",
    "ingest",
    "learn_dataset",
    "publish",
]
