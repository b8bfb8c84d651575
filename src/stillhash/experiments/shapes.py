"""Make pictures of coloured shapes on textured grounds: multi-label image files that need no download.

A picture shows one to three objects, each of a shape and a colour, on a ground that is plain or has a texture; its
labels are the shapes, the colours and the texture. Objects are turned, scaled and may overlap; hues wander, grounds
have faint tints of any colour, scribbles lie behind and noise over all. So two pictures that share a label need not
look alike, and there is something to learn.

A picture follows from its seed and its number alone.
"""

import colorsys
import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from stillhash.numeric.validation import check_choice, check_integer

SHAPE_COLOURS = {  # hue in degrees, saturation, brightness
    "red": (0, 0.9, 0.85),
    "orange": (28, 0.95, 0.95),
    "yellow": (54, 0.9, 0.95),
    "green": (120, 0.8, 0.65),
    "cyan": (182, 0.8, 0.85),
    "blue": (225, 0.85, 0.85),
    "purple": (278, 0.7, 0.7),
    "pink": (325, 0.5, 0.97),
}
OVERSAMPLING = 3  # drawn so many times larger, so that edges come out smooth
PIXEL_NOISE = 9.0  # standard deviation, of a brightness from 0 to 255
MAX_SCRIBBLES = 5  # at most
IMAGE_FORMATS = {"JPEG": ".jpg", "PNG": ".png"}

Point = tuple[float, float]
Colour = tuple[int, int, int]


class Shapes(NamedTuple):
    """The files that were written, and their labels."""

    files: list[Path]
    labels: list[list[str]]


def image(seed: int, n: int, size: int = 96) -> tuple[Image.Image, list[str]]:
    """Make picture number `n` of a seed, and its labels in alphabetical order."""
    rng = np.random.default_rng([check_integer(seed, "seed", 0), check_integer(n, "n", 0)])
    side = OVERSAMPLING * check_integer(size, "size", 16, 4096)
    texture = str(rng.choice(list(TEXTURES)))
    labels = set() if texture == "plain" else {texture}
    canvas = Image.new("RGB", (side, side), _tint(rng))
    draw = ImageDraw.Draw(canvas)
    TEXTURES[texture](draw, rng, side)
    _scribble(draw, rng, side)
    for _ in range(int(rng.choice([1, 2, 3], p=[0.45, 0.35, 0.2]))):
        shape, colour = str(rng.choice(list(OUTLINES))), str(rng.choice(list(SHAPE_COLOURS)))
        _place(draw, rng, side, shape, colour)
        labels |= {shape, colour}
    small = canvas.resize((size, size), Image.Resampling.BOX)
    noisy = np.asarray(small) + rng.normal(0, PIXEL_NOISE, (size, size, 3))
    return Image.fromarray(noisy.clip(0, 255).round().astype(np.uint8)), sorted(labels)


def write_shapes(folder: str | Path, count: int, seed: int, *, size: int = 96, fmt: str = "JPEG") -> Shapes:
    """Write pictures 0 to `count` - 1 of a seed, and `labels.csv`: the name of a file, its labels with | between."""
    check_integer(count, "count", 1)
    check_choice(fmt, "fmt", tuple(IMAGE_FORMATS))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shapes = Shapes([folder / f"{n:06}{IMAGE_FORMATS[fmt]}" for n in range(count)], [])
    for n, path in enumerate(shapes.files):
        picture, labels = image(seed, n, size)
        picture.save(path, fmt, **({"quality": 85} if fmt == "JPEG" else {}))
        shapes.labels.append(labels)
    with (folder / "labels.csv").open("w", encoding="utf-8", newline="") as table:
        writer = csv.writer(table)
        writer.writerow(["file", "labels"])
        writer.writerows((path.name, "|".join(labels)) for path, labels in zip(*shapes, strict=True))
    return shapes


def _place(draw: ImageDraw.ImageDraw, rng: np.random.Generator, side: int, shape: str, colour: str) -> None:
    """Draw an object, turned and scaled, wholly inside the picture."""
    radius = side * rng.uniform(0.11, 0.24)
    x, y = rng.uniform(radius, side - radius, 2)
    cos, sin = _direction(rng.uniform(0, 2 * math.pi))
    stretch = rng.uniform(0.8, 1.0)
    points = ((across * radius, down * radius * stretch) for across, down in OUTLINES[shape])
    draw.polygon([(x + a * cos - b * sin, y + a * sin + b * cos) for a, b in points], fill=_shade(rng, colour))


def _direction(angle: float) -> Point:
    return math.cos(angle), math.sin(angle)


def _arc(points: int, gap: float = 0.0, radius: float = 1.0, centre: float = 0.0) -> list[Point]:
    """Return points of a circle, but for a gap on its right."""
    turns = map(_direction, np.linspace(gap, 2 * math.pi - gap, points))
    return [(centre + radius * x, radius * y) for x, y in turns]


