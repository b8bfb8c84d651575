"""Add the rows of tables and of files to a collection."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from stillhash.collection.item_writer import ItemWriter
from stillhash.collection.transfer.table_import import (
    ImportProgress,
    ReportImport,
    StoredRows,
    add_chunks,
    check_file,
    import_file,
)
from stillhash.errors import report_shortages
from stillhash.io import USUAL_NAMES, ColumnNames, scan_table
from stillhash.io.tables import DEFAULT_BATCH
from stillhash.numeric.validation import check_integer


@report_shortages
class Importer(ItemWriter):
    """The verbs that add tables and files, chunk by chunk."""

    def add_table(
        self,
        table: Any,
        *,
        id: str | Sequence[Any] | NDArray[Any] | None = None,
        vector: str | None = None,
        label: str | Sequence[Any] | NDArray[Any] | None = None,
        metadata: Sequence[Any] | Literal["all"] | None = None,
        separator: str | None = None,
        batch: int = DEFAULT_BATCH,
        progress: ReportImport | None = None,
        resume: bool = False,
        learn: bool = True,
    ) -> int:
        """Add the rows of a table, `batch` at a time, and return how many; each batch is on disk before the next.

        table: of pyarrow, pandas, polars or datasets, also one that is read bit by bit; or an array (n, D), also one
        that is larger than memory. The columns are named, or recognised, as by `stillhash.io.table_chunks`; with an
        array, id, label and metadata have one entry for each row. progress: called with an `ImportProgress` after each
        batch. resume: skip rows whose ids exist.
        """
        chosen: dict[str, Any] = {"id": id, "vector": vector, "label": label, "metadata": metadata}
        chunks = scan_table(table, **chosen, separator=separator, batch=batch, dim=self._input.row_length)
        stored = StoredRows(self._store) if resume else None
        return add_chunks(partial(self.add, learn=learn), chunks, stored, progress)

    def import_file(
        self,
        path: str | Path,
        *,
        columns: ColumnNames = USUAL_NAMES,
        number_rows: bool = False,
        batch: int = DEFAULT_BATCH,
        progress: ReportImport | None = None,
        skip_existing: bool = False,
        learn: bool = True,
    ) -> int:
        """Add the rows of a file, `batch` at a time, and return how many; after an interruption, call it again.

        path: .parquet, .npy, .npz, .csv or .jsonl. columns: `stillhash.io.ColumnNames`, for columns that do not have
        usual names. number_rows: use numbers as ids if there is no such column; arrays without ids have them anyway.
        Rows that an earlier call added are skipped. A row whose id existed before that call is a conflict, unless
        `skip_existing`.
        """
        options: dict[str, Any] = {"number_rows": number_rows, "skip_existing": skip_existing, "progress": progress}
        add = partial(self.add, learn=learn)
        return import_file(self._store, add, Path(path), columns, batch=check_integer(batch, "batch", 1), **options)

    def check_file(
        self,
        path: str | Path,
        *,
        columns: ColumnNames = USUAL_NAMES,
        number_rows: bool = False,
        batch: int = DEFAULT_BATCH,
        progress: ReportImport | None = None,
        skip_existing: bool = False,
    ) -> ImportProgress:
        """Read and validate a file as `import_file` would, and add nothing; return how many rows it has, and would add.

        What `import_file` refuses in the middle of a file, such as a NaN or an id that exists, is raised here before.
        """
        options: dict[str, Any] = {"number_rows": number_rows, "skip_existing": skip_existing, "progress": progress}
        return check_file(self._store, Path(path), columns, batch=check_integer(batch, "batch", 1), **options)
