"""Weights + codes -> hits. A search never learns which method it serves."""

from stillhash.search.base import Hits, Searcher
from stillhash.search.scan import Scan

__all__ = ["Hits", "Scan", "Searcher"]
