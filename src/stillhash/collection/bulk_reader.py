"""Read a collection as a whole: verify it, copy it, export it."""

from pathlib import Path
from typing import Any

from stillhash.collection.facet_reader import FacetReader
from stillhash.collection.learning.stored_models import verify_models
from stillhash.collection.maintenance.verification import verify_store
from stillhash.collection.storage.share_meter import ShareMeter
from stillhash.collection.storage.snapshot import snapshot
from stillhash.collection.transfer.export import Progress, export
from stillhash.collection.types import Filter
from stillhash.collection.validation import check_path
from stillhash.errors import report_shortages
from stillhash.numeric.near_groups import ShareProgress


@report_shortages
class BulkReader(FacetReader):
    """The verbs that read all items, and may take long."""

    def verify(self, *, progress: ShareProgress | None = None) -> list[str]:
        """Check everything that is stored; return one sentence for each problem.

        progress: called with the share that is done; an error that it raises ends this.
        """
        meter = ShareMeter(progress)
        with meter.cancellable():
            problems = verify_store(self._store, meter) or verify_models(self._store)
            meter.finish()
        return problems

    def snapshot(self, path: str | Path, *, progress: ShareProgress | None = None) -> int:
        """Copy the collection, as of one commit, to a new folder or to a new file that ends in .tar; return its bytes.

        Searches and writes go on in the meantime. The folder is a collection of its own; the file has it, and `tar -xf`
        unpacks it. progress: called with the share that is done; an error that it raises ends this, and nothing is left
        of the copy.
        """
        return snapshot(self._store, check_path(path), progress)

    def export(
        self,
        path: str | Path,
        *,
        where: Filter | None = None,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Write all items, as of one commit, as a table to a .jsonl or .parquet file; return what it holds.

        The columns are id, labels, metadata, features where they are stored, and the code. `import_file` reads such
        tables where they have features; what is learnt is not in it, but in a `snapshot`. where: only items that meet
        this condition. overwrite: replace an existing file. progress: called with the number of items written so far,
        and of all. Searches and writes go on in the meantime.
        """
        return export(self._store, self._view.filter_columns, path, where, overwrite, progress)
