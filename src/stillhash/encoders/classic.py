"""Features without weights: colours, where they are, edges and texture, as image retrieval knew them before networks.

Five blocks, after those that come with NUS-WIDE. A picture is brought to 120 x 120 pixels, whatever its shape, and

- colours (80): how much of the picture is of each of 72 colours and 8 greys;
- places (225): mean, spread and skew of lightness and of two opponent colours in each of 5 x 5 fields;
- directions (37): how much edge there is in each of 36 directions, and how much of the picture has none;
- edges (144): 9 directions, regardless of sign, in each of 4 x 4 fields;
- texture (118): which of 59 local patterns surround a pixel, at full and at half size.

A block of counts is divided by its sum and the square root taken, so that Euclidean distance on it is Hellinger's, and
blocks are brought to like length: none drowns the others.

All is done on whole numbers from tables as far as it goes, image by image in memory, and never by BLAS. So features are
the same to the last bit in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stillhash.encoders.base import WithoutText, check_images, fingerprint
from stillhash.numeric.validation import Floats

VERSION = 1  # another one whenever features change
SIDE = 120  # pixels; 5, 4 and 2 divide it
GRID, CELLS = 5, 4  # fields across for colour moments and for edges
HUES, GREYS = 12, 8
DIRECTIONS, SIGNLESS = 36, 9
PATTERNS = 59
EDGE = 24  # of a gradient from 0 to 360: less is no edge
STEP = 4  # of a brightness from 0 to 255: a neighbour brighter by less is not brighter
FAINT = 0.02  # of a field: where edges are fewer than that they count less, so that a plain ground says nothing
BATCH = 8  # images at a time, so that they stay in the cache

COLOURS = HUES * 2 * 3 + GREYS
PLACES = GRID * GRID * 9
DIM = COLOURS + PLACES + DIRECTIONS + 1 + CELLS * CELLS * SIGNLESS + 2 * PATTERNS

Bytes = NDArray[np.uint8]
Bins = NDArray[np.intp]


class Tables(NamedTuple):
    lab: Floats  # (3, 32768): lightness and opponent colours by the upper 5 bits of red, green and blue, about -1 to 1
    colour: Bins  # (32768,): which of COLOURS
    direction: Bins  # (512 * 512,): by gradient down and across; DIRECTIONS where there is no edge
    uniform: Bins  # (58,): those of 256 patterns of brighter neighbours that change at most twice on the way round


class Classic(WithoutText):
    """The encoder `classic`."""

    name = "classic"
    dim = DIM
    needs = (SIDE, SIDE)

    def __init__(self) -> None:
        sizes = [SIDE, GRID, CELLS, HUES, GREYS, DIRECTIONS, SIGNLESS, EDGE, STEP, FAINT]
        self.fingerprint = fingerprint({"encoder": "classic", "version": VERSION, "sizes": sizes})

    def encode(self, images: Sequence[Image.Image]) -> Floats:
        checked = check_images(images)
        features = np.empty((len(checked), DIM), np.float32)
        for start in range(0, len(checked), BATCH):
            some = checked[start : start + BATCH]
            features[start : start + BATCH] = describe(np.stack([_small(image) for image in some]))
        return features


def _small(image: Image.Image) -> Bytes:
    """Halved, or divided by another whole number, and only then made to fit: several times quicker, and as good."""
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=1.0))


def describe(pixels: Bytes) -> Floats:
    """Features (n, DIM) of pictures (n, SIDE, SIDE, 3)."""
    tables = _tables()
    red, green, blue = (pixels[..., channel].astype(np.uint16) for channel in range(3))
    grey = ((red * 77 + green * 150 + blue * 29) >> 8).astype(np.uint8)
    colour = ((red >> 3 << 10) + (green >> 3 << 5) + (blue >> 3)).astype(np.intp)  # (n, SIDE, SIDE)
    blocks = [
        _shares(_counts(tables.colour[colour], COLOURS)),
        _moments(tables.lab, colour[:, ::2, ::2]),
        *_edges(grey, tables.direction),
        _patterns(grey, tables.uniform),
        _patterns(_halved(grey), tables.uniform),
    ]
    return np.concatenate(blocks, axis=1)


def _counts(bins: Bins, most: int) -> Floats:
    """How many pixels of each picture fall into each bin (n, most). Spends `bins`."""
    flat = bins.reshape(len(bins), -1)
    flat += np.arange(len(bins))[:, None] * most
    return np.bincount(flat.ravel(), minlength=len(bins) * most).reshape(-1, most).astype(np.float32)


def _shares(counts: Floats, faint: float = 0) -> Floats:
    """Square roots of shares; where there is little in all, `faint` keeps them small."""
    total = counts.sum(axis=-1, keepdims=True) + np.float32(faint)
    shares: Floats = np.sqrt(counts / total)
    return shares


def _moments(lab: Floats, colour: Bins) -> Floats:
    """Mean, spread and skew (n, 225) of lightness and opponent colours in each field; every fourth pixel will do."""
    n, width = len(colour), SIDE // 2 // GRID

    def means(values: Floats) -> Floats:
        found: Floats = values.sum(axis=3).sum(axis=-1) / np.float32(width * width)
        return found

    fields = np.stack([channel[colour] for channel in lab]).reshape(3, n, GRID, width, GRID, width)
    mean = means(fields)
    fields -= mean[:, :, :, None, :, None]
    square = fields * fields
    spread = np.sqrt(means(square))
    square *= fields
    moments = np.stack([mean, 2 * spread, np.cbrt(means(square))], axis=-1)  # (3, n, 5, 5, 3)
    return np.moveaxis(moments, 0, -1).reshape(n, PLACES) * np.float32(4 / np.sqrt(PLACES))


def _edges(grey: Bytes, directions: Bins) -> tuple[Floats, Floats]:
    """Directions of the whole picture (n, 37), and regardless of sign those of its fields (n, 144)."""
    n = len(grey)
    brightness = grey.astype(np.int32)
    down = brightness[:, 2:, 1:-1] - brightness[:, :-2, 1:-1] + 256
    across = brightness[:, 1:-1, 2:] - brightness[:, 1:-1, :-2] + 256
    bins = directions[(down << 9) + across] + _fields()
    held = _counts(bins, CELLS * CELLS * (DIRECTIONS + 1)).reshape(n, CELLS * CELLS, DIRECTIONS + 1)
    cells = held[..., :DIRECTIONS].reshape(n, CELLS * CELLS, 2, SIGNLESS, 2).sum(axis=4).sum(axis=2)
    faint = FAINT * (SIDE // CELLS) ** 2
    return _shares(held.sum(axis=1)), _shares(cells, faint).reshape(n, -1) / np.float32(CELLS)


def _patterns(grey: Bytes, uniform: Bins) -> Floats:
    """Uniform local binary patterns (n, 59) of all pixels but those at the rim."""
    centre = np.minimum(grey[:, 1:-1, 1:-1], 255 - STEP) + np.uint8(STEP)
    height, width = centre.shape[1:]
    code = np.zeros_like(centre)
    ring = ((0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0))
    for bit, (top, left) in enumerate(ring):
        code |= (grey[:, top : top + height, left : left + width] >= centre).view(np.uint8) << np.uint8(bit)
    counts = _counts(code.astype(np.intp), 256)
    kept = counts[:, uniform]
    others = np.float32(height * width) - kept.sum(axis=1, keepdims=True)
    return _shares(np.concatenate([kept, others], axis=1))


def _halved(grey: Bytes) -> Bytes:
    """Each pixel the mean of four."""
    wide = grey.astype(np.uint16)
    rows = wide[:, ::2] + wide[:, 1::2]
    return ((rows[..., ::2] + rows[..., 1::2]) >> 2).astype(np.uint8)


@cache
def _fields() -> Bins:
    """Where the directions of each pixel's field begin (SIDE - 2, SIDE - 2)."""
    place = np.arange(1, SIDE - 1) // (SIDE // CELLS)
    begins: Bins = (place[:, None] * CELLS + place) * (DIRECTIONS + 1)
    return begins


