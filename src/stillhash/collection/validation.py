"""Validate what callers pass to a collection, once; everything behind trusts it."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.collection.filters.language import AllOf, Condition, compile_filter
from stillhash.collection.storage.schema import parse_json
from stillhash.collection.types import Filter, Id
from stillhash.collection.values import (
    JSON_ENCODER,
    MAX_METADATA_DEPTH,
    brief,
    check_json_values,
    json_depth,
    json_text,
    plain_id,
    plain_label,
)
from stillhash.errors import InvalidInput, WrongType
from stillhash.numeric.codes import from_hex, is_hex, signs, width
from stillhash.numeric.labels import Labels, parse_labels
from stillhash.numeric.validation import Codes, Floats, check_codes, check_features, check_integer, to_array

MAX_PICTURE_BYTES = 1 << 20
MAX_METADATA_BYTES = 1 << 20  # is how long the metadata of an item may be as JSON
MAX_NAME_LENGTH = 1000  # characters are the longest id or label
MAX_ROW_LABELS = 10_000  # labels are the most of an item
PICTURE_SIGNATURES = {
    rb"\x89PNG\r\n\x1a\n": "image/png",
    rb"\xff\xd8\xff": "image/jpeg",
    rb"GIF8[79]a": "image/gif",
    rb"RIFF.{4}WEBP": "image/webp",
}


class LabelledRows(NamedTuple):
    """Validated feature rows and their labels, parsed and serialised once."""

    features: NDArray[Any]  # (n, D) float32; uint8 where these are ready codes, or the rescoring codes that are learnt
    labels: Labels
    label_texts: list[str]  # JSON, one for each row

    @classmethod
    def from_texts(cls, features: Floats, texts: list[str]) -> "LabelledRows":
        """Return rows with labels that `check_labels` serialised."""
        return cls(features, parse_labels([json.loads(text) for text in texts], len(texts)), texts)

    def join(self, later: "LabelledRows") -> "LabelledRows":
        """Return these rows and then later ones."""
        if not len(self.features):
            return later
        features = np.concatenate([self.features, later.features])
        return LabelledRows.from_texts(features, self.label_texts + later.label_texts)

    def select(self, keep: NDArray[np.bool_]) -> "LabelledRows":
        """Return the rows where `keep` is true."""
        texts = [text for text, chosen in zip(self.label_texts, keep.tolist(), strict=True) if chosen]
        return LabelledRows(self.features[keep], self.labels.rows(keep), texts)

    def part(self, rows: slice) -> "LabelledRows":
        """Return the rows from start to stop."""
        ends = self.labels.indptr[rows.start : rows.stop + 1]
        labels = Labels(ends - ends[0], self.labels.indices[ends[0] : ends[-1]], self.labels.names)
        return LabelledRows(self.features[rows], labels, self.label_texts[rows])

    def steps(self, size: int) -> Iterator[slice]:
        """Yield slices of so many rows; the last may be shorter."""
        for start in range(0, len(self.features), size):
            yield slice(start, min(start + size, len(self.features)))


class ItemRows(NamedTuple):
    """What is stored of items, apart from their codes."""

    ids: list[Id]
    label_texts: list[str]  # JSON
    metadata: list[str | None]  # JSON
    pictures: list[bytes | None] | None


def check_items(
    ids: Any, features: Any, labels: Any, metadata: Any, pictures: Any, dim: int
) -> tuple[ItemRows, LabelledRows]:
    """Validate the arguments of `add` and `upsert`; return what to store, and what to encode and learn."""
    names = check_ids(ids)
    rows, count = check_rows(features, labels, dim), len(names)
    if len(rows.features) != count:
        raise InvalidInput(f"features: expected one row for each of {count} ids, got {len(rows.features)} rows")
    return ItemRows(names, rows.label_texts, check_metadata(metadata, count), check_pictures(pictures, count)), rows


def check_rows(features: Any, labels: Any, dim: int, name: str = "features", least: int = 0) -> LabelledRows:
    """Validate features (n, D) and their labels."""
    X = check_features(features, name, columns=dim, whose="this collection", least=least)
    return LabelledRows(X, *check_labels(labels, len(X)))


def check_query(query: Any, dim: int) -> tuple[Floats, bool]:
    """Validate one query (D,) or several (m, D); return them as rows, and whether it was one."""
    array = to_array(query, "query")
    single = array.ndim == 1
    return check_features(array[None] if single else array, "query", columns=dim, whose="this collection"), single


def check_distance(distance: Any, bits: int, threshold: Any, version: Any) -> float:
    """Return the score of a Hamming distance: the bits that agree minus those that differ."""
    if threshold is not None or version not in (None, "hamming"):
        raise InvalidInput("distance: expected no threshold and no version with it")
    return float(bits - 2 * check_integer(distance, "distance", 0, bits))


def check_path(path: Any) -> Path:
    """Return the absolute path of a folder, so that it holds when the working directory changes."""
    if not isinstance(path, (str, os.PathLike)):
        raise WrongType(f"path: expected a string or a path, got {path!r}")
    if "\0" in str(path):
        raise InvalidInput(f"path: expected a path without the character 0, got {str(path)!r}")
    return Path(path).absolute()


def check_filter_fields(fields: Any) -> list[str] | None:
    """Return the names of fields as a list; None for all."""
    if fields is None:
        return None
    if isinstance(fields, str) or not isinstance(fields, Iterable):
        raise WrongType(f"filter_fields: expected a list of fields, got {fields!r}")
    names = list(fields)
    for name in names:
        if not isinstance(name, str):
            raise WrongType(f"filter_fields: expected strings, got {name!r}")
        if name == "labels" or name.startswith("$") or names.count(name) > 1:
            raise InvalidInput(f"filter_fields: expected fields of the metadata, each once, got {name!r}")
    return names


def check_ids(ids: Any, *, distinct: bool = True) -> list[Id]:
    """Return ids as a list of printable strings and 64-bit integers."""
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise WrongType(f"ids: expected a list of strings or integers, got {ids!r}")
    names = ids.tolist() if isinstance(ids, np.ndarray) and ids.dtype.kind in "iuU" else list(ids)
    kinds = set(map(type, names))
    if not (kinds == {int} or kinds == {str}):
        names = [plain_id(name, f"ids[{number}]") for number, name in enumerate(names)]
        kinds = set(map(type, names))
    plain = kinds == {int} and min(names) >= -(2**63) and max(names) < 2**63
    plain = plain or (kinds == {str} and "" not in names and "".join(names).isprintable())
    for name in names if not plain else ():
        if isinstance(name, int) and not -(2**63) <= name < 2**63:
            raise InvalidInput(f"ids: expected 64-bit integers, got {name}")
        if isinstance(name, str) and not (name and name.isprintable()):
            raise InvalidInput(f"ids: expected printable strings, got {name!r}")
    if str in kinds and (longest := max(len(name) for name in names if isinstance(name, str))) > MAX_NAME_LENGTH:
        raise InvalidInput(f"ids: expected at most {MAX_NAME_LENGTH} characters, got {longest}")
    if distinct and len(set(names)) != len(names):
        repeated = next(name for n, name in enumerate(names) if name in names[:n])
        raise InvalidInput(f"ids: expected each id once, got {repeated!r} more than once")
    return names


def check_labels(labels: Any, rows: int) -> tuple[Labels, list[str]]:
    """Return the labels of each row, parsed, and as JSON lists: numbers first, then strings, each in order.

    The names of the result are in order of first appearance in those lists, which is how the lists themselves parse.
    """
    if labels is None:
        return parse_labels(None, rows), ["[]"] * rows
    names, ranks, indptr = _sorted_labels(labels, rows)
    texts = list(map(JSON_ENCODER.encode, names))
    flat = [texts[rank] for rank in ranks.tolist()]
    lists = [f"[{', '.join(flat[start:end])}]" for start, end in pairwise(indptr.tolist())]
    used, first, inverse = np.unique(ranks, return_index=True, return_inverse=True)
    by_appearance = np.argsort(first)
    indices = np.argsort(by_appearance)[inverse]
    indices = indices[np.lexsort((indices, np.repeat(np.arange(rows), np.diff(indptr))))]
    return Labels(indptr, indices, [names[rank] for rank in used[by_appearance].tolist()]), lists


def check_label_lists(labels: Any, rows: int) -> list[list[Any]]:
    """Return the labels of each row as a list: numbers first, then strings, each in order."""
    names, ranks, indptr = _sorted_labels(labels, rows)
    flat = [names[rank] for rank in ranks.tolist()]
    return [flat[start:end] for start, end in pairwise(indptr.tolist())]


def _sorted_labels(labels: Any, rows: int) -> tuple[list[Any], NDArray[np.int64], NDArray[np.int64]]:
    """Return the sorted label names, the ranks of each row's labels in them, rising, and where rows begin."""
    parsed = parse_labels(labels, rows, "labels")
    plain = [name if type(name) is str else plain_label(name) for name in parsed.names]
    for name in plain:
        if isinstance(name, str) and "\0" in name:
            raise InvalidInput(f"labels: expected strings without the character 0, got {name!r}")
        if isinstance(name, str) and len(name) > MAX_NAME_LENGTH:
            raise InvalidInput(f"labels: expected at most {MAX_NAME_LENGTH} characters, got {len(name)}")
    if (most := np.diff(parsed.indptr).max(initial=0)) > MAX_ROW_LABELS:
        raise InvalidInput(f"labels: expected at most {MAX_ROW_LABELS} for an item, got {most}")
    names: list[Any] = sorted(set(plain), key=lambda name: (isinstance(name, str), name))
    places = {name: place for place, name in enumerate(names)}
    ranks = np.array([places[name] for name in plain], np.int64)[parsed.indices]
    row_numbers = np.repeat(np.arange(rows), np.diff(parsed.indptr))
    if len(names) == len(plain):
        return names, ranks[np.lexsort((ranks, row_numbers))], parsed.indptr
    row_numbers, ranks = np.divmod(np.unique(row_numbers * len(names) + ranks), len(names))  # some labels became equal
    return names, ranks, np.concatenate([[0], np.cumsum(np.bincount(row_numbers, minlength=rows))])


