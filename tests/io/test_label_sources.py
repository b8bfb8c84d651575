"""Labels of image files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stillhash.errors import InvalidInput
from stillhash.io import open_labels

COCO = {
    "images": [{"id": 7, "file_name": "a.jpg"}, {"id": 8, "file_name": "sub/b.jpg"}],
    "annotations": [
        {"image_id": 7, "category_id": 1},
        {"image_id": 7, "category_id": 2},
        {"image_id": 7, "category_id": 1},
    ],
    "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
}
TABLES = {
    "l.csv": "file,labels,other\na.jpg,cat|dog,x\n./sub/b.jpg,,\n",
    "l.json": json.dumps({"a.jpg": ["cat", "dog"], "sub/b.jpg": []}),
    "list.json": json.dumps([{"file": "a.jpg", "labels": ["cat", "dog"]}, {"file": "sub\\b.jpg"}]),
    "l.jsonl": '{"file": "a.jpg", "labels": "cat|dog"}\n\n{"file": "sub/b.jpg", "labels": []}\n',
    "coco.json": json.dumps(COCO),
}


def test_folders_are_labels(tmp_path: Path) -> None:
    labels = open_labels(tmp_path, "folders")
    assert labels("animals/cats/1.jpg") == ["animals", "cats"]
    assert labels("1.jpg") == [] and labels("a/a/1.jpg") == ["a"]
    assert open_labels(tmp_path, "none")("a/b.jpg") == []


@pytest.mark.parametrize("name", TABLES)
def test_tables_tell_labels_by_path_or_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(TABLES[name])
    labels = open_labels(tmp_path, str(tmp_path / name))
    assert labels("a.jpg") == ["cat", "dog"] and labels("sub/b.jpg") == [] and labels("unknown.jpg") == []
    assert labels("elsewhere/a.jpg") == ["cat", "dog"]


def test_notes_beside_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("cat, dog\n\nbird, cat")
    (tmp_path / "y.png.txt").write_text("\ufeffsea")
    labels = open_labels(tmp_path, "sidecar")
    assert labels("x.jpg") == ["cat", "dog", "bird"] and labels("y.png") == ["sea"] and labels("z.png") == []


def test_auto_looks_for_a_table_then_notes_then_folders(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.txt").write_text("noted")
    labels = open_labels(tmp_path)
    assert labels("in/x.jpg") == ["noted"] and labels("in/y.jpg") == ["in"]
    (tmp_path / "labels.csv").write_text("file,labels\nin/y.jpg,listed\n")
    labels = open_labels(tmp_path)
    assert labels("in/x.jpg") == [] and labels("in/y.jpg") == ["listed"]


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("l.csv", "name,tags\na,b\n", "^l.csv: columns"),
        ("l.json", "{", "^l.json"),
        ("l.json", "3", "^l.json"),
        ("l.json", '{"a.jpg": 3}', "^l.json"),
        ("l.json", '{"images": [], "annotations": [{}], "categories": []}', "^l.json"),
        ("l.jsonl", '{"file": "a"}\n{"labels": []}', "^l.jsonl, line 2"),
        ("l.xml", "", "^labels"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, name: str, text: str, match: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput, match=match):
        open_labels(tmp_path, str(tmp_path / name))


def test_a_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^labels"):
        open_labels(tmp_path, str(tmp_path / "no.csv"))
