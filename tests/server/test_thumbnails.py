"""Thumbnails: what is sent, and what is never sent."""

from __future__ import annotations

import base64
import xml.dom.minidom
from pathlib import Path
from typing import Any

import pytest

from stillhash.collection import Item
from stillhash.server.pages.thumbnails import MOST, Picture, picture_of

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)  # a picture of one pixel
DRAWN = "image/svg+xml"


def shown(image: Any, folder: Path | None = None) -> Picture:
    return picture_of(Item("a", [], {"image": image}), None, folder)


def inside(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def test_bytes_that_came_with_an_item() -> None:
    assert shown(inside(DOT)) == Picture(DOT, "image/png")
    stored = picture_of(Item("a", [], {"image": inside(b"GIF89a")}), DOT, None)
    assert stored == Picture(DOT, "image/png")  # what is stored for it comes first


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
def test_the_first_bytes_say_what_it_is(data: bytes, kind: str | None) -> None:
    assert shown(inside(data)).kind == (kind or DRAWN)  # whatever the address calls it


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
        inside(DOT) + "A" * (2 * MOST),
    ],
)
def test_anything_else_is_a_drawing(image: Any) -> None:
    assert shown(image).kind == DRAWN


def test_files_are_read_inside_the_folder_only(tmp_path: Path) -> None:
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
    (folder / "long.png").write_bytes(DOT + bytes(MOST))

    for path in ("a.png", "deep/b.png", "deep/../a.png", "in.png", str(folder / "a.png")):
        assert shown(path, folder) == Picture(DOT, "image/png"), path
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
        assert shown(path, folder).kind == DRAWN, path


def test_no_file_is_read_without_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(DOT)
    assert shown(str(tmp_path / "a.png")).kind == DRAWN
    assert shown("a.png", tmp_path / "missing").kind == DRAWN


@pytest.mark.parametrize("name", ["a", "<script>alert(1)</script>", "\"&'", "🦊" * 30, "مرحبا", "7"])
def test_a_drawing_is_the_same_each_time_and_well_formed(name: str) -> None:
    first, second = (picture_of(Item(name, [], None), None, None) for _ in range(2))
    assert first == second
    parsed = xml.dom.minidom.parseString(first.data)
    assert not parsed.getElementsByTagName("script")
    (text,) = parsed.getElementsByTagName("text")
    assert name.startswith(text.firstChild.data.rstrip("…"))  # type: ignore[union-attr]
