"""The names of the labels that a version of the model predicts, in the order of its columns."""

from collections.abc import Hashable

from stillhash.collection.read_view import Snapshot
from stillhash.collection.storage.store import Store
from stillhash.hashers import Hasher

LabelNames = tuple[Hashable, ...]


def hasher_label_names(hasher: Hasher) -> LabelNames:
    """Return the labels that a hasher predicts; none if it predicts none."""
    space = hasher.label_space()
    return () if space is None else tuple(space.names)


def stored_label_names(store: Store, snapshot: Snapshot) -> LabelNames:
    """Return the labels that the learner of a commit predicts, from its files; none if they are lost."""
    files = store.versions.learners(snapshot.connection).get(snapshot.version)
    return () if files is None else hasher_label_names(store.learner_files.load(files))
