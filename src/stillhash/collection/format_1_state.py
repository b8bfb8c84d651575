"""Convert what version 0.1 saved of hashers, alignments and quality to what this version saves.

In 0.1 no code held labels. So the statistics of codes without labels (`pp`, `py`) are those of all codes, all labels
are believed, and no bit is for labels. A converted hasher encodes as it did, to the bit, and goes on learning.
"""

import json
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from stillhash.collection.prequential import History
from stillhash.collection.storage.format_1 import Format1Version
from stillhash.errors import BadState
from stillhash.hashers import Hasher, LinearHasher, Tally, TallyListwise, Tuned, load
from stillhash.hashers.state import read_state, write_state
from stillhash.numeric.label_belief import LabelBelief


def convert_hasher(state: bytes) -> Hasher:
    """Return the hasher that 0.1 saved."""
    return load(_convert_state(state))


def convert_functions(state: bytes) -> LinearHasher:
    """Return the hash functions that 0.1 saved."""
    return LinearHasher.load(_convert_state(state))


def _convert_state(state: bytes) -> bytes:
    about, arrays = read_state(state)
    params, extra = dict(about["params"]), dict(about["extra"])
    try:
        if about["method"] in (Tally.name, TallyListwise.name):
            params["codes_see_labels"] = False
            belief = LabelBelief()
            arrays |= {"pp": arrays["cc"], "py": arrays["cy"], "unlabelled": np.zeros(1)}
            arrays |= {"G": np.zeros((0, 0), np.float32), "g": np.zeros(0, np.float32)}
            arrays |= {"edges": belief.edges, "right": belief.right}
            extra |= {"direction_labels": [], "wrong_share": belief.wrong_share}
        if about["method"] == Tuned.name:
            for name in [name for name in arrays if name.startswith("candidate")]:
                arrays[name] = np.frombuffer(_convert_state(arrays[name].tobytes()), np.uint8)
        else:
            extra["label_bits"] = 0
    except (KeyError, TypeError) as error:
        raise BadState(f"state: does not describe a {about['method']} of version 0.1: {error}") from error
    return write_state({"method": about["method"], "params": params, "extra": extra}, arrays)


def convert_alignment(data: bytes) -> bytes:
    """Return an alignment with its description under the name that it has now."""
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return safetensors.numpy.save(safetensors.numpy.load(data), {"alignment": header["__metadata__"]["bridge"]})
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise BadState(f"alignment: cannot be read: {error}") from error


def convert_history(text: str | None, versions: list[Format1Version]) -> History:
    """Return what is known of quality: which versions had a drift alarm, and how many rows those that are kept learnt.

    Measurements are dropped, the drift detector too: 0.1 measured another ranking, without the first page.
    """
    alarms = [] if text is None else json.loads(text).get("alarms", [])
    rows = sum(version.rows for version in versions if version.kind == "learn")
    return {"quality": None, "alarms": alarms, "curve": [], "rows": rows}


def convert_notes(text: str) -> dict[str, Any]:
    """Return the notes of a version without its measurements."""
    return {name: value for name, value in json.loads(text).items() if name == "drift"}
