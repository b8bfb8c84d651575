"""The same answers from many machines: shards are Ray actors that hold codes and no model."""

from __future__ import annotations

from stillhash.cluster.encoding import encode_dataset
from stillhash.cluster.evaluating import evaluate_dataset
from stillhash.cluster.index import ClusterIndex, PartialHits
from stillhash.cluster.ingesting import ingest
from stillhash.cluster.joining import connected
from stillhash.cluster.learning import learn_dataset
from stillhash.cluster.local import LocalCluster
from stillhash.cluster.publishing import publish
from stillhash.cluster.spread import Spreading

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