@cache
def _tables() -> Tables:
    lab = _lab()
    down, across = np.mgrid[-256:256, -256:256].astype(np.float64)
    turn = np.arctan2(down, across) / (2 * np.pi) % 1
    direction = (turn * DIRECTIONS).astype(np.intp) % DIRECTIONS
    direction[np.hypot(down, across) < EDGE] = DIRECTIONS
    bits = (np.arange(256)[:, None] >> np.arange(8)) & 1
    uniform = np.flatnonzero((bits != np.roll(bits, 1, axis=1)).sum(axis=1) <= 2)
    return Tables(lab.astype(np.float32), _colours(lab), direction.ravel(), uniform)


def _lab() -> NDArray[np.float64]:
    """Oklab, a modern relative of CIELAB, of the middle of each of 32 x 32 x 32 colours; the opponents widened."""
    steps = (np.arange(32) * 8 + 4) / 255
    linear = np.where(steps <= 0.04045, steps / 12.92, ((steps + 0.055) / 1.055) ** 2.4)
    rgb = np.stack(np.meshgrid(linear, linear, linear, indexing="ij")).reshape(3, -1)
    to_cones = [[0.41222, 0.53633, 0.05145], [0.2119, 0.6807, 0.1074], [0.0883, 0.28172, 0.62998]]
    to_lab = [[0.21045, 0.79362, -0.00407], [1.978, -2.42859, 0.45059], [0.0259, 0.78277, -0.80868]]
    lightness, a, b = np.array(to_lab) @ np.cbrt(np.array(to_cones) @ rgb)
    return np.stack([lightness, 3 * a, 3 * b])


def _colours(lab: NDArray[np.float64]) -> Bins:
    lightness, a, b = lab
    chroma = np.hypot(a, b)
    hue = ((np.arctan2(b, a) / (2 * np.pi) + 0.5 / HUES) % 1 * HUES).astype(int) % HUES
    light = np.digitize(lightness, [0.5, 0.7])
    strong = (chroma > 0.4).astype(int)
    grey = HUES * 6 + np.minimum((lightness * GREYS).astype(int), GREYS - 1)
    colours: Bins = np.where(chroma < 0.12, grey, (hue * 2 + strong) * 3 + light).astype(np.intp)
    return colours
