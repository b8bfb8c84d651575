"""Decoding: every kind and mode that is taken, and every way in which a file can be refused."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps, PngImagePlugin

from stillhash.encoders import pixels
from stillhash.encoders.base import content_key
from stillhash.encoders.pixels import MAX_PIXELS, MAX_RLE_BYTES, MAX_SEGMENTS, read_header, thumbnail
from stillhash.errors import InvalidInput, NotFound, TooLarge
from tests.encoders.sample_images import (
    KINDS,
    bmp_of,
    decode,
    exif,
    grey16,
    photo,
    png_of,
    read_image,
    runs,
    samples,
    saved,
    with_chunk,
    with_segment,
)

PHOTO = np.asarray(photo()).astype(int)


def apart(image: Image.Image, expected: object = PHOTO) -> float:
    return float(np.abs(np.asarray(image).astype(int) - np.asarray(expected).astype(int)).mean())


# ---- what is taken ----


@pytest.mark.parametrize("sample", samples())
def test_every_kind_comes_out_in_rgb_and_bare(sample: str) -> None:
    image = decode(samples()[sample], sample)
    assert image.mode == "RGB" and image.info == {} and not image.getexif()
    assert type(image) is Image.Image
    if "exif" not in sample and "runs" not in sample:
        assert image.size == (48, 32)


@pytest.mark.parametrize("kind", KINDS)
def test_colours_are_right(kind: str) -> None:
    assert apart(decode(saved(photo(), kind))) < (0.1 if kind in ("PNG", "BMP") else 12)


def test_modes_are_converted() -> None:
    grey = np.asarray(photo().convert("L"))[..., None].repeat(3, 2)
    clear = photo()
    clear.putalpha(0)
    half = Image.new("RGBA", (4, 4), (100, 0, 200, 128))
    assert apart(decode(saved(grey16(), "PNG")), grey) == 0
    assert apart(decode(saved(photo().convert("L"), "PNG")), grey) == 0
    assert apart(decode(saved(clear, "PNG")), 255) == 0
    assert apart(decode(saved(half, "PNG")), [177, 127, 227]) <= 1
    assert apart(decode(samples()["jpeg-cmyk"])) < 6
    assert set(np.unique(decode(samples()["png-1"]))) == {0, 255}
    wide = np.full((2, 3, 3), 0x8001, ">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in wide)
    deep = with_chunk(png_of(3, 2, rows, depth=16), b"tRNS", struct.pack(">HHH", 0x8001, 0x8001, 0x8001))
    assert apart(decode(deep), 0x80) == 0


def test_a_transparent_colour_is_white() -> None:
    for mode, colour in (("RGB", (1, 2, 3)), ("L", 7)):
        image = Image.new(mode, (4, 4), colour)
        assert apart(decode(saved(image, "PNG", transparency=colour)), 255) == 0
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([9, 9, 9, 200, 0, 0])
    assert apart(decode(saved(palette, "GIF", transparency=1)), 255) == 0
    assert apart(decode(saved(palette, "GIF")), (200, 0, 0)) == 0


def test_runs_of_a_bmp() -> None:
    image = np.asarray(decode(runs()))
    assert image.shape == (4, 8, 3)
    assert (image[:, :5] == (7, 55, 200)).all() and (image[:, 5:] == (7, 245, 10)).all()


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_only_the_first_frame_is_shown(kind: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "lime", "blue")]
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:], duration=50)
    assert apart(decode(data), (255, 0, 0)) < 4


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_pictures_come_out_upright(kind: str, orientation: int) -> None:
    how = {"lossless": True} if kind == "WEBP" else {}
    data = saved(photo(), kind, exif=exif(orientation), **how)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    image, size = pixels.decode(data)
    assert image.size == expected.size == size
    assert size == ((32, 48) if orientation > 4 else (48, 32))
    assert apart(image, expected) == 0


@pytest.mark.parametrize("order", [b"II*\0", b"MM\0*"])
def test_orientation_in_both_orders_of_bytes(order: bytes) -> None:
    way = "<" if order[:1] == b"I" else ">"
    entry = struct.pack(way + "IHHHIHH", 8, 1, 0x0112, 3, 1, 6, 0)
    data = with_segment(saved(photo(), "JPEG"), 0xE1, b"Exif\0\0" + order + entry)
    assert decode(data).size == (32, 48)


@pytest.mark.parametrize(
    "tags",
    [
        b"",
        b"II*\0",
        b"MM\0*\0\0\0\x08",
        b"II*\0\xff\xff\xff\xff",
        b"II*\0\x08\0\0\0\xff\xff" + b"\x12\x01\x07\0" * 40,
        b"nonsense" * 9,
        b"II*\0" + struct.pack("<IHHHIHH", 8, 1, 0x0112, 3, 1, 99, 0),
        b"II*\0" + struct.pack("<IHHHII", 8, 1, 0x0112, 5, 1, 2**31),
    ],
)
def test_broken_exif_is_passed_over(tags: bytes) -> None:
    jpeg = with_segment(saved(photo(), "JPEG"), 0xE1, b"Exif\0\0" + tags)
    png = with_chunk(saved(photo(), "PNG"), b"eXIf", tags)
    for data in (jpeg, png):
        assert decode(data).size == (48, 32)


# ---- smaller versions ----


def test_no_finer_than_needed() -> None:
    for kind in KINDS:
        data = saved(photo(640, 480), kind)
        image, size = pixels.decode(data, target=(100, 100))
        assert size == (640, 480)
        assert image.size[0] >= 100 and 100 <= image.size[1] < 200
        assert apart(image, photo(640, 480).resize(image.size, Image.Resampling.BOX)) < 12
        assert decode(data, target=(1000, 1000)).size == (640, 480)
        assert decode(data).size == (640, 480)
    turned = decode(saved(photo(640, 480), "JPEG", exif=exif(6)), target=(100, 300))
    assert turned.width >= 100 and turned.height >= 300 and turned.width < 480


def test_thumbnails_are_small_and_always_the_same() -> None:
    for image in (photo(640, 480), photo(30, 20), photo(1000, 3), photo().convert("L"), photo().convert("RGBA")):
        data = thumbnail(image)
        assert data == thumbnail(image) and len(data) < 12_000
        small = decode(data)
        assert max(small.size) == min(160, max(image.size))
    assert decode(thumbnail(photo(640, 480))).size == (160, 120)
    assert decode(thumbnail(photo(640, 480), side=32)).size == (32, 24)
    assert read_header(thumbnail(photo())).kind == "JPEG"


def test_equal_files_have_equal_hashes() -> None:
    assert content_key(b"") == "e3b0c44298fc1c149afbf4c8996fb924"
    assert content_key(samples()["png"]) != content_key(samples()["gif"])


# ---- what is refused ----


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"not a picture at all" * 9,
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.4",
        b"%!PS-Adobe-3.0 EPSF-3.0\n",
        saved(photo(), "TIFF"),
        saved(photo(), "ICO"),
        saved(photo(), "TGA"),
        saved(photo(), "PPM"),
        saved(photo(), "JPEG2000"),
    ],
)
def test_other_kinds_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"^a\.jpg: .*JPEG"):
        decode(data, "a.jpg")


@pytest.mark.parametrize("sample", samples())
@pytest.mark.parametrize("lenient", [False, True])
def test_a_file_that_is_not_whole_is_refused(sample: str, lenient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every length, and even where Pillow is set to accept such files; of an animation the first frame is enough."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
    data = samples()[sample]
    whole = decode(data)
    for length in {*range(0, len(data), max(1, len(data) // 40)), len(data) - 1}:
        try:
            image = decode(data[:length], "cut")
        except InvalidInput as error:
            assert str(error).startswith("cut: ")
        else:
            assert sample.startswith(("gif", "bmp-runs")) and apart(image, whole) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_limits_are_checked_before_decoding(kind: str) -> None:
    data = saved(photo(), kind)
    with pytest.raises(TooLarge, match=rf"^p: .*100.*{len(data):,}"):
        decode(data, "p", max_bytes=100)
    with pytest.raises(TooLarge, match=r"^p: .*1,535.*48 x 32"):
        decode(data, "p", max_pixels=1535)
    assert decode(data, max_pixels=1536).size == (48, 32)


def enormous() -> dict[str, bytes]:
    """Files that say they are 30,000 x 20,000 pixels."""
    jpeg, gif, webp = (bytearray(samples()[kind]) for kind in ("jpeg", "gif", "webp-alpha"))
    at = jpeg.index(b"\xff\xc0")
    jpeg[at + 5 : at + 9] = struct.pack(">HH", 20_000, 30_000)
    gif[6:10] = struct.pack("<HH", 30_000, 20_000)
    webp[24:30] = (29_999).to_bytes(3, "little") + (19_999).to_bytes(3, "little")
    frame = bytearray(samples()["gif"])
    at = frame.index(b",\0\0\0\0")
    frame[at + 5 : at + 9] = struct.pack("<HH", 30_000, 20_000)
    return {
        "jpeg": bytes(jpeg),
        "png": png_of(30_000, 20_000),
        "gif": bytes(gif),
        "gif-frame": bytes(frame),
        "webp": bytes(webp),
        "bmp-runs": bmp_of(30_000, 20_000, b"\0\1", bits=8, compression=1, palette=bytes(1024)),
        "thin": png_of(20_001, 1),
        "wide": png_of(2**31 - 1, 2**31 - 1),
    }


@pytest.mark.parametrize("sample", enormous())
def test_enormous_pictures_are_refused_unseen(sample: str) -> None:
    data = enormous()[sample]
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match=r"^image: .*20,000.*50,000,000"):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.medium
@pytest.mark.parametrize("name", [b"zTXt", b"iTXt", b"iCCP"])
def test_compressed_texts_are_never_opened(name: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb in a text or a profile: nothing reads it, and the picture is as it was."""
    bomb = zlib.compress(bytes(200 << 20), 9)
    head = {b"zTXt": b"t\0\0", b"iTXt": b"t\0\1\0\0\0", b"iCCP": b"p\0\0"}[name]

    def opened(_: bytes) -> bytes:
        raise AssertionError("a compressed text was opened")

    monkeypatch.setattr(PngImagePlugin, "_safe_zlib_decompress", opened)
    assert apart(decode(with_chunk(saved(photo(), "PNG"), name, head + bomb))) == 0


