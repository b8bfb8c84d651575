"""Read rows from files: .npy, .npz, .csv, .jsonl, .parquet, and JSON lines from stdin; list the images and
texts of a folder, and their labels.

`read_chunks` reads any format from the beginning and parses texts; `scan_chunks` does so with ids first, and the rest
on demand. `table_chunks` and `scan_table` do the same for tables in memory: Arrow, pandas, polars, datasets, arrays.
`read_blocks` reads a range of rows of a .npy or .parquet file as stored. A row that cannot be read ends the stream with
an error that names the file and the place; nothing is skipped. Lines count from 1, rows of arrays and Parquet from 0.
"""

from stillhash.io.arrays import check_npy, siblings
from stillhash.io.files import has_columns, read_chunks, read_features, read_queries, scan_chunks, source_digest
from stillhash.io.folders import (
    IMAGE_SUFFIXES,
    TEXT_SUFFIXES,
    LabelSource,
    count_rows,
    list_images,
    list_row_files,
    list_texts,
    open_labels,
    read_blocks,
)
from stillhash.io.rows import (
    USUAL_NAMES,
    Chunk,
    ColumnNames,
    LazyChunk,
    RowBlock,
    format_id,
    parse_ids,
    parse_json,
    parse_json_object,
    read_json_lines,
    reading,
)
from stillhash.io.tables import scan_table, table_chunks

__all__ = [
    "IMAGE_SUFFIXES",
    "TEXT_SUFFIXES",
    "USUAL_NAMES",
    "Chunk",
    "ColumnNames",
    "LabelSource",
    "LazyChunk",
    "RowBlock",
    "check_npy",
    "count_rows",
    "format_id",
    "has_columns",
    "list_images",
    "list_row_files",
    "list_texts",
    "open_labels",
    "parse_ids",
    "parse_json",
    "parse_json_object",
    "read_blocks",
    "read_chunks",
    "read_features",
    "read_json_lines",
    "read_queries",
    "reading",
    "scan_chunks",
    "scan_table",
    "siblings",
    "source_digest",
    "table_chunks",
]
