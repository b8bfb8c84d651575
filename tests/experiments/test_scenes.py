from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.datasets import load_digits

from stillhash.errors import InvalidInput
from stillhash.experiments.scenes import (
    CELL_SIZE,
    DIGIT_SIZE,
    POOLS,
    SCENE_SIZE,
    ScenePart,
    Scenes,
    describe,
    make_scenes,
)


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return make_scenes(500, seed=3)


def recognised(image: np.ndarray, digits: np.ndarray, names: np.ndarray) -> tuple[set[int], float]:
    """What a canvas shows, by comparison with every digit at every place; and the brightest pixel left unexplained."""
    digits_seen, rest = set(), image / 255
    for quarter in (rest[r : r + CELL_SIZE, c : c + CELL_SIZE] for r in (0, CELL_SIZE) for c in (0, CELL_SIZE)):
        if quarter.max() < 0.5:
            continue
        windows = sliding_window_view(quarter, (DIGIT_SIZE, DIGIT_SIZE))
        flat = windows.reshape(-1, DIGIT_SIZE * DIGIT_SIZE)
        distances = (quarter**2).sum() - 2 * flat @ digits.T + (digits**2).sum(axis=1)
        place, best = np.unravel_index(distances.argmin(), distances.shape)
        row, column = divmod(int(place), windows.shape[1])
        quarter[row : row + DIGIT_SIZE, column : column + DIGIT_SIZE] -= digits[best].reshape(DIGIT_SIZE, DIGIT_SIZE)
        digits_seen.add(int(names[best]))
    return digits_seen, float(np.abs(rest).max())


def test_shapes_and_counts(scenes: Scenes) -> None:
    assert scenes.images.shape == (500, SCENE_SIZE, SCENE_SIZE)
    assert scenes.images.dtype == np.uint8
    assert scenes.labels.shape == (500, 10)
    assert scenes.features.shape[0] == 500
    assert scenes.features.dtype == np.float32
    assert set(scenes.labels.sum(axis=1)) == {1, 2, 3, 4}
    assert scenes.labels.any(axis=0).all()


@pytest.mark.parametrize("part", ["database", "queries"])
def test_labels_are_the_digits_placed_whole_and_apart(part: ScenePart) -> None:
    digits, names = load_digits(return_X_y=True)
    digits, names = digits[POOLS[part]] / 16, names[POOLS[part]]
    images, labels, _ = make_scenes(30, seed=5, part=part)
    for image, there in zip(images, labels, strict=True):
        digits_seen, unexplained = recognised(image, digits, names)
        assert digits_seen == set(np.flatnonzero(there))
        assert unexplained < 0.4  # noise: nothing else lies there, and no digit covers another


def test_the_seed_decides_everything(scenes: Scenes) -> None:
    for one, again, other in zip(scenes, make_scenes(500, seed=3), make_scenes(500, seed=4), strict=True):
        assert np.array_equal(one, again)
        assert not np.array_equal(one, other)


def test_parts_share_no_digit_image() -> None:
    dealt = np.concatenate([np.arange(1797)[pool] for pool in POOLS.values()])
    assert len(np.unique(dealt)) == len(dealt) == 1797
    queries = make_scenes(500, seed=3, part="queries")
    assert not np.array_equal(queries.images, make_scenes(500, seed=3).images)


def test_features_are_finite_and_tell_scenes_apart(scenes: Scenes) -> None:
    assert np.isfinite(scenes.features).all()
    assert (scenes.features >= 0).all()
    assert (scenes.features.std(axis=0) > 0).all()
    assert len(np.unique(scenes.features, axis=0)) == 500


def test_features_do_not_see_where_a_digit_stands() -> None:
    blank = np.zeros((2, SCENE_SIZE, SCENE_SIZE), np.uint8)
    digit = (load_digits().images[0] * 15).astype(np.uint8)
    blank[0, 6:14, 6:14] = digit
    blank[1, 9:17, 8:16] = digit
    here, there = describe(blank)
    np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-5)
    assert here.any()
    assert not describe(np.zeros((1, SCENE_SIZE, SCENE_SIZE), np.uint8)).any()


def test_features_of_a_scene_do_not_depend_on_its_neighbours(scenes: Scenes) -> None:
    np.testing.assert_allclose(describe(scenes.images[37:40]), scenes.features[37:40], rtol=1e-4, atol=1e-5)


def test_refuses_what_it_cannot_make() -> None:
    with pytest.raises(InvalidInput, match=r"^count"):
        make_scenes(0, seed=0)
    with pytest.raises(InvalidInput, match=r"^seed"):
        make_scenes(1, seed=-1)
    with pytest.raises(InvalidInput, match=r"^part"):
        make_scenes(1, seed=0, part="all")  # type: ignore[arg-type]
