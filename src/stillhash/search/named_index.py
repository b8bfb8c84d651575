"""An index whose ids are texts: an `Index` of row numbers, and the text of each row."""

import threading
from collections.abc import Iterable
from os import PathLike
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stillhash.errors import BadState, Conflict, InvalidInput, WrongType, report_shortages
from stillhash.numeric.validation import Codes, check_codes
from stillhash.search.blocks import IdArray
from stillhash.search.index import Index
from stillhash.search.index_files import SavedIndex, Texts, read_index, saved_from_dict, saved_to_dict, write_index
from stillhash.search.merge import Hits

MAX_TEXT_ID = 1000  # characters
NO_TEXTS = Texts(np.empty(0, np.int64), np.empty(0, np.uint8))


class NamedHits(NamedTuple):
    """Hits, best first: higher score, then the one that was added earlier. Missing ones are -inf and None.

    From `search` both arrays are (m, k); from `range_search` there is one NamedHits per query with flat arrays.
    """

    scores: NDArray[np.float32]
    ids: NDArray[np.object_]  # texts


@report_shortages
class NamedIndex:
    """An exact index of codes under text ids: an `Index`, and the texts of its rows.

    The texts of a loaded index stay in its file; from the first `add`, `remove`, `codes` or `allowed` on, a dictionary
    of all of them is in memory. One writer may add and remove while others search.
    """

    def __init__(self, bits: int, *, threads: int | None = None) -> None:
        self.index = Index(bits, threads=threads)  # of rows 0, 1, 2, ...
        self.bits = self.index.bits
        self._stored = NO_TEXTS  # of the first rows
        self._added: list[str] = []  # of the rows after them
        self._rows: dict[str, int] | None = {}  # of all texts; None until it is needed
        self._writing = threading.RLock()

    @property
    def threads(self) -> int:
        """Return the most that one search uses."""
        return self.index.threads

    def __len__(self) -> int:
        return len(self.index)

    def __contains__(self, id: object) -> bool:
        return id in self._numbers()

    def __repr__(self) -> str:
        return f"NamedIndex(bits={self.bits}, rows={len(self)})"

    def add(self, codes: ArrayLike, ids: Iterable[str]) -> None:
        """Add codes (n, ceil(bits / 8)) under text ids, which must be new."""
        codes, names = check_codes(codes, self.bits), check_text_ids(ids)
        if len(names) != len(codes):
            raise InvalidInput(f"ids: expected one for each of {len(codes)} codes, got {len(names)}")
        with self._writing:
            rows = self._numbers()
            if existing := [name for name in names if name in rows]:
                raise Conflict(f"ids: expected new ids, got {len(existing)} that exist, such as {existing[0]!r}")
            first = len(self._stored.ends) + len(self._added)
            self._added.extend(names)  # before a search can have them as hits
            try:
                self.index.add(codes)
            except BaseException:
                del self._added[len(self._added) - len(names) :]
                raise
            rows.update(zip(names, range(first, first + len(names)), strict=True))

    def remove(self, ids: Iterable[str]) -> int:
        """Remove these ids and return how many there were; unknown ids are ignored."""
        names = check_text_ids(ids)
        with self._writing:
            rows = self._numbers()
            removed = self.index.remove(np.array([rows[name] for name in names if name in rows], np.int64))
            for name in names:
                rows.pop(name, None)
        return removed

    def search(self, weights: ArrayLike, k: int, *, allowed: Iterable[str] | None = None) -> NamedHits:
        """Return the k best hits of each query, as `Index.search` does. allowed: only these ids are hits."""
        return self._named(self.index.search(weights, k, allowed=self._bitmap(allowed)))

    def range_search(
        self, weights: ArrayLike, threshold: ArrayLike, *, allowed: Iterable[str] | None = None
    ) -> list[NamedHits]:
        """Return, for each query, all hits that score at least the threshold (one number, or one per query)."""
        return list(map(self._named, self.index.range_search(weights, threshold, allowed=self._bitmap(allowed))))

    def codes(self, ids: Iterable[str]) -> Codes:
        """Return the codes (n, ceil(bits / 8)) of these ids, which must all exist; an id may come more than once."""
        names, rows = check_text_ids(ids, distinct=False), self._numbers()
        if unknown := [name for name in names if name not in rows]:
            raise InvalidInput(f"ids: expected ids of the index, got {len(unknown)} others, such as {unknown[0]!r}")
        return self.index.codes(np.array([rows[name] for name in names], np.int64))

    def ids(self) -> list[str]:
        """Return all ids, in the order in which they were added."""
        return self._texts(self.index.ids())

    def merge(self) -> None:
        """Bring all rows into tables now, and wait for it: where tables pay, a loaded index has none until then."""
        self.index.merge()

    def save(self, path: str | PathLike[str]) -> None:
        """Write codes, texts and removals to one file, as `Index.save` does. Texts of removed rows are left out."""
        write_index(path, self.saved())

    @classmethod
    def load(
        cls, path: str | PathLike[str], *, mapped: bool = True, verify: bool = True, threads: int | None = None
    ) -> Self:
        """Return the index that `save` wrote; the arguments are those of `Index.load`."""
        saved = read_index(path, mapped=mapped, verify=verify)
        if saved.texts is None:
            raise BadState("path: expected an index of text ids, got one of integer ids. Use Index.load")
        return cls.from_saved(saved, threads)

    def saved(self) -> SavedIndex:
        """Return all that the index is rebuilt from, at this moment."""
        with self._writing:
            saved, ids, count = self.index.saved(), self.index.ids(), len(self._stored.ends) + len(self._added)
        encoded = [text.encode() for text in self._texts(ids)]
        lengths = np.zeros(count, np.int64)
        lengths[ids] = list(map(len, encoded))
        return saved._replace(texts=Texts(np.cumsum(lengths), np.frombuffer(b"".join(encoded), np.uint8)))

    @classmethod
    def from_saved(cls, saved: SavedIndex, threads: int | None = None) -> Self:
        """Return the index of `saved`, without a copy of its codes and texts."""
        assert saved.texts is not None
        index = cls(saved.bits, threads=threads)
        index.index = Index.from_saved(saved._replace(texts=None), threads)
        index._stored, index._rows = saved.texts, None
        return index

    def __reduce__(self) -> tuple[Any, ...]:
        return restore_named_index, (type(self), self.threads, saved_to_dict(self.saved()))

    def _texts(self, rows: IdArray) -> list[str]:
        """Return the texts of rows."""
        ends, data = self._stored
        count, added, texts = len(ends), self._added, []
        for row in rows.tolist():
            if row < count:
                start = int(ends[row - 1]) if row else 0
                texts.append(data[start : int(ends[row])].tobytes().decode("utf-8", "replace"))
            else:
                texts.append(added[row - count])
        return texts

    def _numbers(self) -> dict[str, int]:
        """Return the rows of all texts."""
        with self._writing:
            if self._rows is None:
                rows = self.index.ids()
                texts = dict(zip(self._texts(rows), rows.tolist(), strict=True))
                if len(texts) != len(rows) or "" in texts:
                    raise BadState("ids: expected distinct texts in the file, got others")
                self._rows = texts
            return self._rows

    def _bitmap(self, allowed: Iterable[str] | None) -> NDArray[np.bool_] | None:
        if allowed is None:
            return None
        names, rows = check_text_ids(allowed, "allowed", distinct=False), self._numbers()
        bitmap = np.zeros(len(self._stored.ends) + len(self._added), bool)
        bitmap[[rows[name] for name in names if name in rows]] = True
        return bitmap

    def _named(self, hits: Hits) -> NamedHits:
        ids = np.full(hits.ids.shape, None, object)
        known = hits.ids >= 0
        ids[known] = self._texts(hits.ids[known])
        return NamedHits(hits.scores, ids)


def restore_named_index(cls: type[NamedIndex], threads: int, state: dict[str, Any]) -> NamedIndex:
    """Return the index that was pickled or copied."""
    return cls.from_saved(saved_from_dict(state), threads)


def check_text_ids(ids: Any, name: str = "ids", *, distinct: bool = True) -> list[str]:
    """Return text ids as a list: of 1 to 1,000 characters that UTF-8 can represent."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise WrongType(f"{name}: expected a list of texts, got {ids!r:.100}")
    texts = list(ids)
    for text in texts:
        if not isinstance(text, str):
            raise WrongType(f"{name}: expected texts, got {text!r:.100}")
        if not 1 <= len(text) <= MAX_TEXT_ID:
            raise InvalidInput(f"{name}: expected 1 to {MAX_TEXT_ID} characters, got {len(text)}")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{name}: expected texts that UTF-8 can represent, got {error.object[error.start]!r}"
        ) from None
    if distinct and len(set(texts)) != len(texts):
        raise InvalidInput(f"{name}: expected distinct ids, got some more than once")
    return [str(text) for text in texts]
