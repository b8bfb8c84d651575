"""Weights + codes -> hits. Search does not know which method it serves."""

from stillhash.search.code_index import CodeIndex, Scan, Searcher
from stillhash.search.gpu import GpuScan, index_for, searcher_for
from stillhash.search.index import Index
from stillhash.search.merge import Hits
from stillhash.search.miwq import MIWQ
from stillhash.search.named_index import NamedHits, NamedIndex

__all__ = [
    "MIWQ",
    "CodeIndex",
    "GpuScan",
    "Hits",
    "Index",
    "NamedHits",
    "NamedIndex",
    "Scan",
    "Searcher",
    "index_for",
    "searcher_for",
]
