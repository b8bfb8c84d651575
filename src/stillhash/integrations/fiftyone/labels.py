"""Read the labels of samples, or of their patches, from fields of a dataset."""

from collections.abc import Sequence
from typing import Any

import fiftyone
from fiftyone.core.patches import PatchesView

from stillhash.errors import InvalidInput

ItemLabels = dict[str, list[Any]]  # by id, without repeats
LABEL_LISTS = {
    fiftyone.Classifications: "classifications",
    fiftyone.Detections: "detections",
    fiftyone.Polylines: "polylines",
    fiftyone.Keypoints: "keypoints",
}


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
