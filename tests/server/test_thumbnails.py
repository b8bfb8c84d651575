"""Thumbnails: which pictures are sent, and which never."""

from __future__ import annotations

import base64
import xml.dom.minidom
from pathlib import Path
from typing import Any

import pytest

from stillhash.collection import Item
from stillhash.server.page_state import Picture
from stillhash.server.pages.pictures import MAX_THUMBNAIL_BYTES, find_thumbnail

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)  # a picture of one pixel
DRAWING = "image/svg+xml"


def thumbnail(image: Any, folder: Path | None = None) -> Picture:
    return find_thumbnail(Item("a", [], {"image": image}), None, folder)


def data_uri(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def test_picture_of_metadata_or_store() -> None:
    assert thumbnail(data_uri(DOT)) == Picture(DOT, "image/png")
    stored = find_thumbnail(Item("a", [], {"image": data_uri(b"GIF89a")}), DOT, None)
    assert stored == Picture(DOT, "image/png")  # the stored picture comes first


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", None),
        (b"<!doctype html>", None),
        (b"", None),
    ],
)
def test_first_bytes_decide_the_type(data: bytes, kind: str | None) -> None:
    assert thumbnail(data_uri(data)).kind == (kind or DRAWING)  # whatever the data URI says


@pytest.mark.parametrize(
    "image",
    [
        "data:text/html;base64," + base64.b64encode(DOT).decode(),
        "data:image/svg+xml;base64," + base64.b64encode(b"<svg/>").decode(),
        "data:image/png;base64,not base64!",
        "data:image/png," + "x",
        "data:",
        "",
        7,
        None,
        ["a.png"],
        data_uri(DOT) + "A" * (2 * MAX_THUMBNAIL_BYTES),
    ],
)
def test_other_values_get_a_drawing(image: Any) -> None:
    assert thumbnail(image).kind == DRAWING


def test_files_are_read_only_inside_the_folder(tmp_path: Path) -> None:
    folder, secret = tmp_path / "images", tmp_path / "secret.png"
    (folder / "deep").mkdir(parents=True)
    for file in (secret, folder / "a.png", folder / "deep" / "b.png"):
        file.write_bytes(DOT)
    (folder / "text.png").write_text("root:x:0:0")
    (folder / "page.png").write_text("<script>alert(1)</script>")
    (folder / "out.png").symlink_to(secret)
    (folder / "up").symlink_to(tmp_path)
    (folder / "in.png").symlink_to(folder / "a.png")
    (folder / "loop.png").symlink_to(folder / "loop.png")
    (folder / "long.png").write_bytes(DOT + bytes(MAX_THUMBNAIL_BYTES))

    for path in ("a.png", "deep/b.png", "deep/../a.png", "in.png", str(folder / "a.png")):
        assert thumbnail(path, folder) == Picture(DOT, "image/png"), path
    for path in (
        "../secret.png",
        "../../etc/passwd",
        "deep/../../secret.png",
        "/etc/passwd",
        str(secret),
        "out.png",
        "up/secret.png",
        "loop.png",
        "text.png",
        "page.png",
        "long.png",
        "deep",
        ".",
        "missing.png",
        "a.png\0.txt",
        "x" * 5000,
        "file:///etc/passwd",
        "http://example.com/a.png",
    ):
        assert thumbnail(path, folder).kind == DRAWING, path


def test_no_file_is_read_without_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(DOT)
    assert thumbnail(str(tmp_path / "a.png")).kind == DRAWING
    assert thumbnail("a.png", tmp_path / "missing").kind == DRAWING


@pytest.mark.parametrize("name", ["a", "<script>alert(1)</script>", "\"&'", "🦊" * 30, "مرحبا", "7"])
def test_drawing_is_deterministic_and_well_formed(name: str) -> None:
    first, second = (find_thumbnail(Item(name, [], None), None, None) for _ in range(2))
    assert first == second
    parsed = xml.dom.minidom.parseString(first.data)
    assert not parsed.getElementsByTagName("script")
    (text,) = parsed.getElementsByTagName("text")
    assert name.startswith(text.firstChild.data.rstrip("…"))  # type: ignore[union-attr]