def check_pictures(pictures: Any, rows: int) -> list[bytes | None] | None:
    """Return for each row a small image, or None; only formats that browsers show and that cannot hold scripts."""
    if pictures is None:
        return None
    entries = check_entries(pictures, "pictures", "bytes", rows)
    for data in entries:
        if data is not None and not isinstance(data, bytes):
            raise WrongType(f"pictures: expected bytes, got a value of type {type(data).__name__}")
        if data is not None and len(data) > MAX_PICTURE_BYTES:
            raise InvalidInput(f"pictures: expected thumbnails of at most {MAX_PICTURE_BYTES} bytes, got {len(data)}")
        if data is not None and picture_type(data) is None:
            raise InvalidInput(f"pictures: expected PNG, JPEG, WebP or GIF, got data that begins with {data[:8]!r}")
    return entries


def picture_type(data: bytes) -> str | None:
    """Return the media type of an image by its first bytes, or None."""
    signatures = PICTURE_SIGNATURES.items()
    return next((kind for signature, kind in signatures if re.match(signature, data, re.DOTALL)), None)


def check_metadata(metadata: Any, rows: int) -> list[str | None]:
    """Return the metadata of each row as JSON, or None."""
    if metadata is None:
        return [None] * rows
    entries = check_entries(metadata, "metadata", "a dictionary", rows)
    return [None if data is None else metadata_json(data, f"metadata[{row}]") for row, data in enumerate(entries)]


