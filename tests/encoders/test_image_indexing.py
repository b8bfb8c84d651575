"""Folders of images into collections, and queries that are images."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import stillhash
from stillhash.cli.main import app
from stillhash.collection.learning.models import load_functions
from stillhash.encoders import align_images, index_folder, open_encoder, open_query_encoder
from stillhash.encoders.files import encode_files
from stillhash.errors import Conflict, InvalidInput
from stillhash.experiments.shapes import write_shapes
from stillhash.io import list_images, open_labels
from tests.encoders.onnx_models import write_model

COUNT = 330


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    images = tmp_path_factory.mktemp("shapes")
    write_shapes(images, COUNT, 0, size=32)
    (images / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    (images / ".hidden.jpg").write_bytes(b"x")
    (images / "notes.md").write_text("x")
    return images


def new(path: Path, **settings: Any) -> stillhash.Collection:
    return stillhash.open(path, encoder=open_encoder("classic"), init_rows=300, learn_rows=100, **settings)


def index(folder: Path, collection: stillhash.Collection, **more: Any) -> Any:
    return index_folder(folder, collection, "classic", open_labels(folder), workers=1, **more)


@pytest.mark.medium
def test_a_folder_becomes_items_with_labels_and_thumbnails(folder: Path, tmp_path: Path) -> None:
    with new(tmp_path / "c") as collection:
        counts: list[int] = []
        done = index(folder, collection, progress=lambda result: counts.append(result.added))
        assert (done.files, done.added, done.updated, done.skipped) == (COUNT + 1, COUNT, 0, 0)
        assert list(done.broken) == ["broken.png"] and counts == sorted(counts) and counts[-1] == COUNT
        assert collection.count() == COUNT == done.labelled
        (item,) = collection.get(["000003.jpg"])
        assert item is not None and item.labels == open_labels(folder)("000003.jpg")
        assert item.metadata is not None and item.metadata["width"] == 32
        picture = collection.picture("000003.jpg")
        assert picture is not None and Image.open(io.BytesIO(picture)).size == (32, 32)


@pytest.mark.medium
@pytest.mark.parametrize("seeing", [True, False])
def test_codes_hold_the_labels_of_images(folder: Path, tmp_path: Path, seeing: bool) -> None:
    with new(tmp_path / "c", codes_see_labels=seeing) as collection:
        index(folder, collection)
        names = [f"{n:06d}.jpg" for n in range(COUNT)]
        features = [entry.features for entry in encode_files("classic", [folder / n for n in names], workers=1)]
        with collection._store.reading() as connection:
            functions = load_functions(connection)
        assert functions is not None and collection.stats()["codes_see_labels"] is seeing
        codes = functions.encode(np.stack([row for row in features if row is not None]))
        assert np.array_equal(collection.codes(names), codes) is not seeing


def test_the_index_command_chooses_whether_codes_see_labels(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes((folder / "000000.jpg").read_bytes())
    for option, seeing in (("--codes-see-labels", True), ("--no-codes-see-labels", False)):
        path = tmp_path / option
        done = CliRunner().invoke(app, ["index", str(tmp_path / "images"), str(path), option, "--workers", "1"])
        assert done.exit_code == 0, done.output
        with stillhash.open(path, read_only=True) as collection:
            assert collection.stats()["codes_see_labels"] is seeing and collection.count() == 1


def test_a_second_run_takes_only_what_is_new_or_changed(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "images"
    copy.mkdir()
    for name in ("000000.jpg", "000001.jpg", "labels.csv"):
        (copy / name).write_bytes((folder / name).read_bytes())
    with new(tmp_path / "c") as collection:
        assert index(copy, collection).added == 2
        (copy / "000001.jpg").write_bytes((folder / "000005.jpg").read_bytes())
        (copy / "sub").mkdir()
        (copy / "sub" / "000002.jpg").write_bytes((folder / "000002.jpg").read_bytes())
        done = index(copy, collection)
        assert (done.added, done.updated, done.skipped) == (1, 1, 1) and collection.count() == 3
        assert index(copy, collection).skipped == 3
        (item,) = collection.get(["sub/000002.jpg"])
        assert item is not None and item.labels  # by its name, which the table has


def test_names_that_cannot_be_ids_are_reported(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    odd = os.fsdecode(os.fsencode(tmp_path / "images") + b"/bad\xff.jpg")
    Path(odd).write_bytes((folder / "000000.jpg").read_bytes())
    with new(tmp_path / "c") as collection:
        done = index(tmp_path / "images", collection)
        assert collection.count() == 0 and len(done.broken) == 1 and "name" in next(iter(done.broken.values()))


def test_an_image_finds_itself(folder: Path, tmp_path: Path) -> None:
    with new(tmp_path / "c") as collection:
        index(folder, collection)
        collection.flush()
        encoder = open_query_encoder(collection)
        data = (folder / "000007.jpg").read_bytes()
        answer = collection.search(encoder.image(data), 5, version=0)
        assert answer.hits[0].id == "000007.jpg" and answer.hits[0].placed == "near"
        with pytest.raises(InvalidInput, match=r"^encoder"):
            encoder.text("a red circle")
        with pytest.raises(InvalidInput, match="cannot be decoded"):
            encoder.image(b"no image")


@pytest.mark.medium
def test_only_the_collections_own_encoder_or_an_aligned_one_is_accepted(folder: Path, tmp_path: Path) -> None:
    other = f"onnx:{write_model(tmp_path / 'm.onnx', size=[16, 16])}"
    with new(tmp_path / "c") as collection:
        index(folder, collection)
        collection.flush()
        with pytest.raises(Conflict):
            open_query_encoder(collection, other)
        result = align_images(collection, other, folder, 100, workers=1)
        assert result["pairs"] >= 90
        query = open_query_encoder(collection, other).image((folder / "000007.jpg").read_bytes())
        assert query.shape == (collection.dim,) and np.isfinite(query).all()
    with stillhash.open(tmp_path / "v", 4) as vectors, pytest.raises(InvalidInput, match=r"^encoder"):
        open_query_encoder(vectors)


def test_only_images_are_listed(folder: Path, tmp_path: Path) -> None:
    assert len(list_images(folder)) == COUNT + 1
    with pytest.raises(InvalidInput, match=r"^folder"):
        list_images(tmp_path / "no")


def stillhash_cli(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stillhash", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_command_line_indexes_searches_and_relabels(folder: Path, tmp_path: Path) -> None:
    done = stillhash_cli("index", str(folder), "c", "--bits", "32", "--workers", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["added"] == COUNT and result["fitted"] and list(result["broken"]) == ["broken.png"]
    again = stillhash_cli("index", str(folder), "c", cwd=tmp_path)
    assert f"{COUNT} already indexed" in again.stdout and "broken.png" in again.stdout
    image = str(folder / "000009.jpg")
    search = stillhash_cli("search", "c", "--image", image, "-k", "3", "--version", "0", "--json", cwd=tmp_path)
    assert json.loads(search.stdout)["answers"][0]["hits"][0]["id"] == "000009.jpg", search.stderr
    like = stillhash_cli("search", "c", "--like", "000009.jpg", "-k", "1", "--version", "0", "--json", cwd=tmp_path)
    assert json.loads(like.stdout)["answers"][0]["hits"][0]["id"] == "000009.jpg"
    named = stillhash_cli("relabel", "c", "000009.jpg", "mine|yours", "--json", cwd=tmp_path)
    assert json.loads(named.stdout)["labels"] == ["mine", "yours"], named.stderr
    got = stillhash_cli("get", "c", "000009.jpg", "--json", cwd=tmp_path)
    assert json.loads(got.stdout)["items"][0]["labels"] == ["mine", "yours"]
    for wrong in (
        ["search", "c"],
        ["search", "c", "--image", image, "--like", "x"],
        ["index", "nowhere", "c"],
    ):
        assert stillhash_cli(*wrong, cwd=tmp_path).returncode == 2
    assert "encoder" in stillhash_cli("search", "c", "--text", "red", cwd=tmp_path).stderr


def test_files_are_indexed_by_the_query_encoder(folder: Path, tmp_path: Path) -> None:
    shares = list[tuple[float, int]]()
    with new(tmp_path / "c") as collection:
        encoder, files = open_query_encoder(collection), list_images(folder)
        report = encoder.index_files(folder, files, progress=lambda share, count: shares.append((share, count)))
        assert collection.count() == COUNT == report["added"] and report["broken_count"] == 1
        assert list(report["broken"]) == ["broken.png"] and str(folder) not in str(report)
        assert shares == sorted(shares) and shares[-1] == (1.0, COUNT) and len(shares) == 2
        assert encoder.index_files(folder, files[:5], "none")["skipped"] == 5
