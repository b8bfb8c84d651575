"""Delete the files of a storage that no kept manifest names: what was replaced, and what killed writers left behind."""

from stillhash.cluster.manifest import manifest_name, manifest_numbers, read_manifest, record_collection
from stillhash.cluster.storage import Storage
from stillhash.errors import InvalidInput, NotFound

COLLECTED_FOLDERS = ("segments", "deleted", "catalogs", "patches", "clock")
FEWEST_MANIFESTS = 2  # a commit reads the epoch of its predecessor


def collect_garbage(storage: Storage, keep: int = 16, older_than: float = 3600.0) -> list[str]:
    """Delete old manifests but the last `keep`, and files older than so many seconds that those do not name.

    The age of a file is by the clock of the storage. A commit under way must take less than `older_than`, and readers
    of old manifests must be done with those that are deleted. Returns the names of the deleted files.
    """
    if keep < FEWEST_MANIFESTS:
        raise InvalidInput(f"keep: expected at least {FEWEST_MANIFESTS}, got {keep}")
    oldest = storage.now() - older_than
    # Listed before the manifests are read: what a later commit names is not in the lists, or is young.
    files = [file for folder in COLLECTED_FOLDERS for file in storage.list_files(folder)]
    files += storage.unfinished_files()
    numbers = manifest_numbers(storage)
    named = set[str]()
    for number in numbers[-keep:]:
        try:
            named |= read_manifest(storage, number).files()
        except NotFound:  # collected by another process
            continue
    deleted = [manifest_name(number) for number in numbers[:-keep]]
    if deleted:
        record_collection(storage, numbers[-keep])
    deleted += [file.name for file in files if file.name not in named and file.modified < oldest]
    for name in deleted:
        storage.delete(name)
    return deleted
