"""Searches that come again, with other weights, as CUDA graphs: one launch in place of ten."""

from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary

from stillhash.search.gpu.card import Mirror

MOST_GRAPHS = 16  # of one state of an index
NOT_RECORDED = "not recorded"  # a kind of search that came before, and has no graph yet

SearchKind = tuple[int, int, int]  # queries, k, planes


class RecordedSearches:
    """Graphs of the latest kinds of searches, as long as the codes are there whose addresses they hold.

    A kind that comes for the second time is worth recording.
    """

    def __init__(self) -> None:
        self._graphs: WeakKeyDictionary[Mirror, OrderedDict[SearchKind, Any]] = WeakKeyDictionary()

    def find(self, mirror: Mirror, kind: SearchKind) -> Any:
        """Return the graph of this kind, NOT_RECORDED if it has come before, or None if it is new."""
        graphs = self._graphs.setdefault(mirror, OrderedDict())
        if kind in graphs:
            graphs.move_to_end(kind)
            return graphs[kind]
        graphs[kind] = NOT_RECORDED
        if len(graphs) > MOST_GRAPHS:
            graphs.popitem(last=False)
        return None

    def keep(self, mirror: Mirror, kind: SearchKind, graph: Any) -> None:
        """Store the graph of a kind."""
        self._graphs.setdefault(mirror, OrderedDict())[kind] = graph
