"""Arguments and options that several commands share, among them those that name the columns of a file of rows."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

import stillhash
from stillhash.cli import completion
from stillhash.cli.completion import FIXED_CODE_NAMES
from stillhash.errors import InvalidInput, MissingExtra

ITEMS_PANEL, SEARCH_PANEL = "Collections: items", "Collections: search"
FILES_PANEL = "Collections: images and texts"
ENCODER_HELP = "classic, onnx:PATH[:OUTPUT], timm:NAME, clip:NAME, words, static:FOLDER or another"
QUERY_HELP = """Queries: any file of rows, a .json file, '-' for JSON from stdin, or JSON itself: '[0.1, 0.2]'; \
a ready code in hexadecimal digits, where the collection has --codes-only."""
IDS_HELP = "Ids; a whole number is an integer id, '\"7\"' is the text 7."
IDS_FILE_HELP = "Ids, if FILE has none: .npy, .jsonl or .txt (one id per line)."
METADATA_FILE_HELP = "Metadata, if FILE has none: .jsonl (one object per line)."
QUERY_ENCODER_HELP = "An aligned encoder instead of the collection's own."
AGAINST_HELP = "With --explain: compare with version N instead of the earliest."
VERSION_HELP = "Rank by this version of the model; 0 is before learning, hamming by Hamming distance."
BALANCE_HELP = "From 0, similar items, to 1, items with the same labels. Automatic if not given."
ROWS_HELP = "Rows: .jsonl, .csv, .parquet, .npz or .npy; '-' for JSON lines from stdin."
LABELS_HELP = """Labels, if FILE has none: .npy (labels, or a matrix of 0 and 1), .jsonl (one list per line) \
or .txt (one 'cat|dog' per line)."""
WHERE_HELP = """Only items that match: '{"year": {"$gte": 1990}}'."""
CODES_HELP = "Of a new collection: whether codes of labelled items hold their labels."
BITS_HELP = "Length of the codes; near duplicates of labelled items are found from 128 on."
RESCORE_HELP = "Bits per feature of rescoring codes: 0, 1, 2, 4 or 8; 2 by default."
FEATURES_HELP = "Store features too, as float16, so that reconstruct returns the vectors themselves."
LEXICAL_HELP = "A field of the metadata whose words are indexed, for search --lexical and --hybrid."
FIELDS_HELP = "Fields of the metadata that filters answer from memory, one each; default: the first 64 that occur."
CODES_ONLY_HELP = "Store ready codes, such as perceptual hashes: packed bytes in place of feature vectors."
METHOD_HELP = f"Learning method of a new collection: {', '.join(FIXED_CODE_NAMES)}."
PARAMS_HELP = """Parameters of the method: '{"random_state": 1}'."""

CollectionPath = Annotated[
    Path, Argument(metavar="PATH", help="The collection's folder.", autocompletion=completion.collections)
]
OptionalPath = Annotated[
    Path | None, Argument(metavar="PATH", help="The collection's folder.", autocompletion=completion.collections)
]
ServerUrl = Annotated[
    str, Option(envvar="STILLHASH_URL", metavar="URL", help="Server that was started with --cluster.")
]
ServerKey = Annotated[str | None, Option(envvar="STILLHASH_KEY", help="Key of that server, if it needs one.")]
CollectionName = Annotated[
    str | None, Option("--collection", metavar="NAME", help="Collection, if the server has several.")
]
RowsFile = Annotated[Path, Argument(metavar="FILE", help=ROWS_HELP)]
IdList = Annotated[list[str], Argument(metavar="IDS", help=IDS_HELP)]
LabelsFile = Annotated[Path | None, Option(metavar="FILE", help=LABELS_HELP)]
ChunkRows = Annotated[int, Option(min=1, help="Rows to read and store at a time.")]
Workers = Annotated[int | None, Option(min=1, help="Processes for images; default: one for each core.")]
Queries = Annotated[str, Option(metavar="FILE", help=QUERY_HELP)]
Where = Annotated[str | None, Option(metavar="JSON", help=WHERE_HELP)]
MethodName = Annotated[str, Option(help=METHOD_HELP, autocompletion=completion.one_of(*FIXED_CODE_NAMES))]
CodesSeeLabels = Annotated[bool, Option("--codes-see-labels/--no-codes-see-labels", help=CODES_HELP)]
ModelVersion = Annotated[
    str | None, Option(metavar="N", help=VERSION_HELP, autocompletion=completion.versions_or_hamming)
]


def optional_module(name: str, extra: str) -> Any:
    """Import a module that needs an extra; only commands that use it load it."""
    try:
        return import_module(f"stillhash.{name}")
    except ModuleNotFoundError as error:
        raise MissingExtra(f"this command needs {error.name}: pip install 'stillhash[{extra}]'") from None


def current_version(collection: "stillhash.Collection") -> int:
    """Return the number of the current version of the model, 0 before the first."""
    return next((version["version"] for version in collection.versions() if version["current"]), 0)


def row_length(collection: "stillhash.Collection") -> int:
    """Return the numbers of a row: features, or the bytes of a ready code."""
    from stillhash.numeric.codes import width

    return width(collection.bits) if collection.codes_only else collection.dim


if TYPE_CHECKING:
    from stillhash.io import ColumnNames

ID_HELP = "Column of ids; default: id, image_id, or a similar name."
VECTOR_HELP = "Column of vectors; default: features, vector or embedding, or f0, f1, ..."
LABEL_HELP = "Column of labels, or of true and false for its name; one for each option; default: labels or label."
METADATA_HELP = "Columns of metadata: names with commas between, all or none; default: all others of CSV and Parquet."
SEPARATOR_HELP = "Splits texts of labels: ',' for 'cat, dog'; default: '|', and none in JSON lines."


IdColumn = Annotated[str | None, Option(metavar="NAME", help=ID_HELP)]
VectorColumn = Annotated[str | None, Option(metavar="NAME", help=VECTOR_HELP)]
LabelColumns = Annotated[list[str] | None, Option("--label-column", metavar="NAME", help=LABEL_HELP)]
MetadataColumns = Annotated[str | None, Option(metavar="NAMES", help=METADATA_HELP)]
LabelSeparator = Annotated[str | None, Option(metavar="TEXT", help=SEPARATOR_HELP)]


def parse_columns(
    id_column: str | None,
    vector_column: str | None,
    label_columns: list[str] | None,
    metadata_columns: str | None,
    label_separator: str | None,
) -> "ColumnNames":
    """Return the names of columns that options hold."""
    from stillhash.io import ColumnNames

    if label_separator == "":
        raise InvalidInput("--label-separator: expected a text, got an empty one")
    labels = tuple(label_columns) if label_columns else None
    if metadata_columns is None or metadata_columns == "all":
        return ColumnNames(id_column, vector_column, labels, "all" if metadata_columns else None, label_separator)
    names = [] if metadata_columns == "none" else [name.strip() for name in metadata_columns.split(",")]
    metadata = tuple(name for name in names if name)
    return ColumnNames(id_column, vector_column, labels, metadata, label_separator)