def check_entries(values: Any, name: str, expected: str, rows: int) -> list[Any]:
    """Return values as a list with one entry for each row."""
    if isinstance(values, (bytes, str, dict)) or hasattr(values, "columns") or not isinstance(values, Iterable):
        kind = type(values).__name__
        raise WrongType(f"{name}: expected a list with {expected} or None for each row, got a value of type {kind}")
    entries = list(values)
    if len(entries) != rows:
        raise InvalidInput(f"{name}: expected one entry for each of {rows} ids, got {len(entries)}")
    return entries


def metadata_json(data: Any, name: str = "metadata") -> str:
    """Return the metadata of an item as JSON."""
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise WrongType(f"{name}: expected dictionaries with strings as keys, got {brief(data)}")
    try:
        text = json_text(data)
    except (TypeError, ValueError) as error:
        check_json_values(data, name)
        raise InvalidInput(f"{name}: expected what JSON can hold, got {error}") from None
    except RecursionError:
        text, depth = "", MAX_METADATA_DEPTH + 1
    else:
        depth = json_depth(text)
    if depth > MAX_METADATA_DEPTH:
        raise InvalidInput(f"{name}: expected at most {MAX_METADATA_DEPTH} objects and lists in one another, got more")
    if len(text) > MAX_METADATA_BYTES:
        raise InvalidInput(f"{name}: expected at most {MAX_METADATA_BYTES} bytes of JSON, got {len(text)}")
    return text