def test_more_passes_than_a_picture_is_worth() -> None:
    """A progressive JPEG may say of every bit in a scan of its own, thousands of times; each costs a pass over all."""
    data = saved(photo(2000, 1500), "JPEG", progressive=True, quality=5)
    start = data.rindex(b"\xff\xda")
    scan, rest = data[start:-2], data[:start]
    decode(data)
    with pytest.raises(TooLarge, match=r"^image: .*passes.*2,0.."):
        decode(rest + scan * 2000 + b"\xff\xd9")


def test_more_segments_than_a_file_can_need() -> None:
    many = MAX_SEGMENTS + 1
    jpeg, png, gif, webp = (saved(photo(), kind) for kind in ("JPEG", "PNG", "GIF", "WEBP"))
    grown = (
        jpeg[:2] + b"\xff\xfe\0\2" * many + jpeg[2:],
        png[:33] + (b"\0\0\0\0tEXt" + bytes(4)) * many + png[33:],
        gif[:781] + b"!\xfe" + b"\1x" * many + b"\0" + gif[781:],
        webp[:4] + struct.pack("<I", len(webp) - 8 + 8 * many) + webp[8:] + b"JUNK\0\0\0\0" * many,
    )
    for data in grown:
        with pytest.raises(InvalidInput, match=r"^image: .*65,536"):
            decode(data)
    long = bmp_of(8, 4, bytes(MAX_RLE_BYTES), bits=8, compression=1, palette=bytes(1024))
    with pytest.raises(InvalidInput, match=r"^image: .*run-length"):
        decode(long)


