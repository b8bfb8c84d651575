"""Delete the files of a storage that no kept manifest names: what was replaced, and what killed writers left."""

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
    named = set[str]().union(*(_files_of(storage, number) for number in numbers[-keep:]))
    deleted = [manifest_name(number) for number in numbers[:-keep]]
    if deleted:
        record_collection(storage, numbers[-keep])
    deleted += [file.name for file in files if file.name not in named and file.modified < oldest]
    for name in deleted:
        storage.delete(name)
    return deleted


def collect_before(storage: Storage, number: int, older_than: float) -> bool:
    """Delete the manifests before this one, which is committed, and the files that only they name.

    Returns False, and deletes nothing, while this manifest is younger than so many seconds: readers may need those
    before it. Files that no manifest names are left to `collect_garbage`, since they may be of a commit under way.
    """
    written = {file.name: file.modified for file in storage.list_files("manifests")}
    earlier = [each for each in manifest_numbers(storage) if each < number]
    if not earlier:
        return True
    if written.get(manifest_name(number), 0.0) > storage.now() - older_than:
        return False
    named = [_files_of(storage, each) for each in manifest_numbers(storage) if each >= number]
    replaced = set[str]().union(*(_files_of(storage, each) for each in earlier)).difference(*named)
    record_collection(storage, number)
    for name in [*map(manifest_name, earlier), *sorted(replaced)]:
        storage.delete(name)
    return True


def _files_of(storage: Storage, number: int) -> set[str]:
    """Return the files that a manifest names; none if it is collected already."""
    try:
        return read_manifest(storage, number).files()
    except NotFound:
        return set()
