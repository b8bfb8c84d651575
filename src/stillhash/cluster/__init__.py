"""Search, encode and learn on many machines: shards hold codes and no model. Readers of an index do not import Ray."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # type checkers and editors see plain imports
    from stillhash.cluster.bulk import ingest, publish
    from stillhash.cluster.datasets import encode_dataset, learn_dataset
    from stillhash.cluster.evaluation import evaluate_dataset
    from stillhash.cluster.front import FrontCollection
    from stillhash.cluster.index import ClusterIndex
    from stillhash.cluster.local import LocalCluster, connected
    from stillhash.cluster.publisher import Publisher
    from stillhash.cluster.reader import ClusterReader, PartialHits

_MODULES = {
    "bulk": ("ingest", "publish"),
    "datasets": ("encode_dataset", "learn_dataset"),
    "evaluation": ("evaluate_dataset",),
    "front": ("FrontCollection",),
    "index": ("ClusterIndex",),
    "local": ("LocalCluster", "connected"),
    "publisher": ("Publisher",),
    "reader": ("ClusterReader", "PartialHits"),
}
_MODULE_BY_NAME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "ClusterIndex",
    "ClusterReader",
    "FrontCollection",
    "LocalCluster",
    "PartialHits",
    "Publisher",
    "connected",
    "encode_dataset",
    "evaluate_dataset",
    "ingest",
    "learn_dataset",
    "publish",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'stillhash.cluster' has no attribute {name!r}")
    if _MODULE_BY_NAME[name] in ("bulk", "datasets", "evaluation"):
        import_module("stillhash.cluster.local")  # before Ray, which reads its settings at import
    value = getattr(import_module(f"stillhash.cluster.{_MODULE_BY_NAME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
