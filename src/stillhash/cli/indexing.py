"""Commands for images and texts: index a folder or a table with a column of texts; align another encoder."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Argument, Option, Typer

import stillhash
from stillhash.cli.completion import (
    CHUNK_WORDS,
    ENCODER_PREFIXES,
    INDEX_KINDS,
    LABEL_SOURCES,
    MAX_TEXT_MIB,
    NEW_CODE_BITS,
    STORE_FILE,
    TEXT_ENCODING_NAMES,
    one_of,
)
from stillhash.cli.options import BITS_HELP, ENCODER_HELP, FILES_PANEL, CodesSeeLabels, CollectionPath, Workers
from stillhash.cli.output import AsJson, answer, note, progress_bar, status_line
from stillhash.errors import InvalidInput

if TYPE_CHECKING:
    from stillhash.encoders.indexing import IndexReport

app = Typer()
MAX_LISTED_FILES = 20
MIN_FIT_ITEMS, MAX_FIT_ITEMS = 300, 3000
SOURCE_HELP = "A folder of images or of .txt and .md files, or a .jsonl, .csv or .parquet file."
DEFAULT_HELP = "default: the collection's own, or if it is new classic for images and words for texts"
LABEL_SOURCE_HELP = """Labels of files in a folder: folders, sidecar (images), tags (Markdown), none, or a .csv, .json \
(also COCO) or .jsonl file; auto tries them in turn."""
KIND_HELP = "images or texts, if a folder has both; default: as the encoder is, or else images."
TEXT_HELP = "Of a table: the column of texts; default: text."
TEXT_ID_HELP = "Of a table: the column of ids; default: id or the like, or else the number of the line."
TEXT_LABEL_HELP = "Of a table: a column of labels, lists or texts with commas between; may be repeated."
TEXT_METADATA_HELP = "Of a table: a column to store as metadata; may be repeated. Default: all others."
CHUNK_HELP = "Split texts into chunks of so many words; 0 for none."
OVERLAP_HELP = "Words of a chunk that the next one repeats; default: a tenth of them."
ENCODING_HELP = "latin-1 reads files that are not UTF-8 as Latin-1, rather than refusing them."


class _Target(NamedTuple):
    """The collection to index into."""

    path: Path
    new: bool
    bits: int
    codes_see_labels: bool

    def own_encoder(self) -> str | None:
        """Return the encoder of an existing collection."""
        if self.new:
            return None
        with stillhash.open(self.path, read_only=True) as collection:
            if collection.encoder is None:
                expected = "expected a collection of images or texts"
                raise InvalidInput(f"path: {expected}, got {self.path}, which was made from vectors")
            return collection.encoder.name

    def open(self, encoder: Any, init_rows: int, **more: Any) -> "stillhash.Collection":
        settings: dict[str, Any] = {"init_rows": init_rows, "codes_see_labels": self.codes_see_labels, **more}
        return stillhash.open(self.path, bits=self.bits if self.new else None, encoder=encoder, **settings)


@app.command(rich_help_panel=FILES_PANEL)
def index(
    source: Annotated[Path, Argument(metavar="SOURCE", help=SOURCE_HELP)],
    path: CollectionPath,
    encoder: Annotated[
        str | None,
        Option(metavar="NAME", help=f"{ENCODER_HELP}; {DEFAULT_HELP}.", autocompletion=one_of(*ENCODER_PREFIXES)),
    ] = None,
    bits: Annotated[int, Option(min=8, max=512, help=f"Of a new collection: {BITS_HELP}")] = NEW_CODE_BITS,
    codes_see_labels: CodesSeeLabels = True,
    labels: Annotated[
        str, Option(metavar="SOURCE", help=LABEL_SOURCE_HELP, autocompletion=one_of(*LABEL_SOURCES))
    ] = "auto",
    kind: Annotated[str | None, Option(help=KIND_HELP, autocompletion=one_of(*INDEX_KINDS))] = None,
    text: Annotated[str | None, Option(metavar="COLUMN", help=TEXT_HELP)] = None,
    id: Annotated[str | None, Option("--id", metavar="COLUMN", help=TEXT_ID_HELP)] = None,
    label: Annotated[list[str] | None, Option(metavar="COLUMN", help=TEXT_LABEL_HELP)] = None,
    metadata: Annotated[list[str] | None, Option(metavar="COLUMN", help=TEXT_METADATA_HELP)] = None,
    chunk: Annotated[int, Option(min=0, metavar="WORDS", help=CHUNK_HELP)] = CHUNK_WORDS,
    overlap: Annotated[int | None, Option(min=0, metavar="WORDS", help=OVERLAP_HELP)] = None,
    encoding: Annotated[str, Option(help=ENCODING_HELP, autocompletion=one_of(*TEXT_ENCODING_NAMES))] = "utf-8",
    max_mib: Annotated[int, Option(min=1, max=1024, metavar="MIB", help="Largest text file, or line.")] = MAX_TEXT_MIB,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Index a folder of images or texts, or a table of texts. What is already indexed and unchanged is skipped.

    \b
    Examples:
      stillhash index photos gallery
      stillhash index photos gallery --encoder clip:ViT-B-32 --labels folders
      stillhash index notes knowledge --encoder static:wordllama
      stillhash index docs.jsonl news --text body --label topics
    """
    from stillhash import encoders

    target = _Target(path, not (path / STORE_FILE).is_file(), bits, codes_see_labels)
    named = encoder or target.own_encoder()
    columns = {"text": text, "id": id, "label": label or None, "metadata": metadata or None}
    if not source.is_dir():
        options: dict[str, Any] = {key: value for key, value in columns.items() if value is not None}
        documents = encoders.table_documents(source, max_bytes=max_mib << 20, **options)
    elif named_columns := [f"--{key}" for key, value in columns.items() if value is not None]:
        raise InvalidInput(f"{named_columns[0]}: expected a .jsonl, .csv or .parquet file with it, got a folder")
    elif (files := _texts_of(source, kind, named)) is None:
        _index_images(source, target, named or "classic", labels, workers, as_json)
        return
    else:
        options = {"labels": labels, "files": files, "encoding": encoding, "max_bytes": max_mib << 20}
        documents = encoders.folder_documents(source, **options)
    _index_texts(documents, target, named or "words", (chunk, chunk // 10 if overlap is None else overlap), as_json)


def _texts_of(folder: Path, kind: str | None, encoder: str | None) -> list[str] | None:
    """Return the texts of a folder, or None if its images are to be indexed."""
    from stillhash.encoders import is_text_encoder
    from stillhash.io import IMAGE_SUFFIXES, TEXT_SUFFIXES, list_images, list_texts

    if kind not in (None, *INDEX_KINDS):
        raise InvalidInput(f"kind: expected {' or '.join(INDEX_KINDS)}, got {kind!r}")
    images, texts = list_images(folder), list_texts(folder)
    if kind is None and encoder is not None:
        kind = "texts" if is_text_encoder(encoder) else "images"
    chosen = kind or ("images" if images or not texts else "texts")
    if not (texts if chosen == "texts" else images):
        suffixes = {"images": IMAGE_SUFFIXES, "texts": TEXT_SUFFIXES, None: (*IMAGE_SUFFIXES, *TEXT_SUFFIXES)}[kind]
        raise InvalidInput(f"source: expected files that end in {', '.join(suffixes)}, got none in {folder}")
    if chosen == "images":
        stems = {name.rpartition(".")[0] for name in images} | set(images)
        if others := [name for name in texts if name.rpartition(".")[0] not in stems]:
            note(f"{len(others):,} text files, such as {others[0]}, are left out; --kind texts indexes them instead")
        return None
    if images:
        note(f"{len(images):,} images are left out; --kind images indexes them instead")
    return texts


def _index_images(folder: Path, target: _Target, encoder: str, labels: str, workers: int | None, as_json: bool) -> None:
    from stillhash import encoders
    from stillhash.io import list_images, open_labels

    if encoders.is_text_encoder(encoder):
        raise InvalidInput(f"encoder: expected one of images, got {encoder!r}")
    files, source = list_images(folder), open_labels(folder, labels)
    rows = max(MIN_FIT_ITEMS, min(MAX_FIT_ITEMS, len(files)))
    with target.open(encoders.open_encoder(encoder), rows) as collection:
        with _resumable(collection, "images"), progress_bar("images", len(files)) as update:
            report = encoders.index_folder(
                folder,
                collection,
                encoder,
                source,
                files=files,
                workers=workers,
                progress=lambda each: update(completed=each.done),
            )
        _finish(collection, report, "images_per_second", target.path, as_json)


def _index_texts(documents: Any, target: _Target, encoder: str, chunks: tuple[int, int], as_json: bool) -> None:
    from stillhash.encoders import index_documents, open_encoder
    from stillhash.encoders.documents import check_chunks

    opened = open_encoder(encoder)
    if not opened.has_text:
        raise InvalidInput(f"encoder: expected one of texts, got {encoder!r}")
    if chunks[0]:
        check_chunks(*chunks)
    documents = chain(list(islice(documents, 1)), documents)  # a wrong column fails here, before there is a collection
    with target.open(opened, MAX_FIT_ITEMS, lexical_field="text") as collection:
        with _resumable(collection, "texts"), progress_bar("texts", 1.0, counts=False) as update:
            report = index_documents(
                documents,
                collection,
                opened,
                chunk=chunks[0],
                overlap=chunks[1],
                progress=lambda each: update(completed=each.progress),
            )
        _finish(collection, report, "documents_per_second", target.path, as_json)


@contextmanager
def _resumable(collection: "stillhash.Collection", kind: str) -> Iterator[None]:
    """Say on Ctrl-C what is stored by then."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"stopped; {collection.count():,} {kind} are stored, and the next run continues from there")
        raise


def _finish(collection: "stillhash.Collection", report: "IndexReport", rate: str, path: Path, as_json: bool) -> None:
    """Fit the hash functions where there are enough items, learn what is pending, and answer with the report."""
    if not collection.stats()["fitted"] and collection.count() >= MIN_FIT_ITEMS:
        collection.fit()
    collection.flush()
    encoded = report.added + report.updated + report.broken_count
    per_second = round(encoded / max(report.seconds, 1e-9), 1)
    result = {**asdict(report), "items": collection.count(), "fitted": collection.stats()["fitted"], rate: per_second}
    answer(result, as_json, _report_text(result, per_second, path))


def _report_text(result: dict[str, Any], rate: float, path: Path) -> str:
    counts = f"{result['added']:,} added, {result['updated']:,} updated, {result['skipped']:,} already indexed"
    lines = [f"{counts}; {result['labelled']:,} with labels; {rate:g} per second"]
    if broken := result["broken"]:
        lines.append(f"{result['broken_count']:,} cannot be read:")
        lines += [f"  {file}: {reason}" for file, reason in list(broken.items())[:MAX_LISTED_FILES]]
        lines += ["  ..."] if len(broken) > MAX_LISTED_FILES else []
    if not result["fitted"]:
        lines.append(f"search compares features until there are {MIN_FIT_ITEMS} items")
    return "\n".join([*lines, f"next: stillhash serve {path}"])


@app.command(rich_help_panel=FILES_PANEL)
def align(
    path: CollectionPath,
    encoder: Annotated[
        str, Option(metavar="NAME", help=f"New encoder: {ENCODER_HELP}.", autocompletion=one_of(*ENCODER_PREFIXES))
    ],
    images: Annotated[Path | None, Option(metavar="FOLDER", help="Images to encode with both encoders.")] = None,
    texts: Annotated[bool, Option("--texts", help="Or: encode the texts of items with both encoders.")] = False,
    theirs: Annotated[Path | None, Option(metavar="FILE", help="Or: features by the new encoder,")] = None,
    ours: Annotated[Path | None, Option(metavar="FILE", help="and of the same images by the old one.")] = None,
    max_images: Annotated[int, Option(min=20, help="Most to encode, also of texts; a few hundred are enough.")] = 1000,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Query with a different encoder: map its features to the collection's. Codes do not change.

    \b
    Examples:
      stillhash align gallery --encoder clip:ViT-B-32 --images photos
      stillhash align notes --encoder static:wordllama --texts
      stillhash align films --encoder vectors:768 --theirs new.npy --ours old.npy
    """
    from stillhash import encoders
    from stillhash.io import read_features

    if (images is not None) + texts + (theirs is not None) != 1 or (theirs is None) != (ours is None):
        raise InvalidInput("images: expected either --images FOLDER, or --texts, or --theirs FILE and --ours FILE")
    with stillhash.open(path) as collection, status_line("encoding with both"):
        if images is not None:
            result = encoders.align_images(collection, encoder, images, max_images, workers)
        elif texts:
            result = encoders.align_texts(collection, encoder, max_images)
        elif theirs is not None and ours is not None:
            opened = encoders.open_encoder(encoder)
            features = read_features(theirs, opened.dim), read_features(ours, collection.dim)
            result = collection.align(opened, *features)
    text = f"{result['name']} is aligned: {result['pairs']:,} pairs explain {result['explained']:.0%} of the variance"
    answer(result, as_json, text)
