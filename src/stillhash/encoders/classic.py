"""The encoder `classic`: colour, edge and texture descriptors without weights, as in image retrieval before networks.

Five blocks, after those that come with NUS-WIDE. An image is resized to 120 x 120 pixels, whatever its shape, and

- colours (80): the share of each of 72 colours and 8 greys;
- moments (225): mean, deviation and skew of lightness and of two opponent colours in each of 5 x 5 fields;
- directions (37): the share of edges in each of 36 directions, and of pixels without an edge;
- edges (144): 9 directions, regardless of sign, in each of 4 x 4 fields;
- texture (118): which of 59 local binary patterns surround a pixel, at full and at half size.

A block of counts is divided by its sum and the square root taken, so that Euclidean distance on it is Hellinger's, and
blocks have similar lengths, so that none dominates.

Almost all is done on integers from tables, image by image in memory, and never by BLAS, so features are bitwise
independent of the batch.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stillhash.encoders.base import ImageOnly, check_images, fingerprint
from stillhash.numeric.validation import Floats

CLASSIC_VERSION = 1  # changes whenever features change
SIDE = 120  # pixels; 5, 4 and 2 divide it
COLOUR_GRID, EDGE_GRID = 5, 4  # fields across for colour moments and for edges
HUES, GREYS = 12, 8
DIRECTIONS, SIGNLESS = 36, 9
PATTERNS = 59
MIN_GRADIENT = 24  # from 0 to 360: less is no edge
MIN_CONTRAST = 4  # from 0 to 255: a neighbour brighter by less is not brighter
FAINT_SHARE = 0.02  # of a field: fewer edges count less, so that a plain background adds nothing
CACHE_IMAGES = 8  # at a time, so that they stay in the CPU cache

COLOUR_BINS = HUES * 2 * 3 + GREYS
MOMENTS = COLOUR_GRID * COLOUR_GRID * 9
CLASSIC_DIM = COLOUR_BINS + MOMENTS + DIRECTIONS + 1 + EDGE_GRID * EDGE_GRID * SIGNLESS + 2 * PATTERNS

Pixels = NDArray[np.uint8]
Bins = NDArray[np.intp]


class LookupTables(NamedTuple):
    lab: Floats  # (3, 32768): lightness and opponent colours by the upper 5 bits of red, green and blue, about -1 to 1
    colour: Bins  # (32768,): which of COLOUR_BINS
    direction: Bins  # (512 * 512,): by gradient down and across; DIRECTIONS where there is no edge
    field: Bins  # (SIDE - 2, SIDE - 2): the first bin of each pixel's field of edges
    uniform: Bins  # (58,): those of 256 patterns of brighter neighbours that change at most twice on the way round


class Classic(ImageOnly):
    """Encode by colour, edges and texture."""

    name = "classic"
    dim = CLASSIC_DIM
    decode_size = (SIDE, SIDE)

    def __init__(self) -> None:
        sizes: list[float] = [SIDE, COLOUR_GRID, EDGE_GRID, HUES, GREYS, DIRECTIONS, SIGNLESS]
        sizes += [MIN_GRADIENT, MIN_CONTRAST, FAINT_SHARE]
        self.fingerprint = fingerprint({"encoder": "classic", "version": CLASSIC_VERSION, "sizes": sizes})

    def encode(self, images: Sequence[Image.Image]) -> Floats:
        rgb = check_images(images)
        features = np.empty((len(rgb), CLASSIC_DIM), np.float32)
        for start in range(0, len(rgb), CACHE_IMAGES):
            batch = rgb[start : start + CACHE_IMAGES]
            # The gap: divide by a whole number first, and resize then. Several times quicker, and as good.
            small = [image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=1.0) for image in batch]
            features[start : start + CACHE_IMAGES] = _describe(np.stack(list(map(np.asarray, small))))
        return features


def _describe(pixels: Pixels) -> Floats:
    """Return features (n, CLASSIC_DIM) of images (n, SIDE, SIDE, 3)."""
    tables = _tables()
    red, green, blue = (pixels[..., channel].astype(np.uint16) for channel in range(3))
    grey = ((red * 77 + green * 150 + blue * 29) >> 8).astype(np.uint8)
    colour = ((red >> 3 << 10) + (green >> 3 << 5) + (blue >> 3)).astype(np.intp)  # (n, SIDE, SIDE)
    blocks = [
        _hellinger(_histogram(tables.colour[colour], COLOUR_BINS)),
        _moments(tables.lab, colour[:, ::2, ::2]),
        *_edges(grey, tables),
        _patterns(grey, tables.uniform),
        _patterns(_halve(grey), tables.uniform),
    ]
    return np.concatenate(blocks, axis=1)


def _histogram(bins: Bins, count: int) -> Floats:
    """Count the pixels of each image in each bin (n, count). Overwrites `bins`."""
    flat = bins.reshape(len(bins), -1)
    flat += np.arange(len(bins))[:, None] * count
    return np.bincount(flat.ravel(), minlength=len(bins) * count).reshape(-1, count).astype(np.float32)


def _hellinger(counts: Floats, faint: float = 0) -> Floats:
    """Return square roots of shares; `faint` keeps them small where there are few counts in total."""
    total = counts.sum(axis=-1, keepdims=True) + np.float32(faint)
    return np.asarray(np.sqrt(counts / total))


def _moments(lab: Floats, colour: Bins) -> Floats:
    """Return mean, deviation and skew (n, 225) of each field; every fourth pixel is enough."""
    n, width = len(colour), SIDE // 2 // COLOUR_GRID

    def means(values: Floats) -> Floats:
        return np.asarray(values.sum(axis=3).sum(axis=-1) / np.float32(width * width))

    fields = np.stack([channel[colour] for channel in lab]).reshape(3, n, COLOUR_GRID, width, COLOUR_GRID, width)
    mean = means(fields)
    fields -= mean[:, :, :, None, :, None]
    square = fields * fields
    deviation = np.sqrt(means(square))
    square *= fields
    moments = np.stack([mean, 2 * deviation, np.cbrt(means(square))], axis=-1)  # (3, n, 5, 5, 3)
    return np.moveaxis(moments, 0, -1).reshape(n, MOMENTS) * np.float32(4 / np.sqrt(MOMENTS))


def _edges(grey: Pixels, tables: LookupTables) -> tuple[Floats, Floats]:
    """Return directions of the whole image (n, 37), and those of its fields regardless of sign (n, 144)."""
    n = len(grey)
    brightness = grey.astype(np.int32)
    down = brightness[:, 2:, 1:-1] - brightness[:, :-2, 1:-1] + 256
    across = brightness[:, 1:-1, 2:] - brightness[:, 1:-1, :-2] + 256
    bins = tables.direction[(down << 9) + across] + tables.field
    fields = EDGE_GRID * EDGE_GRID
    histograms = _histogram(bins, fields * (DIRECTIONS + 1)).reshape(n, fields, DIRECTIONS + 1)
    cells = histograms[..., :DIRECTIONS].reshape(n, fields, 2, SIGNLESS, 2).sum(axis=4).sum(axis=2)
    faint = FAINT_SHARE * (SIDE // EDGE_GRID) ** 2
    return _hellinger(histograms.sum(axis=1)), _hellinger(cells, faint).reshape(n, -1) / np.float32(EDGE_GRID)


def _patterns(grey: Pixels, uniform: Bins) -> Floats:
    """Return uniform local binary patterns (n, 59) of all pixels but those at the border."""
    centre = np.minimum(grey[:, 1:-1, 1:-1], 255 - MIN_CONTRAST) + np.uint8(MIN_CONTRAST)
    height, width = centre.shape[1:]
    code = np.zeros_like(centre)
    ring = ((0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0))
    for bit, (top, left) in enumerate(ring):
        code |= (grey[:, top : top + height, left : left + width] >= centre).view(np.uint8) << np.uint8(bit)
    counts = _histogram(code.astype(np.intp), 256)
    uniform_counts = counts[:, uniform]
    others = np.float32(height * width) - uniform_counts.sum(axis=1, keepdims=True)
    return _hellinger(np.concatenate([uniform_counts, others], axis=1))


def _halve(grey: Pixels) -> Pixels:
    """Halve the sides: each pixel is the mean of four."""
    wide = grey.astype(np.uint16)
    rows = wide[:, ::2] + wide[:, 1::2]
    return ((rows[..., ::2] + rows[..., 1::2]) >> 2).astype(np.uint8)


@cache
def _tables() -> LookupTables:
    lab = _lab()
    down, across = np.mgrid[-256:256, -256:256].astype(np.float64)
    turn = np.arctan2(down, across) / (2 * np.pi) % 1
    direction = (turn * DIRECTIONS).astype(np.intp) % DIRECTIONS
    direction[np.hypot(down, across) < MIN_GRADIENT] = DIRECTIONS
    bits = (np.arange(256)[:, None] >> np.arange(8)) & 1
    uniform = np.flatnonzero((bits != np.roll(bits, 1, axis=1)).sum(axis=1) <= 2)
    place = np.arange(1, SIDE - 1) // (SIDE // EDGE_GRID)
    field = (place[:, None] * EDGE_GRID + place) * (DIRECTIONS + 1)
    return LookupTables(lab.astype(np.float32), _colours(lab), direction.ravel(), field, uniform)


def _lab() -> NDArray[np.float64]:
    """Return Oklab, a relative of CIELAB, of the middle of each of 32 x 32 x 32 colours; opponents scaled by 3."""
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
    return np.asarray(np.where(chroma < 0.12, grey, (hue * 2 + strong) * 3 + light), np.intp)
