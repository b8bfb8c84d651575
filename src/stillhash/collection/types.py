"""What goes in and what comes out: items, hits and answers, and the checks at the door."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from stillhash.errors import InvalidInput, WrongType
from stillhash.numeric.labels import TEXT_TYPES, Labels, parse_labels
from stillhash.numeric.validation import check_number

Id = str | int
MOST_PICTURE = 1 << 20  # bytes
KINDS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
FINITE = json.JSONEncoder(allow_nan=False)


@dataclass(frozen=True)
class Item:
    id: Id
    labels: list[Any]
    metadata: dict[str, Any] | None


@dataclass(frozen=True)
class Explanation:
    """A score as a sum over bits, and what another version of the model makes of the same item."""

    bits: list[float]  # what each bit adds; they sum to the score
    groups: list[float]  # the same for each eight bits, a byte of the code
    rank: int  # among all that may be hits, from 1
    other_version: int
    other_score: float  # by that version
    other_rank: int


@dataclass(frozen=True)
class Hit(Item):
    score: float
    version: int = field(default=0, compare=False)  # of the model that ranked it
    explanation: Explanation | None = None  # if asked for


@dataclass(frozen=True)
class Answer:
    """Hits, best first; the version of the model that ranked them, 0 if nothing is learnt; and how they are ranked."""

    hits: list[Hit]
    version: int
    ranking: str
    missing: float = 0.0  # the share of the items that did not answer, of a collection on several machines

    def explained(self, told: list[Explanation]) -> Answer:
        """The same, with an explanation of each hit."""
        return replace(self, hits=[replace(hit, explanation=e) for hit, e in zip(self.hits, told, strict=True)])


def check_path(path: Any) -> Path:
    """The path of a folder, which stays the same wherever the process goes."""
    if not isinstance(path, (str, os.PathLike)):
        raise WrongType(f"path is {path!r}; a text or a path is wanted")
    if "\0" in str(path):
        raise InvalidInput(f"path is {str(path)!r}; a path without the character 0 is wanted")
    return Path(path).absolute()


def check_ids(ids: Any, *, distinct: bool = True) -> list[Id]:
    """Texts, or integers of 64 bits."""
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise WrongType(f"ids is {ids!r}; a list of texts or integers is wanted")
    names = [name.item() if isinstance(name, np.generic) else name for name in ids]
    kinds = set(map(type, names))
    plain = kinds == {int} and min(names) >= -(2**63) and max(names) < 2**63
    plain = plain or (kinds == {str} and "" not in names and "".join(names).isprintable())
    for name in names if not plain else ():
        if type(name) not in (str, int):
            raise WrongType(f"ids holds {name!r}; texts and integers are wanted")
        if isinstance(name, int) and not -(2**63) <= name < 2**63:
            raise InvalidInput(f"ids holds {name}; integers of 64 bits are wanted")
        if isinstance(name, str) and not (name and name.isprintable()):
            raise InvalidInput(f"ids holds {name!r}; texts that can be printed are wanted")
    if distinct and len(set(names)) != len(names):
        raise InvalidInput("ids holds an id more than once")
    return names


def check_thumbs(id: Any, relevant: Any, weight: float, source: Any) -> dict[Id, bool]:
    """Items, one or several, and whether each is what was looked for."""
    names = check_ids([id] if isinstance(id, (str, int, np.generic)) else id)
    if not names:
        raise InvalidInput("id holds no ids; at least one is wanted")
    likes = list(relevant) if isinstance(relevant, (list, tuple, np.ndarray)) else [relevant] * len(names)
    if len(likes) != len(names) or not all(isinstance(liked, (bool, np.bool_)) for liked in likes):
        raise InvalidInput(f"relevant is {relevant!r}; true or false is wanted for each of {len(names)} ids")
    if not 0 < check_number(weight, "weight") <= 1:
        raise InvalidInput(f"weight is {weight}; more than 0 and at most 1 is wanted")
    if not isinstance(source, str) or not source.isprintable():
        raise WrongType(f"source is {source!r}; a text that can be printed is wanted")
    return {name: bool(liked) for name, liked in zip(names, likes, strict=True)}


def check_labels(labels: Any, rows: int) -> list[list[Any]]:
    """For each row its labels, as JSON can hold them."""
    parsed = parse_labels(labels, rows, "labels")
    for name in parsed.names:
        if type(name) not in (str, int, float):
            raise WrongType(f"labels holds {name!r}; in a collection, texts and numbers are wanted")
        if isinstance(name, str) and "\0" in name:
            raise InvalidInput(f"labels holds {name!r}; texts without the character 0 are wanted")
    return label_lists(parsed)


def label_lists(labels: Labels) -> list[list[Any]]:
    """Numbers first, then texts, each in order, so that equal sets look alike."""
    names: list[Any] = sorted(labels.names, key=lambda name: (isinstance(name, str), name))
    places = {name: place for place, name in enumerate(names)}
    ranks = np.array([places[name] for name in labels.names], np.int64)[labels.indices]
    rows = np.repeat(np.arange(len(labels)), np.diff(labels.indptr))
    flat = [names[rank] for rank in ranks[np.lexsort((ranks, rows))].tolist()]
    return [flat[start:end] for start, end in pairwise(labels.indptr.tolist())]


def label_texts(labels: list[list[Any]]) -> list[str]:
    """Each row's labels as JSON; a label is put into words once, however many rows have it."""
    words = {name: json.dumps(name) for name in set(chain.from_iterable(labels))}
    return [f"[{', '.join(map(words.__getitem__, named))}]" for named in labels]


