"""The index of a published commit, which reads all that the first page needs of its candidates by one question."""

import json

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stillhash.cluster.manifest import ClusterManifest
from stillhash.cluster.reader import ClusterReader, ClusterSnapshot
from stillhash.errors import InvalidInput
from stillhash.numeric import validation
from stillhash.numeric.codes import width
from stillhash.numeric.labels import Labels, from_json
from stillhash.numeric.validation import Codes
from stillhash.search.blocks import NO_IDS, IdArray


class PageIndex(ClusterSnapshot):
    """The index at one commit, and what is stored of its rows (numeric/rescored_page.py, StoredItems).

    columns : bytes of a rescoring code; 0 if the collection has none. What was read last is kept, for one thread.
    """

    def __init__(self, reader: ClusterReader, manifest: ClusterManifest, until: float, columns: int) -> None:
        super().__init__(reader, manifest, until)
        self._columns, self._ids = columns, NO_IDS
        self._codes, self._rescoring_codes = (np.empty((0, n), np.uint8) for n in (width(self.bits), columns))
        self._labels = Labels.empty()

    def codes(self, ids: ArrayLike) -> Codes:
        """Return the codes (n, ceil(bits / 8)) of these ids, which must all exist; an id may come more than once."""
        if not self._columns:
            return super().codes(ids)
        places = self._read(ids)
        return self._codes[places]

    def rescoring_codes(self, ids: IdArray) -> Codes:
        """Return the rescoring codes (n, columns) of these ids; all bytes 0xFF where they are lost."""
        places = self._read(ids)
        return self._rescoring_codes[places]

    def labels(self, ids: IdArray) -> Labels:
        """Return the labels that these ids have at this commit."""
        places = self._read(ids)
        return self._labels.take(places)

    def _read(self, ids: ArrayLike) -> NDArray[np.int64]:
        """Read these ids unless they are among those that were read last, and return their places there."""
        names, numbers = validation.check_repeated_ids(ids)
        if not np.isin(names, self._ids, assume_unique=True).all():
            replies = self.ask("page", {"columns": self._columns}, [names], partial=self.partial).replies
            held, codes, rescoring_codes, sets = zip(*(reply.arrays for reply in replies), strict=True)
            known = np.concatenate(held)
            order = np.argsort(known)
            if not np.array_equal(known[order], names):
                raise InvalidInput(f"ids: expected ids of the index, got {len(names) - len(known)} that are not in it")
            self._ids, self._codes = names, np.concatenate(codes)[order]
            self._rescoring_codes = np.concatenate(rescoring_codes)[order]
            texts = [text for reply in replies for text in reply.header["labels"]]
            starts = np.cumsum([0, *(len(reply.header["labels"]) for reply in replies)])
            every = np.concatenate([start + some for start, some in zip(starts, sets, strict=False)])
            self._labels = _parse_labels(texts).take(every[order])
        return np.searchsorted(self._ids, names)[numbers]


def _parse_labels(texts: list[str]) -> Labels:
    """Return the labels of rows that have these, as JSON texts."""
    names: dict[object, int] = {}
    sets = [[names.setdefault(from_json(name), len(names)) for name in json.loads(text)] for text in texts]
    starts = np.cumsum([0, *map(len, sets)], dtype=np.int64)
    return Labels(starts, np.array([place for some in sets for place in some], np.int64), list(names))
