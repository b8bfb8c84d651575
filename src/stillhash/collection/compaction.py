"""Rewrite a collection without deleted rows, and remove the files that held them."""

from stillhash.collection.read_view import ReadView
from stillhash.collection.storage.store import Store

LOG_REMAINS = "store.db-wal: another process reads an earlier commit. Run compact once it has ended."
FILES_REMAIN = "segments, learner: files of earlier commits are in use, and cannot be removed yet. Run compact later."


def compact(store: Store, view: ReadView) -> list[str]:
    """Rewrite all live codes into one segment, and store.db; return a sentence for each file that has deleted rows.

    On Windows no file can be removed while a search has it mapped: this view gives up its own, and those that others
    still use are removed by the next compaction, or before the first write after the collection is opened again.
    """
    store.rewrite_segments()
    removed = store.remove_obsolete_files()
    if not removed:
        view.release()
        removed = store.remove_obsolete_files()
    remains = [] if removed else [FILES_REMAIN]
    return remains if store.shrink(removed) else [*remains, LOG_REMAINS]