def check_pictures(pictures: Any, rows: int) -> list[bytes | None] | None:
    """For each row a small image, or None; of a kind that browsers show and that cannot hold programs."""
    if pictures is None:
        return None
    if isinstance(pictures, (bytes, str, dict)) or not isinstance(pictures, Iterable):
        raise WrongType(f"pictures is {type(pictures).__name__}; a list with bytes, or None, for each row is wanted")
    told = list(pictures)
    if len(told) != rows:
        raise InvalidInput(f"pictures has {len(told)} entries for {rows} ids; one each is wanted")
    for data in told:
        if data is not None and not isinstance(data, bytes):
            raise WrongType(f"pictures holds {type(data).__name__}; bytes are wanted")
        if data is not None and len(data) > MOST_PICTURE:
            raise InvalidInput(
                f"pictures holds one of {len(data)} bytes; thumbnails of at most {MOST_PICTURE} are wanted"
            )
        if data is not None and picture_kind(data) is None:
            raise InvalidInput("pictures holds what is no PNG, JPEG, WebP or GIF")
    return told


def picture_kind(data: bytes) -> str | None:
    """The media type of an image, told by how it begins."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in KINDS.items() if data.startswith(start)), None)


def check_metadata(metadata: Any, rows: int) -> list[str | None]:
    """For each row its metadata as JSON text, or None."""
    if metadata is None:
        return [None] * rows
    if isinstance(metadata, dict) or not isinstance(metadata, Iterable):
        raise WrongType(
            f"metadata is {type(metadata).__name__}; a list with a dictionary, or None, for each row is wanted"
        )
    told = list(metadata)
    if len(told) != rows:
        raise InvalidInput(f"metadata has {len(told)} entries for {rows} ids; one each is wanted")
    return _all_plain(told) or [None if data is None else _as_json(data) for data in told]


def _all_plain(told: list[Any]) -> list[str | None] | None:
    """All of it as JSON at once, if nothing in it wants a closer look; which is most of the time, and much quicker."""
    given = [data for data in told if data is not None]
    if not (set(map(type, given)) <= {dict} and set(map(type, chain.from_iterable(given))) <= TEXT_TYPES):
        return None
    try:
        texts = [None if data is None else encode(data) for data in told]
    except (TypeError, ValueError, RecursionError):
        return None
    return None if any("\\" in text for text in texts if text) else texts


def _as_json(data: Any) -> str:
    if not isinstance(data, dict) or not (
        set(map(type, data)) <= TEXT_TYPES or all(isinstance(key, str) for key in data)
    ):
        raise WrongType(f"metadata holds {data!r}; dictionaries with texts as keys are wanted")
    try:
        return json_text(data)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"metadata holds {data!r}, which cannot be stored: {error}") from None
    except RecursionError:
        raise InvalidInput("metadata is nested too deep to be stored") from None


def json_text(data: Any) -> str:
    """JSON as every version of SQLite reads it: with \\u0022 for a quote, which would end a path, and no \\u0000."""
    text = encode(data)
    return re.sub(r"\\(u0000|.)", _escape, text) if "\\" in text else text


def encoder() -> Callable[[Any], str]:
    """What writes JSON. JSONEncoder makes its C encoder anew for every call, which is half of a small object's time;
    where that encoder can be made, it is made once.
    """
    try:
        text = json.encoder.encode_basestring_ascii
        made = vars(json.encoder)["c_make_encoder"](None, FINITE.default, text, None, ": ", ", ", False, False, False)
        if "".join(made({"a": [1, None, 0.5]}, 0)) != FINITE.encode({"a": [1, None, 0.5]}):
            return FINITE.encode
    except (AttributeError, KeyError, TypeError):
        return FINITE.encode

    def write(data: Any) -> str:
        try:
            return "".join(made(data, 0))
        except RecursionError:
            return FINITE.encode(data)  # which tells a circle from depth

    return write


encode = encoder()


def _escape(found: re.Match[str]) -> str:
    if found[1] == "u0000":
        raise ValueError("the character 0 ends a text")
    return r"\u0022" if found[1] == '"' else found[0]
