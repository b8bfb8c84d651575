"""What a search needs of one commit: the read view of a store has it, and so has a front, which has no store."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from sqlite3 import Connection
from typing import Any, Protocol

from numpy.typing import NDArray

from stillhash.collection.filters.language import Condition
from stillhash.collection.storage.items import ItemContent
from stillhash.collection.storage.learner import VersionTable
from stillhash.collection.storage.votes import SourceShares, VotedRows, VoteTable
from stillhash.hashers import LinearHasher, Model
from stillhash.hashers.linear import PageModel
from stillhash.numeric.rescored_page import StoredItems
from stillhash.numeric.validation import Floats
from stillhash.search.blocks import IdArray


class ModelStore(Protocol):
    """Where settings, models and votes are read from."""

    @property
    def settings(self) -> dict[str, Any]: ...
    @property
    def versions(self) -> VersionTable: ...
    @property
    def votes(self) -> VoteTable: ...
    def reading(self) -> AbstractContextManager[Connection]: ...


class SearchSnapshot(Protocol):
    """One commit, and the rows that meet the condition of the search."""

    @property
    def connection(self) -> Connection: ...  # to the tables of models and votes
    @property
    def index(self) -> Any: ...  # a Searcher
    @property
    def functions(self) -> LinearHasher | None: ...
    @property
    def version(self) -> int: ...
    @property
    def model(self) -> Model: ...
    @property
    def source_shares(self) -> SourceShares: ...
    @property
    def page_items(self) -> StoredItems | None: ...  # None without rescoring codes
    @property
    def allowed(self) -> Any: ...  # as the index takes it; None without a condition
    def weigh(self, Q: Floats, model: Model | None = None) -> Floats: ...
    def page_model(self, model: Model) -> PageModel | None: ...
    def count_allowed(self) -> int: ...
    def select_allowed(self, rows: IdArray) -> IdArray: ...
    def repeats(self, digests: list[int]) -> Sequence[IdArray]: ...
    def contents(self, rows: Iterable[int], max_bytes: int | None) -> dict[int, ItemContent]: ...
    def rank_by_cosine(self, Q: Floats, k: int, voted: VotedRows) -> tuple[list[tuple[NDArray[Any], ...]], str]: ...


class SearchView(Protocol):
    """Holds the latest commit for a search."""

    def pinned(self, condition: Condition | None = None) -> AbstractContextManager[SearchSnapshot]: ...