EVERY_ITEM = AllOf(())
ItemFilter = Filter | Literal["all"]  # a condition that is not empty, or every item
MetadataChange = Callable[[str | None], str | None]  # of JSON; None is no metadata


def check_selection(ids: Any, where: Any) -> list[Id] | Condition:
    """Return the ids, or the condition; exactly one of them must be passed, and all items only by where="all"."""
    if (ids is None) == (where is None):
        raise InvalidInput(f"ids: expected either ids or where, got {'neither' if ids is None else 'both'}")
    if where is None:
        return check_ids(ids)
    if isinstance(where, str) and where == "all":
        return Condition(EVERY_ITEM)
    condition = compile_filter(where)
    if condition.tree == EVERY_ITEM:
        raise InvalidInput('where: expected a condition, got an empty one. Pass where="all" for every item.')
    return condition


def check_shared_labels(labels: Any) -> list[Any]:
    """Return the labels, one list, that all items get that meet a condition."""
    if labels is None:
        raise InvalidInput("labels: expected a list of labels for all items that match, [] for none, got None")
    check_labels([labels], 1)
    return [labels]


def check_shared(labels: Any) -> list[Any]:
    """Return the labels that a verb adds to all items, or removes from them: a list, or a single one."""
    if labels is None:
        raise InvalidInput("labels: expected a label, or a list of labels for all items, got None")
    (shared,) = check_label_lists([labels], 1)
    if not shared:
        raise InvalidInput("labels: expected at least one label, got none")
    return shared


def check_metadata_changes(metadata: Any, rows: int | None, replace: bool) -> list[MetadataChange]:
    """Return how to change the metadata of each of so many rows, or of all rows alike: then one change.

    metadata: a dictionary for all rows, or a list with one for each; None only to remove all, with replace.
    """
    shared = metadata is None or isinstance(metadata, dict)
    if rows is None and not shared:
        raise InvalidInput(f"metadata: expected a dictionary with where, got {type(metadata).__name__}")
    entries = [metadata] if shared else check_entries(metadata, "metadata", "a dictionary", rows or 0)
    changes: list[MetadataChange] = []
    for number, entry in enumerate(entries):
        name = "metadata" if shared else f"metadata[{number}]"
        if entry is None and not replace:
            raise InvalidInput(f"{name}: expected a dictionary; None only with replace=True, which removes all fields")
        text = None if entry is None else metadata_json(entry, name)
        changes.append(partial(_replaced, text) if replace else partial(merge_metadata, json.loads(text or "{}")))
    return changes if not shared or rows is None else changes * rows


def _replaced(text: str | None, _: str | None) -> str | None:
    return text


def merge_metadata(fields: dict[str, Any], stored: str | None) -> str | None:
    """Return stored metadata with these fields; those with None are removed. Objects are replaced, not merged."""
    before = {} if stored is None else parse_json(stored, dict, "metadata")
    removed = {key for key, value in fields.items() if value is None}
    merged = {key: value for key, value in {**before, **fields}.items() if key not in removed}
    return None if stored is None and not merged else metadata_json(merged)


