"""Options that name the columns of a file of rows."""

from typing import TYPE_CHECKING, Annotated

from typer import Option

from stillhash.errors import InvalidInput

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