def _star(points: int, inner: float | None = None) -> list[Point]:
    """Return the outline of a star; without `inner`, the radius of its notches, that of a regular polygon."""
    radii = [1.0, math.cos(math.pi / points) if inner is None else inner] * points
    corners = ((radius, *_direction(math.pi * at / points)) for at, radius in enumerate(radii))
    return [(radius * x, radius * y) for radius, x, y in corners]


ARM = 0.32  # half the width of a cross's arms
OUTLINES: dict[str, list[Point]] = {
    "circle": _star(60),
    "square": _star(4),
    "triangle": _star(3),
    "star": _star(5, 0.42),
    "ring": _arc(61) + _arc(61, radius=0.55)[::-1],  # one outline with a hole: round, and back on the inside
    "cross": [
        (x * cos - y * sin, x * sin + y * cos)
        for cos, sin in ((1, 0), (0, 1), (-1, 0), (0, -1))
        for x, y in ((1.0, -ARM), (1.0, ARM), (ARM, ARM))
    ],
    "crescent": _arc(50, gap=0.5) + _arc(50, gap=0.72, radius=0.72, centre=0.45)[::-1],
    "bar": [(1.0, -0.2), (1.0, 0.2), (-1.0, 0.2), (-1.0, -0.2)],
}


def _shade(rng: np.random.Generator, colour: str) -> Colour:
    """Return a colour whose hue, saturation and light vary a little."""
    hue, saturation, value = SHAPE_COLOURS[colour]
    return _rgb(hue + rng.normal(0, 5), saturation * rng.uniform(0.75, 1.05), value * rng.uniform(0.75, 1.05))


def _tint(rng: np.random.Generator) -> Colour:
    """Return a faint colour of any hue, for grounds."""
    light = rng.uniform(0.25, 0.95)
    return _rgb(rng.uniform(0, 360), rng.uniform(0, 0.3), light)


def _rgb(hue: float, saturation: float, value: float) -> Colour:
    red, green, blue = colorsys.hsv_to_rgb(hue / 360 % 1, min(1.0, saturation), min(1.0, value))
    return round(255 * red), round(255 * green), round(255 * blue)


def _scribble(draw: ImageDraw.ImageDraw, rng: np.random.Generator, side: int) -> None:
    """Draw thin lines of any colour, which have no label."""
    for _ in range(int(rng.integers(0, MAX_SCRIBBLES + 1))):
        points = [(float(x), float(y)) for x, y in rng.uniform(0, side, (3, 2))]
        draw.line(points, fill=_rgb(*rng.uniform((0, 0, 0), (360, 1, 1))), width=int(side * rng.uniform(0.005, 0.02)))


def _stripes(draw: ImageDraw.ImageDraw, rng: np.random.Generator, side: int) -> None:
    step, (cos, sin), fill = side * rng.uniform(0.06, 0.16), _direction(rng.uniform(0, math.pi)), _tint(rng)
    for at in np.arange(-side, side, step):
        x, y = side / 2 + at * cos, side / 2 + at * sin
        ends = [(x - way * side * sin, y + way * side * cos) for way in (-1, 1)]
        draw.line(ends, fill=fill, width=max(1, int(step / 2)))


def _dots(draw: ImageDraw.ImageDraw, rng: np.random.Generator, side: int) -> None:
    step, fill = side * rng.uniform(0.08, 0.16), _tint(rng)
    radius = step * rng.uniform(0.2, 0.32)
    for row, y in enumerate(np.arange(-step * rng.random(), side + step, step)):
        for x in np.arange(-step * rng.random() if row == 0 else -step * (row % 2) / 2, side + step, step):
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)


def _checks(draw: ImageDraw.ImageDraw, rng: np.random.Generator, side: int) -> None:
    step, fill = side * rng.uniform(0.06, 0.16), _tint(rng)
    for row in range(math.ceil(side / step)):
        for column in range(row % 2, math.ceil(side / step), 2):
            draw.rectangle((column * step, row * step, (column + 1) * step, (row + 1) * step), fill=fill)


def _specks(draw: ImageDraw.ImageDraw, rng: np.random.Generator, side: int) -> None:
    """Draw coarse noise: specks of two tints, anywhere."""
    fills = _tint(rng), _tint(rng)
    for x, y, width in rng.uniform((0, 0, 0.01), (1, 1, 0.04), (350, 3)) * side:
        draw.rectangle((x, y, x + width, y + width), fill=fills[int(x + y) % 2])


TEXTURES: dict[str, Callable[[ImageDraw.ImageDraw, np.random.Generator, int], None]] = {
    "plain": lambda draw, rng, side: None,
    "stripes": _stripes,
    "dots": _dots,
    "checks": _checks,
    "specks": _specks,
}
