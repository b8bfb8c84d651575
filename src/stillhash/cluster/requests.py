"""Searches that fronts send to shards: which are answered as one, and how they are put into messages."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.errors import InvalidInput
from stillhash.numeric.validation import Floats
from stillhash.search import Hits
from stillhash.search.blocks import Bitmap
from stillhash.search.merge import Floors, no_floors, resize


class SearchRequest(NamedTuple):
    """Queries of one kind: the k best hits of each from the floors up or, with thresholds, all hits from there up."""

    weights: Floats  # (m, bits)
    k: int  # 0 with thresholds
    floors: Floors | None
    thresholds: NDArray[np.float64] | None  # (m,)
    allowed: Bitmap | None = None  # by id: only these can be hits
    where: Any = None  # or a filter (collection/filters.py) that items have to meet

    def kind(self, rows: int) -> tuple[Any, ...]:
        """Return what requests have in common that are answered as one, in an index of so many rows."""
        size = -1 if self.thresholds is not None else min(self.k, rows).bit_length()
        return size, id(self.allowed), repr(self.where)


def join_requests(requests: Sequence[SearchRequest]) -> SearchRequest:
    """Return one request for the queries of several of one kind."""
    if len(requests) == 1:
        return requests[0]
    weights = np.concatenate([request.weights for request in requests])
    k = max(request.k for request in requests)
    thresholds = [request.thresholds for request in requests if request.thresholds is not None]
    floors: list[Floors] = []
    if any(request.floors is not None for request in requests):
        floors = [no_floors(len(r.weights)) if r.floors is None else r.floors for r in requests]
    return requests[0]._replace(
        weights=weights,
        k=k,
        thresholds=np.concatenate(thresholds) if thresholds else None,
        floors=Floors(*map(np.concatenate, zip(*floors, strict=True))) if floors else None,
    )


def group_requests(requests: Sequence[SearchRequest], rows: int) -> list[list[int]]:
    """Return the places of the requests that are answered as one, in an index of so many rows."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, request in enumerate(requests):
        groups.setdefault(request.kind(rows), []).append(place)
    return list(groups.values())


def split_hits(requests: Sequence[SearchRequest], hits: list[Hits]) -> list[list[Hits]]:
    """Return the hits of each request, given those of all of them joined."""
    ends = list(accumulate(len(request.weights) for request in requests))
    parts = []
    for request, end in zip(requests, ends, strict=True):
        own = slice(end - len(request.weights), end)
        top = request.thresholds is None
        parts.append([resize((hits[0].scores[own], hits[0].ids[own]), request.k)] if top else hits[own])
    return parts


def search_to_message(requests: Sequence[SearchRequest]) -> tuple[list[dict[str, Any]], list[NDArray[Any]]]:
    """Return the header and the arrays of some searches."""
    headers: list[dict[str, Any]] = []
    arrays: list[NDArray[Any]] = []
    bitmaps: dict[int, int] = {}  # the place of each bitmap among the arrays
    for weights, k, floors, thresholds, allowed, where in requests:
        if floors is not None and np.isneginf(floors).all():
            floors = None
        header = {"k": k, "floors": floors is not None, "range": thresholds is not None, "where": where}
        arrays.append(weights)
        arrays += [] if floors is None else [np.asarray(floors.least), np.asarray(floors.most)]
        arrays += [] if thresholds is None else [np.asarray(thresholds, np.float64)]
        if allowed is not None and id(allowed) not in bitmaps:
            bitmaps[id(allowed)] = len(arrays)
            arrays.append(allowed)
        headers.append({**header, "allowed": None if allowed is None else bitmaps[id(allowed)]})
    return headers, arrays


def search_from_message(
    headers: Sequence[dict[str, Any]], arrays: Sequence[NDArray[Any]], bits: int
) -> list[SearchRequest]:
    """Return the searches of a message; InvalidInput if it is about other codes."""
    requests, place = [], 0
    try:
        for header in headers:
            weights, place = arrays[place], place + 1
            if weights.dtype != np.float32 or weights.shape[1:] != (bits,):
                raise ValueError(f"weights {weights.shape} of {weights.dtype} for codes of {bits} bits")
            floors = thresholds = None
            if header["floors"]:
                floors, place = Floors(arrays[place], arrays[place + 1]), place + 2
            if header["range"]:
                thresholds, place = arrays[place], place + 1
            for array in (*(floors or ()), *(() if thresholds is None else (thresholds,))):
                if array.shape != weights.shape[:1]:
                    raise ValueError(f"{array.shape} for {len(weights)} queries")
            bitmap = header["allowed"]
            place += bitmap == place
            allowed = None if bitmap is None else arrays[bitmap]
            requests.append(SearchRequest(weights, int(header["k"]), floors, thresholds, allowed, header["where"]))
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidInput(f"message: expected searches, got {error}") from None
    return requests


def hits_to_message(hits: Sequence[Sequence[Hits]]) -> tuple[list[int], list[NDArray[Any]]]:
    """Return how many Hits each search has, and their arrays."""
    arrays = [array for some in hits for part in some for array in part]
    return [len(some) for some in hits], arrays


def hits_from_message(counts: Sequence[int], arrays: Sequence[NDArray[Any]]) -> list[list[Hits]]:
    """Return the hits of several searches."""
    pairs = iter(zip(arrays[::2], arrays[1::2], strict=True))
    return [[Hits(*next(pairs)) for _ in range(count)] for count in counts]
