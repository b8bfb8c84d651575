"""That each block sees what it is for, and that none drowns the others."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from stillhash.encoders import classic
from stillhash.encoders.classic import CLASSIC_DIM, COLOUR_BINS, DIRECTIONS, MOMENTS, Classic
from stillhash.experiments.shapes import image

ENCODER = Classic()
BLOCKS = np.cumsum([0, COLOUR_BINS, MOMENTS, DIRECTIONS + 1, 144, 59, 59])
COLOUR, PLACE, DIRECTION, EDGE, FINE, COARSE = (slice(a, b) for a, b in pairwise(BLOCKS))


def stripes(angle: float, period: float = 16.0, size: int = 240) -> Image.Image:
    down, across = np.mgrid[:size, :size]
    wave = np.sin(2 * np.pi / period * (across * np.cos(np.radians(angle)) + down * np.sin(np.radians(angle))))
    return Image.fromarray((127.5 + 120 * wave).astype(np.uint8)).convert("RGB")


def features(*images: Image.Image) -> np.ndarray:
    return ENCODER.encode(images)


def test_the_blocks_make_up_the_whole() -> None:
    assert BLOCKS[-1] == CLASSIC_DIM == 604


def test_blocks_are_of_like_length() -> None:
    rows = features(*(image(0, n)[0] for n in range(60)))
    lengths = [
        np.linalg.norm(rows[:, block], axis=1).mean() for block in (COLOUR, PLACE, DIRECTION, EDGE, FINE, COARSE)
    ]
    assert min(lengths) > 0.5 and max(lengths) < 1.5
    for block in (COLOUR, DIRECTION, FINE, COARSE):
        np.testing.assert_allclose(np.linalg.norm(rows[:, block], axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("colour", ["red", "lime", "blue", "yellow", "white", "black", "gray"])
def test_a_colour_is_one_bin(colour: str) -> None:
    rows = features(Image.new("RGB", (50, 40), colour))[0]
    assert sorted(rows[COLOUR])[-1] == 1 and rows[COLOUR].sum() == 1


def test_shares_of_colours() -> None:
    half = Image.new("RGB", (240, 240), "red")
    half.paste("blue", (0, 0, 240, 60))
    rows = features(half)[0][COLOUR]
    np.testing.assert_allclose(sorted(rows)[-2:], np.sqrt([0.25, 0.75]), atol=0.02)


def test_places_tell_left_from_right() -> None:
    left = Image.new("RGB", (240, 240), "red")
    left.paste("blue", (120, 0, 240, 240))
    right = left.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    one, other = features(left, right)
    np.testing.assert_allclose(one[COLOUR], other[COLOUR], atol=0.02)
    assert np.linalg.norm(one[PLACE] - other[PLACE]) > 0.3
    grid = one[PLACE].reshape(5, 5, 3, 3)  # rows, columns, moments, channels
    np.testing.assert_allclose(grid[0], grid[4], atol=1e-6)
    assert np.abs(grid[:, [0, 4], 1]).max() < 1e-3 < np.abs(grid[:, 2, 1]).min()  # only the middle is of two colours


def test_directions_of_stripes() -> None:
    flat, upright, leaning = features(stripes(90), stripes(0), stripes(45))
    for row, bins in ((upright, {0, 18}), (flat, {9, 27}), (leaning, {4, 22})):
        strongest = set(np.argsort(row[DIRECTION][:-1])[-2:].tolist())
        assert all(min(abs(rows - one) for one in bins | {36}) <= 1 for rows in strongest)
    cells = upright[EDGE].reshape(16, 9)
    assert (cells.argmax(axis=1) % 8 == 0).all()


def test_texture_tells_fine_from_coarse() -> None:
    fine, same, coarse = features(stripes(0, 8), stripes(0, 8.5), stripes(0, 60))
    texture = slice(FINE.start, COARSE.stop)
    near, far = (np.linalg.norm(fine[texture] - other[texture]) for other in (same, coarse))
    assert near < far / 2


def test_a_plain_picture_says_nothing_of_edges() -> None:
    noisy = Image.fromarray(np.random.default_rng(0).normal(128, 3, (240, 240, 3)).clip(0, 255).astype(np.uint8))
    rows = features(noisy)[0]
    assert rows[EDGE].sum() == 0 and rows[DIRECTION][-1] == 1


def test_size_hardly_matters() -> None:
    small, large = features(image(3, 1)[0].resize((240, 240)), image(3, 1)[0].resize((720, 720)))
    assert np.linalg.norm(small - large) < 0.25 * np.linalg.norm(small)


def test_another_version_has_another_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprints = {Classic().fingerprint}
    for name in ("CLASSIC_VERSION", "SIDE", "MIN_GRADIENT", "MIN_CONTRAST", "FAINT_SHARE", "GREYS"):
        with monkeypatch.context() as other:
            other.setattr(classic, name, getattr(classic, name) + 1)
            fingerprints.add(Classic().fingerprint)
    assert len(fingerprints) == 7 and Classic().fingerprint in fingerprints


def test_features_are_those_of_this_version() -> None:
    """Features that collections hold must not change unless CLASSIC_VERSION does; resampling may, a little."""
    rows = features(Image.linear_gradient("L").convert("RGB"), stripes(30))
    np.testing.assert_allclose(rows[:, list(PINNED)], np.transpose(list(PINNED.values())), atol=2e-3)


PINNED = {
    72: (0.158, 0.0),
    73: (0.316, 0.444),
    89: (0.056, 0.155),
    134: (0.111, 0.154),
    170: (0.160, 0.156),
    215: (0.205, 0.153),
    296: (0.247, 0.152),
    370: (0.0, 0.247),
    451: (0.0, 0.247),
    543: (0.0, 0.106),
    602: (0.0, 0.267),
}
