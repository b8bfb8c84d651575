"""Weights + codes -> hits. A search never learns which method it serves."""

from stillhash.search.base import Hits, Searcher
from stillhash.search.index import Index
from stillhash.search.miwq import MIWQ
from stillhash.search.scan import Scan

__all__ = ["MIWQ", "Hits", "Index", "Scan", "Searcher"]
