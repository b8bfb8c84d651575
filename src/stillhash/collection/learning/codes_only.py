"""Create a collection of ready codes: perceptual hashes, binary embeddings.

Its features are the signs of the codes, and its hash functions the features themselves, fixed when it is created. So
encoding gives the code back, features rebuilt from a code are its signs, and all else works as for any collection.
"""

from typing import Any

import numpy as np

from stillhash.collection.learning.method_settings import new_hasher
from stillhash.collection.learning.trainer import Trainer
from stillhash.collection.storage.schema import is_fitted
from stillhash.collection.storage.store import Store
from stillhash.errors import InvalidInput, WrongType
from stillhash.hashers import DEFAULT_HASHER
from stillhash.numeric.labels import Labels
from stillhash.numeric.validation import check_bits

IDENTITY_PARAMS = {"init": "identity", "center": False}  # bit i of a code is the sign of feature i


def check_codes_only(settings: dict[str, Any], dim: int | None, bits: int | None, init: Any) -> dict[str, Any]:
    """Return the settings of a new collection with what `codes_only` fixes of them; `settings` has the others."""
    if bits is None:
        raise InvalidInput("bits: expected the length of the codes, since the collection has codes only, got None")
    if dim is not None and dim != bits:
        raise InvalidInput(f"dim: expected None, since the collection has codes only, got {dim}")
    if init is not None or settings["encoder"] is not None:
        name = "encoder" if init is None else "init"
        raise InvalidInput(f"{name}: expected None, since the collection has codes only and no features")
    if settings["keep_features"]:
        raise InvalidInput("keep_features: expected False, since the collection has codes only and no features")
    if settings["method"] != DEFAULT_HASHER.name:
        raise InvalidInput(f"method: expected {DEFAULT_HASHER.name} for codes_only, got {settings['method']!r}")
    for name in IDENTITY_PARAMS:
        if name in settings["params"]:
            raise InvalidInput(f"params: expected no {name}, since the collection has codes only")
    own = {"dim": check_bits(bits), "codes_only": True, "codes_see_labels": False}
    return {**settings, **own, "params": {"double_sums": True, **settings["params"], **IDENTITY_PARAMS}}


def check_flag(value: Any) -> bool:
    """Return whether a collection has codes only."""
    if not isinstance(value, (bool, np.bool_)):
        raise WrongType(f"codes_only: expected true or false, got {value!r}")
    return bool(value)


def fix_identity(store: Store) -> None:
    """Fix the hash functions of a collection of ready codes, unless they are fixed already; this ends its creation."""
    with store.reading() as connection:
        if is_fitted(connection):
            return
    hasher = new_hasher(store.settings)
    hasher.begin(np.ones((1, store.settings["bits"]), np.float32), Labels.empty())
    with store.change("fit") as change:
        Trainer(store).start(change.connection, hasher, "fit", 0)
