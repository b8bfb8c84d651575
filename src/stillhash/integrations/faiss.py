"""FAISS, both ways: indexes and collections to FAISS, and the vectors or codes of a FAISS index back.

The learnt score is a product quantiser: with four bits to a part and the codebook {-1, +1}^4, the inner product of the
weights of a query and a decoded code is weights . signs(code). Packed codes are laid out alike too, so that they are
taken over byte by byte: part p of a code is half a byte, the lower one for even p.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stillhash.collection import Collection
from stillhash.collection.types import Id
from stillhash.errors import BadState, InvalidInput, MissingExtra, NotFitted, WrongType, report_shortages
from stillhash.numeric.codes import width
from stillhash.numeric.validation import Codes, Floats, check_integer, check_weights
from stillhash.search import CodeIndex, Index, NamedIndex

try:
    faiss: Any = import_module("faiss")
except ImportError as error:
    raise MissingExtra("stillhash.integrations.faiss needs FAISS: pip install 'stillhash[faiss]'") from error

PART_BITS = 4  # of a code, in one part of the product quantiser
CODEBOOK: Floats = np.where((np.arange(16)[:, None] >> np.arange(PART_BITS)) & 1, 1, -1).astype(np.float32)  # (16, 4)
FAISS_ROWS = 65_536  # at a time
BINARY_FILE = b"IB"  # how files of binary indexes begin

CodeSource = CodeIndex | NamedIndex | Collection


class FaissIndex(NamedTuple):
    """An index of FAISS, whose labels are 0, 1, 2, ..., and the ids of these rows."""

    index: Any  # faiss.IndexPQ, or faiss.IndexBinaryFlat
    ids: Sequence[Id] | NDArray[np.int64]

    def with_ids(self) -> Any:
        """Return the index in an IndexIDMap2, or IndexBinaryIDMap2, whose labels are the ids: integers from 0 on."""
        if not all(isinstance(id, int | np.integer) and id >= 0 for id in self.ids):
            raise InvalidInput("ids: expected integers of at least 0, which FAISS has as labels, got others")
        ids = np.asarray(self.ids, np.int64)
        named_kind = faiss.IndexBinaryIDMap2 if isinstance(self.index, faiss.IndexBinary) else faiss.IndexIDMap2
        count, self.index.ntotal = self.index.ntotal, 0  # it takes an empty index only
        named = named_kind(self.index)
        self.index.ntotal = named.ntotal = count
        faiss.copy_array_to_vector(ids, named.id_map)
        named.construct_rev_map()
        return named


@report_shortages
def to_faiss(source: CodeSource) -> FaissIndex:
    """Return an IndexPQ of inner products that scores as the source does: weights . signs(code).

    Search it with `hasher.weigh(queries)` or `collection.weigh(queries)`; with `pad_weights` where the bits are not a
    multiple of 4. Scores are float32 sums, ours are rounded once; equal scores come in any order. A collection must not
    be written to meanwhile.
    """
    dims = -(-source.bits // PART_BITS) * PART_BITS
    index = faiss.IndexPQ(dims, dims // PART_BITS, PART_BITS, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(np.tile(CODEBOOK.ravel(), index.pq.M), index.pq.centroids)
    index.is_trained = True
    ids = _source_ids(source)
    _fill(index.codes, source, ids)
    index.ntotal = len(ids)
    return FaissIndex(index, ids)


@report_shortages
def to_faiss_binary(source: CodeSource) -> FaissIndex:
    """Return an IndexBinaryFlat of the codes: by Hamming distance, as `Scan` ranks by `signs(code, bits)`.

    Its bits are rounded up to whole bytes, whose last ones are zero.
    """
    index, ids = faiss.IndexBinaryFlat(8 * width(source.bits)), _source_ids(source)
    _fill(index.xb, source, ids)
    index.ntotal = len(ids)
    return FaissIndex(index, ids)


def pad_weights(weights: ArrayLike, bits: int) -> Floats:
    """Return weights (m, bits) with zeros up to a multiple of 4 bits, as the index of `to_faiss` takes them."""
    return np.pad(check_weights(weights, bits), ((0, 0), (0, -bits % PART_BITS)))


@dataclass(frozen=True)
class FaissRows:
    """What a FAISS index holds: vectors (float32), or packed codes of `dim` bits, and the ids of rows."""

    kind: Literal["vectors", "codes"]
    rows: int
    dim: int  # of vectors, or bits of codes
    ids: NDArray[np.int64] | None  # None: 0, 1, 2, ...
    index: Any  # of FAISS, without its ids
    owner: Any  # the index that it is in, which frees it

    def blocks(self, rows: int = FAISS_ROWS) -> Iterator[NDArray[Any]]:
        """Yield vectors (n, dim) or codes (n, ceil(dim / 8)), so many rows at a time."""
        check_integer(rows, "rows", 1)
        for start in range(0, self.rows, rows):
            count = min(rows, self.rows - start)
            if self.kind == "vectors":
                yield self.index.reconstruct_n(start, count)
            else:
                size = width(self.dim)
                stored = self.index.xb if isinstance(self.index, faiss.IndexBinary) else self.index.codes
                part = _view(stored, self.rows * size)[start * size : (start + count) * size]
                yield part.reshape(count, size).copy()

    def array(self) -> NDArray[Any]:
        """Return all vectors or codes."""
        empty = (0, self.dim) if self.kind == "vectors" else (0, width(self.dim))
        dtype = np.float32 if self.kind == "vectors" else np.uint8
        return np.concatenate([np.empty(empty, dtype), *self.blocks()])

    def to_index(self, bits: int | None = None) -> Index:
        """Return an `Index` of the codes under their ids. bits: fewer than `dim`, where the last ones are padding."""
        if self.kind != "codes":
            raise InvalidInput(
                "index: expected codes, got vectors. Encode them with a hasher, or add them to a collection"
            )
        index, start = Index(self.dim if bits is None else bits), 0
        for codes in self.blocks():
            index.add(codes, None if self.ids is None else self.ids[start : start + len(codes)])
            start += len(codes)
        return index


@report_shortages
def from_faiss(index: Any) -> FaissRows:
    """Return what is in a FAISS index, or in a file of one, without a copy until it is read.

    IndexFlat: its vectors. IndexBinaryFlat: its codes. IndexPQ: its codes, if its codebook is that of `to_faiss`, else
    vectors as it decodes them, like all other indexes that hold one code after another. IndexIDMap and IndexIDMap2
    around one of these: its ids too. FAISS reads the file: use only files that you trust.
    """
    owner, ids = _read(index) if isinstance(index, str | PathLike) else index, None
    inner = owner
    if isinstance(inner, faiss.IndexIDMap | faiss.IndexBinaryIDMap):
        ids = faiss.vector_to_array(inner.id_map)
        inner = inner.index
    if isinstance(inner, faiss.IndexBinary):
        inner = faiss.downcast_IndexBinary(inner)
        if isinstance(inner, faiss.IndexBinaryFlat):
            return FaissRows("codes", inner.ntotal, inner.d, ids, inner, owner)
    elif isinstance(inner, faiss.Index):
        inner = faiss.downcast_index(inner)
        if isinstance(inner, faiss.IndexPQ) and _is_codebook(inner.pq):
            return FaissRows("codes", inner.ntotal, inner.d, ids, inner, owner)
        if isinstance(inner, faiss.IndexFlatCodes):
            return FaissRows("vectors", inner.ntotal, inner.d, ids, inner, owner)
    expected = "IndexFlat, IndexPQ or IndexBinaryFlat, or one of these in an IndexIDMap"
    raise WrongType(f"index: expected {expected}, got {type(inner).__name__}")


def _read(path: str | PathLike[str]) -> Any:
    try:
        with Path(path).open("rb") as file:
            binary = file.read(2) == BINARY_FILE
        return (faiss.read_index_binary if binary else faiss.read_index)(fspath(path))
    except (OSError, RuntimeError) as error:
        raise BadState(f"{Path(path).name}: cannot be read as an index of FAISS: {error}") from error


def _is_codebook(quantizer: Any) -> bool:
    """Return whether a product quantiser has four bits to a part, and our codebook in each."""
    if quantizer.nbits != PART_BITS or quantizer.d != quantizer.M * PART_BITS:
        return False
    codebooks = faiss.vector_to_array(quantizer.centroids).reshape(quantizer.M, *CODEBOOK.shape)
    return bool((codebooks == CODEBOOK).all())


def _source_ids(source: CodeSource) -> list[Any] | NDArray[np.int64]:
    if not isinstance(source, Collection):
        return source.ids()
    ids: list[Any] = []
    while part := source.ids(after=ids[-1] if ids else None, limit=FAISS_ROWS):
        ids.extend(part)
    return ids


def _fill(vector: Any, source: CodeSource, ids: Any) -> None:
    """Fill a vector of FAISS with the codes of these ids."""
    size = width(source.bits)
    vector.resize(len(ids) * size)
    for start in range(0, len(ids), FAISS_ROWS):
        codes: Codes | None = source.codes(ids[start : start + FAISS_ROWS])
        if codes is None:
            raise NotFitted("source: the hash functions are not fitted yet: add more rows, or call fit")
        _view(vector, len(ids) * size)[start * size : start * size + codes.size] = codes.reshape(-1)


def _view(vector: Any, size: int) -> Codes:
    """Return the memory of a vector of FAISS as an array."""
    return np.asarray(faiss.rev_swig_ptr(vector.data(), size)) if size else np.empty(0, np.uint8)