@pytest.mark.parametrize("data", [png_of(0, 5), bmp_of(0, 3, b""), bmp_of(3, 0, b"")])
def test_empty_pictures_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"^image: .*. x ."):
        decode(data)


@pytest.mark.parametrize(
    "error",
    [SyntaxError("no"), struct.error("no"), ZeroDivisionError("no"), OverflowError(), MemoryError(), RecursionError()],
)
def test_whatever_pillow_raises_is_ours(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Image, "open", fails)
    with pytest.raises(InvalidInput, match=r"^x\.png: ."):
        decode(samples()["png"], "x.png")


def test_a_limit_is_not_wider_than_pillows_own() -> None:
    """Or else Pillow would warn of a bomb where none is."""
    assert Image.MAX_IMAGE_PIXELS is not None and MAX_PIXELS <= Image.MAX_IMAGE_PIXELS


# ---- files ----


def test_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "ä b.png"
    path.write_bytes(samples()["png"])
    assert apart(read_image(path)) == apart(read_image(str(path))) == 0
    assert read_image(path, target=(12, 8)).size == (12, 8)


def test_what_is_no_readable_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotFound, match=r"none\.png: "):
        read_image(tmp_path / "none.png")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(InvalidInput, match=str(path)):
            read_image(path)
    with pytest.raises(InvalidInput, match=r"^a"):
        read_image("a\0b")
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(TooLarge, match=r"large: .*67,108,864.*67,108,865"):
        read_image(large)
    broken = tmp_path / "broken.gif"
    broken.write_bytes(b"GIF89a")
    with pytest.raises(InvalidInput, match=rf"^{broken}: "):
        read_image(broken)