class FeatureInput(NamedTuple):
    """Rows of features, (n, dim) real numbers."""

    dim: int
    bits: int

    @property
    def row_length(self) -> int:
        """Return the numbers of a row."""
        return self.dim

    def items(
        self, ids: Any, features: Any, labels: Any, metadata: Any, pictures: Any
    ) -> tuple[ItemRows, LabelledRows]:
        """Validate the arguments of `add` and `upsert`."""
        self._refuse_codes(features, "features")
        return check_items(ids, features, labels, metadata, pictures, self.dim)

    def rows(self, features: Any, labels: Any, *, least: int = 0) -> LabelledRows:
        """Validate rows and their labels."""
        self._refuse_codes(features, "features")
        return check_rows(features, labels, self.dim, least=least)

    def query(self, query: Any) -> tuple[Floats, bool]:
        """Validate one query, or several; return them as rows, and whether it was one."""
        self._refuse_codes(query, "query")
        return check_query(query, self.dim)

    def _refuse_codes(self, value: Any, name: str) -> None:
        packed = isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim in (1, 2)
        if is_hex(value) or (packed and value.shape[-1] == width(self.bits) != self.dim):
            use = "Only a collection that is created with codes_only=True takes codes."
            raise InvalidInput(f"{name}: expected {self.dim} features, got what looks like codes. {use}")


class CodeInput(NamedTuple):
    """Rows of ready codes: packed, (n, ceil(bits / 8)) uint8, or hexadecimal texts."""

    bits: int

    @property
    def row_length(self) -> int:
        """Return the bytes of a code."""
        return width(self.bits)

    def items(
        self, ids: Any, features: Any, labels: Any, metadata: Any, pictures: Any
    ) -> tuple[ItemRows, LabelledRows]:
        """Validate the arguments of `add` and `upsert`; the codes are in the place of features."""
        names = check_ids(ids)
        (codes, _), count = self.codes(features, "codes", single=False), len(names)
        if len(codes) != count:
            raise InvalidInput(f"codes: expected one for each of {count} ids, got {len(codes)}")
        parsed, texts = check_labels(labels, count)
        new = ItemRows(names, texts, check_metadata(metadata, count), check_pictures(pictures, count))
        return new, LabelledRows(codes, parsed, texts)

    def rows(self, features: Any, labels: Any, *, least: int = 0) -> LabelledRows:
        """Validate codes and their labels; the features are signs."""
        codes, _ = self.codes(features, "codes", single=False)
        return check_rows(signs(codes, self.bits), labels, self.bits, "codes", least)

    def query(self, query: Any) -> tuple[Floats, bool]:
        """Validate one query, or several; return their signs as rows, and whether it was one."""
        codes, single = self.codes(query, "query")
        return signs(codes, self.bits), single

    def codes(self, value: Any, name: str, *, single: bool = True) -> tuple[Codes, bool]:
        """Return packed codes as rows, and whether there was one, not in a list."""
        if not isinstance(value, np.ndarray) and hasattr(value, "__array__"):  # a column of a table, a tensor
            value = np.asarray(value)
        if is_hex(value):
            array: NDArray[Any] = from_hex(value, self.bits)
        elif isinstance(value, list) and value and all(isinstance(one, np.ndarray) for one in value):
            array = _stacked(value, name)
        else:
            array = value if isinstance(value, np.ndarray) else np.empty(0, object)
        if array.dtype != np.uint8:
            kind = (
                f"dtype {array.dtype}" if isinstance(value, np.ndarray) else f"a value of type {type(value).__name__}"
            )
            expected = f"packed codes of dtype uint8, {width(self.bits)} bytes each, or hexadecimal texts"
            raise WrongType(f"{name}: expected {expected}, since this collection has codes only, got {kind}")
        alone = array.ndim == 1 and single
        return check_codes(array[None] if alone else array, self.bits, name), alone


InputRows = FeatureInput | CodeInput


def input_rows(settings: dict[str, Any]) -> InputRows:
    """Return what a collection of these settings takes."""
    return CodeInput(settings["bits"]) if settings["codes_only"] else FeatureInput(settings["dim"], settings["bits"])


def _stacked(rows: list[NDArray[Any]], name: str) -> NDArray[Any]:
    try:
        return np.stack(rows)
    except ValueError:
        raise InvalidInput(
            f"{name}: expected codes of equal length, got {sorted({row.shape for row in rows})}"
        ) from None
