"""A similarity index of FiftyOne, whose items are samples, or labels where patches are indexed.

Its collection has one handle to read, and one for the time of each change, so that the server of the App, and other
sessions, can search and change it meanwhile.
"""

import logging
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple
from weakref import finalize

import fiftyone
import numpy as np
from fiftyone.brain.similarity import SimilarityIndex
from fiftyone.core.patches import PatchesView
from fiftyone.core.utils import to_slug
from numpy.typing import NDArray

from stillhash.collection import Collection
from stillhash.collection import open as open_collection
from stillhash.collection.types import Hit
from stillhash.errors import Conflict, InvalidInput, NotFound

RELABEL_ROWS = 65_536  # at a time
SETTINGS = ("bits", "init_rows", "learn_rows", "keep_features")
LABEL_LISTS = {
    fiftyone.Classifications: "classifications",
    fiftyone.Detections: "detections",
    fiftyone.Polylines: "polylines",
    fiftyone.Keypoints: "keypoints",
}


IdsOrNone = Iterable[str] | str | None

logger = logging.getLogger(__name__)


class StillhashSimilarityIndex(SimilarityIndex):
    """A similarity index that learns, as `compute_similarity` and `load_brain_results` return it."""

    def __init__(self, samples: Any, config: Any, brain_key: str | None, backend: Any = None) -> None:
        super().__init__(samples, config, brain_key, backend=backend)
        new = config.collection is None
        self._stored = StoredIndex(config, None if brain_key is None else to_slug(f"{samples.name}-{brain_key}"))
        if new and brain_key is not None:
            self.save_config()

    @property
    def path(self) -> Path:
        """Return the folder of the collection, for `stillhash.open` and the command line."""
        return self._stored.path

    @property
    def sample_ids(self) -> NDArray[Any]:
        """Return the ids of the samples of all items."""
        return self._stored.ids().samples

    @property
    def label_ids(self) -> NDArray[Any] | None:
        """Return the ids of all labels, where patches are indexed."""
        return self._stored.ids().items if self._has_patches else None

    @property
    def total_index_size(self) -> int:
        """Return how many items there are, whatever the view."""
        return len(self._stored.ids().items)

    def add_to_index(
        self,
        embeddings: Any,
        sample_ids: Iterable[str],
        label_ids: Iterable[str] | None = None,
        overwrite: bool = True,
        allow_existing: bool = True,
        warn_existing: bool = False,
        reload: bool = True,
    ) -> None:
        """Add embeddings (n, D). Those of items that exist are replaced, unless `overwrite` is false; labels stay."""
        samples = [str(name) for name in sample_ids]
        names = samples if not self._has_patches else [] if label_ids is None else [str(name) for name in label_ids]
        features = np.asarray(embeddings)
        if features.ndim != 2 or not len(features) == len(samples) == len(names):
            raise InvalidInput(f"embeddings: expected (n, D) with an id for each, got {features.shape}, {len(names)}")
        if not names:
            return
        with self._stored.write(features.shape[1]) as collection:
            items = collection.get(names)
            rows = [row for row, item in enumerate(items) if overwrite or item is None]
            if len(rows) < len(names):
                message = f"{len(names) - len(rows)} ids already exist"
                if not allow_existing:
                    raise Conflict(message)
                if warn_existing:
                    logger.warning("%s and are skipped", message)
            labels = [item.labels if (item := items[row]) else [] for row in rows]
            metadata = [item_metadata(names[row], samples[row]) for row in rows]
            learn = not any(labels)  # those were learnt before
            collection.upsert([names[row] for row in rows], features[rows], labels, metadata, learn=learn)
        if reload:
            self.reload()

    def remove_from_index(
        self,
        sample_ids: IdsOrNone = None,
        label_ids: IdsOrNone = None,
        allow_missing: bool = True,
        warn_missing: bool = False,
        reload: bool = True,
    ) -> None:
        """Remove items: labels, or samples with all that is indexed of them."""
        if sample_ids is None and label_ids is None:
            raise InvalidInput("sample_ids: expected sample_ids or label_ids, got neither")
        if names := self._select(sample_ids, label_ids, allow_missing, warn_missing):
            with self._stored.write() as collection:
                collection.delete(names)
        if reload:
            self.reload()

    def get_embeddings(
        self,
        sample_ids: IdsOrNone = None,
        label_ids: IdsOrNone = None,
        allow_missing: bool = True,
        warn_missing: bool = False,
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
        """Return embeddings (n, D), sample ids and label ids of these items, or of all; numbers are as float16 has."""
        names = self._select(sample_ids, label_ids, allow_missing, warn_missing)
        items = self._stored.read().get(names) if names else []
        samples = np.array([sample_of(item.metadata) for item in items if item], object)
        features = self._stored.read().reconstruct(names) if names else np.empty((0, 0), np.float32)
        return features, samples, np.array(names, object) if self._has_patches else None

    def learn_labels(self, samples: Any, *fields: str) -> int:
        """Learn from labels of samples, and return how many items had other labels, or none, before.

        fields : of classifications, detections, strings or lists of strings, such as "tags". The labels of a sample are
            those of all these fields. Where patches are indexed, each has its own label, and no field is passed.

        Codes stay as they are. Samples without labels, and samples that are not indexed, are left out. An index of
        fewer than `init_rows` items gets its codes now, permanently.
        """
        if self._has_patches and fields:
            raise InvalidInput(f"fields: expected none, since patches have their own labels, got {fields}")
        patches_field = self.config.patches_field
        labels = patch_labels(samples, patches_field) if self._has_patches else sample_labels(samples, fields)
        with self._stored.write() as collection:
            items = [item for item in collection.get([name for name in labels if labels[name]]) if item]
            names = [str(item.id) for item in items if set(item.labels) != set(labels[str(item.id)])]
            for start in range(0, len(names), RELABEL_ROWS):
                part = names[start : start + RELABEL_ROWS]
                collection.relabel(part, [labels[name] for name in part])
            if names:
                _fit(collection)
                collection.flush()
        return len(names)

    def feedback(self, query: Any, ids: str | list[str], vote: Any, *, source: str = "", position: Any = None) -> int:
        """Vote on an item, or on several, as results of a query: an id, a vector, or a prompt if the model takes them.

        vote, source, position : as in `Collection.feedback`. Returns the version of the model that counts the votes.
        """
        features = np.atleast_2d(self._features(self._parse_query(query)))
        if len(features) != 1:
            raise InvalidInput(f"query: expected one query, got {len(features)}")
        with self._stored.write() as collection:
            _fit(collection)
            return collection.feedback(features[0], ids, vote, source=source, position=position)

    def reload(self) -> None:
        """Read the ids again, which another session may have changed."""
        self._stored.reload()
        super().reload()

    def cleanup(self) -> None:
        """Delete the collection."""
        self._stored.delete()
        self.reload()

    def _kneighbors(
        self,
        query: Any = None,
        k: int | None = None,
        reverse: bool = False,
        aggregation: str | None = None,
        return_dists: bool = False,
    ) -> tuple[Any, ...]:
        """Return the neighbours of queries: sample ids, label ids, and distances; a list of each for several queries.

        A distance is 1 - score, with scores from -1 to 1: the cosine before items have codes, and then the sum of
        weights over the sum of their magnitudes. The order follows from more than the score.
        """
        if query is None:
            raise InvalidInput("query: expected ids or vectors, got None; neighbours of all items are not computed")
        if aggregation not in (None, "mean"):
            raise InvalidInput(f"aggregation: expected 'mean', got {aggregation!r}")
        features = self._features(query)
        if aggregation is not None and features.ndim == 2:
            features = features[0] if len(features) == 1 else features.mean(axis=0)  # a mean turns -0.0 into 0.0
        queries = np.atleast_2d(features)
        results = [self._hits(one, k, reverse) for one in queries]
        columns: list[Any] = [[[sample_of(hit.metadata) for hit in hits] for hits in results]]
        columns.append([[str(hit.id) for hit in hits] for hits in results])
        if return_dists:
            scales = self._score_scales(queries)
            columns.append(
                [[max(0.0, 1 - hit.score / scale) for hit in hits] for hits, scale in zip(results, scales, strict=True)]
            )
        if features.ndim == 1:
            columns = [column[0] for column in columns]
        if not self._has_patches:
            columns[1] = None
        return tuple(columns)

    def _hits(self, query: NDArray[Any], k: int | None, reverse: bool) -> list[Hit]:
        """Return the first k items of the view, by similarity, or by the lack of it."""
        size = self.index_size
        count = size if k is None else min(k, size)
        if count == 0:
            return []
        current = self.current_label_ids if self._has_patches else self.current_sample_ids
        where = {"item": {"$in": list(current)}} if self.has_view else None
        hits: list[Hit] = self._stored.read().search(query, size if reverse else count, where=where).hits
        return hits[::-1][:count] if reverse else hits

    def _score_scales(self, queries: NDArray[Any]) -> NDArray[Any]:
        """Return the greatest score that an item could have, for each query; 1 where that is 0."""
        collection = self._stored.read()
        scales = np.abs(collection.weigh(queries)).sum(axis=1) if is_fitted(collection) else np.ones(len(queries))
        return np.where(scales > 0, scales, 1.0)

    def _features(self, query: Any) -> NDArray[Any]:
        """Return the vectors of a query: (D,) for one id or vector, (m, D) for several."""
        values = np.asarray(query)
        if np.issubdtype(values.dtype, np.number):
            return values
        features = self._stored.read().reconstruct([str(name) for name in np.atleast_1d(values)])
        return features[0] if values.ndim == 0 else features

    @property
    def _has_patches(self) -> bool:
        return self.config.patches_field is not None

    def _select(
        self, sample_ids: IdsOrNone, label_ids: IdsOrNone, allow_missing: bool, warn_missing: bool
    ) -> list[str]:
        """Return the items with these ids, in their order; all items without ids."""
        if label_ids is not None and not self._has_patches:
            raise InvalidInput("label_ids: expected None, since samples are indexed, got some")
        if sample_ids is None and label_ids is None:
            return list(self._stored.ids().items)
        items_of: dict[str, list[str]] = {}
        for item, sample in zip(*self._stored.ids(), strict=True):
            items_of.setdefault(sample if label_ids is None else item, []).append(item)
        chosen = sample_ids if label_ids is None else label_ids
        names = dict.fromkeys([chosen] if isinstance(chosen, str) else map(str, chosen or ()))
        missing = [name for name in names if name not in items_of]
        if missing and not allow_missing:
            raise NotFound(f"{len(missing)} ids do not exist: {missing[0]!r}")
        if missing and warn_missing:
            logger.warning("%d ids do not exist and are left out", len(missing))
        return [item for name in names for item in items_of.get(name, ())]

    @classmethod
    def _from_dict(cls, d: dict[str, Any], samples: Any, config: Any, brain_key: str) -> "StillhashSimilarityIndex":
        return cls(samples, config, brain_key)


def _fit(collection: Collection) -> None:
    """Give items their codes now, if they wait for more rows."""
    if not is_fitted(collection):
        collection.fit()


class IndexedIds(NamedTuple):
    """The ids of all items of an index, in the same order."""

    items: NDArray[Any]
    samples: NDArray[Any]


class StoredIndex:
    """The collection that a config names. Its items have their id and that of their sample in their metadata."""

    def __init__(self, config: Any, name: str | None) -> None:
        """Choose a folder for a new index: by its name, or a temporary one if it has none."""
        self.config = config
        self._reader: Collection | None = None
        self._ids: IndexedIds | None = None
        if config.collection is None and name is None:
            config.folder, config.collection = mkdtemp(prefix="stillhash-"), "index"
            finalize(self, shutil.rmtree, config.folder, ignore_errors=True)
        elif config.collection is None:
            config.collection = _new_name(Path(config.folder), str(name))

    @property
    def path(self) -> Path:
        return Path(self.config.folder, self.config.collection)

    def exists(self) -> bool:
        return (self.path / "store.db").is_file()

    def read(self) -> Collection:
        """Return the collection, to read it."""
        if self._reader is None:
            if not self.exists():
                raise NotFound(f"index: nothing is in it yet, or {self.path.name} was moved or deleted")
            self._reader = open_collection(self.path, read_only=True)
        return self._reader

    def write(self, dim: int | None = None) -> Collection:
        """Open the collection to change it. With the length of embeddings, create it if there is none."""
        self._ids = None
        if dim is None and not self.exists():
            raise NotFound("index: nothing is in it yet")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return open_collection(self.path, dim, **({} if self.exists() else self._settings()))

    def ids(self) -> IndexedIds:
        """Return the ids of all items, as of the last change or `reload` of this session."""
        if self._ids is None:
            items = list(self.read().items()) if self.exists() else []
            samples = [sample_of(item.metadata) for item in items]
            self._ids = IndexedIds(np.array([item.id for item in items], object), np.array(samples, object))
        return self._ids

    def reload(self) -> None:
        """Read the ids again, which another session may have changed."""
        self._ids = None

    def delete(self) -> None:
        """Delete the collection."""
        if self._reader is not None:
            self._reader.close()
        self._reader = self._ids = None
        if self.exists():
            shutil.rmtree(self.path)

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self.config, name) for name in SETTINGS}


