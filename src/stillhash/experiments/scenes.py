"""Make scenes of handwritten digits: a multi-label stream that needs no download.

A scene is a canvas with one to four digits from scikit-learn's bundled set, none overlapping another, under a little
noise; its labels are the digits it shows. Everything follows from the seed. The digit images are dealt out once:
queries, database and the features' own fragments never share one, so no hit is due to recognising the very same
handwriting.

The features are not learnt. They say how strongly fragments of unlabelled handwriting show anywhere in the scene.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from stillhash.numeric.threads import one_thread, usable_cores
from stillhash.numeric.validation import Floats, check_choice, check_integer

Images = NDArray[np.uint8]  # (n, SCENE_SIZE, SCENE_SIZE)
ScenePart = Literal["database", "queries"]

DIGIT_SIZE = 8  # pixels, the side of a digit
CELL_SIZE = 12  # the side of a quarter of the canvas; a digit moves freely inside one, so no two overlap
SCENE_SIZE = 2 * CELL_SIZE
MAX_DIGITS = 4  # digits in a scene
SCENE_NOISE = 0.05  # standard deviation, of a brightness from 0 to 1

FRAGMENT = 6  # the side of a fragment: smaller than a digit, so none is one
FRAGMENTS = 128
FAINT_ENERGY = 1.0  # energy at which a window counts half: noise alone stays far below it
MIN_RESPONSE = 0.5  # responses below this say nothing
SCENES_AT_ONCE = 16  # scenes at a time, so that their responses stay in the cache

POOLS: dict[str, slice] = {"database": slice(1200), "fragments": slice(1200, 1500), "queries": slice(1500, None)}


class Scenes(NamedTuple):
    images: Images  # (n, 24, 24), 0 is background
    labels: NDArray[np.bool_]  # (n, 10), which digits are there
    features: Floats  # (n, 128)


def make_scenes(count: int, seed: int, *, part: ScenePart = "database") -> Scenes:
    """Make `count` scenes of one part: scenes of different parts have no digit image in common."""
    check_integer(count, "count", 1)
    check_integer(seed, "seed", 0)
    check_choice(part, "part", ("database", "queries"))
    rng = np.random.default_rng([seed, int(part == "queries")])
    digits, names = _pool(part)

    visible = np.arange(MAX_DIGITS) < rng.integers(1, MAX_DIGITS + 1, (count, 1))
    scene, slot = np.nonzero(visible)  # one entry for each digit of each scene
    quarter = rng.random((count, MAX_DIGITS)).argsort(axis=1)[scene, slot]
    chosen = rng.integers(0, len(digits), len(scene))
    top, left = CELL_SIZE * np.stack(divmod(quarter, 2)) + rng.integers(0, CELL_SIZE - DIGIT_SIZE + 1, (2, len(scene)))

    canvas = rng.standard_normal((count, SCENE_SIZE, SCENE_SIZE), np.float32) * np.float32(SCENE_NOISE)
    rows, columns = np.arange(DIGIT_SIZE)[:, None], np.arange(DIGIT_SIZE)
    canvas[scene[:, None, None], top[:, None, None] + rows, left[:, None, None] + columns] += digits[chosen]
    images = (canvas.clip(0, 1) * 255).round().astype(np.uint8)

    labels = np.zeros((count, 10), bool)
    labels[scene, names[chosen]] = True
    return Scenes(images, labels, describe(images))


@one_thread
def describe(images: Images) -> Floats:
    """Return features (n, 128) of images: for each fragment, the energy of its responses, wherever they are.

    A response is the correlation of the fragment with a window of the image, contrast apart. Pooling over all
    positions makes the features blind to where a digit is.
    """
    filters = _fragments()  # (36, 128)
    features = np.empty((len(images), filters.shape[1]), np.float32)

    def fill(start: int) -> None:
        some = images[start : start + SCENES_AT_ONCE].astype(np.float32) / 255
        windows = _centred(sliding_window_view(some, (FRAGMENT, FRAGMENT), axis=(1, 2)))
        windows /= np.sqrt(np.einsum("ij,ij->i", windows, windows) + np.float32(FAINT_ENERGY))[:, None]
        responses = windows @ filters
        responses -= np.float32(MIN_RESPONSE)
        np.maximum(responses, 0, out=responses)
        responses = responses.reshape(len(some), -1, filters.shape[1])
        features[start : start + SCENES_AT_ONCE] = np.sqrt(np.einsum("npf,npf->nf", responses, responses))

    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(fill, range(0, len(images), SCENES_AT_ONCE)))
    return features


@cache
def _pool(part: str) -> tuple[Floats, NDArray[np.int64]]:
    """Return the images (n, 8, 8) of a part, from 0 to 1, and what they show."""
    images, names = load_digits(return_X_y=True)
    return (images[POOLS[part]] / 16).astype(np.float32).reshape(-1, DIGIT_SIZE, DIGIT_SIZE), names[POOLS[part]]


@cache
def _fragments() -> Floats:
    """Return the filters (36, 128), of unit norm: windows of digits, drawn once for all seeds."""
    images, _ = _pool("fragments")
    windows = _centred(sliding_window_view(images, (FRAGMENT, FRAGMENT), axis=(1, 2)))
    filters = windows[np.random.default_rng(0).choice(len(windows), FRAGMENTS, replace=False)].T.copy()
    filters /= np.linalg.norm(filters, axis=0)
    return filters


def _centred(windows: Floats) -> Floats:
    """Return windows as rows of pixels less their mean."""
    rows = windows.reshape(-1, FRAGMENT * FRAGMENT)
    return np.asarray(rows - rows.mean(axis=1, keepdims=True))
