"""The same answers from many machines: shards are Ray actors that hold codes and no model."""

from __future__ import annotations

from stillhash.cluster.bulk import publish
from stillhash.cluster.connection import connected
from stillhash.cluster.encoding import encode_dataset
from stillhash.cluster.evaluation import evaluate_dataset
from stillhash.cluster.hybrid_index import Spreading
from stillhash.cluster.index import ClusterIndex, PartialHits
from stillhash.cluster.ingest import ingest
from stillhash.cluster.learning import learn_dataset
from stillhash.cluster.local import LocalCluster

__all__ = [
    "ClusterIndex",
    "LocalCluster",
    "PartialHits",
    "Spreading",
    "connected",
    "encode_dataset",
    "evaluate_dataset",
    "ingest",
    "learn_dataset",
    "publish",
]