def item_metadata(item: str, sample: str) -> dict[str, str]:
    return {"item": item, "sample": sample}


def sample_of(metadata: dict[str, Any] | None) -> str:
    """Return the id of the sample of an item."""
    return str((metadata or {}).get("sample"))


def is_fitted(collection: Collection) -> bool:
    return bool(collection.stats()["fitted"])


def _new_name(folder: Path, name: str) -> str:
    """Return the name, with a number if there is such a folder."""
    number = 1
    while (folder / (numbered := name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return numbered


ItemLabels = dict[str, list[Any]]  # by id, without repeats


def sample_labels(samples: Any, fields: Sequence[str]) -> ItemLabels:
    """Return the labels of each sample, from all of these fields."""
    if not fields:
        raise InvalidInput("fields: expected the name of a field with labels, got none")
    id_field = "sample_id" if isinstance(samples, PatchesView) else "id"
    ids, *columns = samples.values([id_field, *(label_path(samples, field, "label") for field in fields)])
    labels: ItemLabels = {}
    for name, *values in zip(ids, *columns, strict=True):
        _extend(labels.setdefault(name, []), [each for value in values for each in _as_list(value)])
    return labels


def patch_labels(samples: Any, patches_field: str) -> ItemLabels:
    """Return the label of each patch."""
    ids, values = samples.values([label_path(samples, patches_field, each) for each in ("id", "label")])
    labels: ItemLabels = {}
    for names, texts in zip(ids, values, strict=True):
        for name, text in zip(_as_list(names), texts if isinstance(texts, list) else [texts], strict=True):
            _extend(labels.setdefault(name, []), _as_list(text))
    return labels


def label_path(samples: Any, field: str, attribute: str) -> str:
    """Return the path of an attribute of the labels in a field; of strings, and of lists of them, the field."""
    schema = samples.get_field(field)
    if schema is None:
        raise InvalidInput(f"fields: expected a field of the samples, got {field!r}")
    kind = getattr(schema, "document_type", None)
    if kind is None:
        return field
    return ".".join(filter(None, (field, LABEL_LISTS.get(kind), attribute)))


def _as_list(value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if each is not None]


def _extend(labels: list[Any], values: list[Any]) -> None:
    labels.extend(value for value in dict.fromkeys(values) if value not in labels)
