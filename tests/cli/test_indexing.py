"""Index and search texts from the command line, and serve them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stillhash
from stillhash.cli import completion
from stillhash.encoders import ENCODER_NAMES, open_encoder, open_query_encoder
from stillhash.encoders.documents import DEFAULT_CHUNK, DEFAULT_OVERLAP, MAX_TEXT_BYTES, TEXT_ENCODINGS
from tests.cli.commands import stillhash as run_process
from tests.cli.test_collection import call, call_json
from tests.server.live_server import live_server

TOPICS = {"parcel": "parcel courier late address", "login": "password reset account code"}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "docs.jsonl"
    rows: list[dict[str, Any]] = [
        {"id": f"{topic}-{n}", "body": f"{words} ticket {n}", "topics": f"{topic}, ticket", "year": 1990 + n % 5}
        for n in range(160)
        for topic, words in TOPICS.items()
    ]
    rows += [
        {"id": "none", "body": None, "topics": []},
        {"id": "long", "body": "password reset " * 150, "topics": "login"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "work").mkdir(parents=True)
    (folder / "work" / "boat.md").write_text("---\ntags: [sea]\n---\nA red boat in the harbour.", encoding="utf-8")
    (folder / "work" / "cat.txt").write_text("A cat sleeps on the sofa.", encoding="utf-8")
    (folder / "bad.txt").write_bytes(b"caf\xe9 au lait")
    return folder


def test_defaults_are_those_of_the_library() -> None:
    assert completion.CHUNK_WORDS == DEFAULT_CHUNK == 10 * DEFAULT_OVERLAP
    assert completion.TEXT_ENCODING_NAMES == TEXT_ENCODINGS and completion.MAX_TEXT_MIB << 20 == MAX_TEXT_BYTES
    assert sorted(completion.ENCODER_PREFIXES) == sorted(
        name if ":" not in name else name.partition(":")[0] + ":" for name in ENCODER_NAMES
    )


def test_a_table_is_indexed_and_searched(table: Path, tmp_path: Path) -> None:
    news = tmp_path / "news"
    columns = ("--text", "body", "--label", "topics")
    done = call_json("index", table, news, *columns, "--chunk", 50)
    assert (done["added"], done["broken_count"], done["fitted"]) == (321, 1, True) and done["labelled"] == 321
    assert done["chunks"] == done["items"] > 325 and list(done["broken"]) == ["docs.jsonl, line 321"]
    again = call_json("index", table, news, *columns, "--chunk", 50)
    assert (again["added"], again["skipped"]) == (0, 321)
    (answer,) = call_json("search", news, "--text", "the courier lost a parcel", "-k", 5)["answers"]
    assert {hit["id"].partition("-")[0] for hit in answer["hits"]} == {"parcel"}
    assert answer["hits"][0]["labels"] == ["parcel", "ticket"] and "courier" in answer["hits"][0]["metadata"]["text"]
    (answer,) = call_json("search", news, "--text", "parcel", "--where", '{"year": 1993}')["answers"]
    assert {hit["metadata"]["year"] for hit in answer["hits"]} == {1993}
    code, _, err = call("search", news, "--image", table)
    assert code == 2 and "query" in err


def test_a_folder_is_indexed(notes: Path, tmp_path: Path) -> None:
    wiki = tmp_path / "wiki"
    done = call_json("index", notes, wiki)
    assert done["added"] == 2 and "UTF-8" in done["broken"]["bad.txt"]
    labels = {item["id"]: item["labels"] for item in call_json("get", wiki, "work/boat.md", "work/cat.txt")["items"]}
    assert labels == {"work/boat.md": ["sea"], "work/cat.txt": ["work"]}
    assert call_json("index", notes, wiki, "--encoding", "latin-1")["added"] == 1
    code, out, _ = call("index", notes, wiki)
    assert code == 0 and "2 already indexed" in out and "bad.txt" in out
    code, _, err = call("index", notes, wiki, "--max-mib", 0)
    assert code == 2 and "max-mib" in err


def test_folders_with_images_and_texts(notes: Path, tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    pillow.new("RGB", (8, 8), "red").save(notes / "photo.png")
    (notes / "photo.txt").write_text("a sidecar", encoding="utf-8")
    code, out, err = call("index", notes, tmp_path / "images", "--workers", 1)
    assert code == 0 and "1 added" in out and "3 text files" in err and "--kind texts" in err
    code, out, err = call("index", notes, tmp_path / "texts", "--kind", "texts")
    assert code == 0 and "3 added" in out and "1 images" in err
    assert "3 already indexed" in call("index", notes, tmp_path / "texts")[1]  # as its encoder is
    assert "3 added" in call("index", notes, tmp_path / "words", "--encoder", "words")[1]
    code, _, err = call("index", notes, tmp_path / "no", "--encoder", "words", "--kind", "images")
    assert code == 2 and "encoder" in err and not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--kind", "sounds"],
        ["--text", "body"],
        ["--kind", "images"],
        ["--encoder", "classic", "--kind", "texts"],
        ["--chunk", "10", "--overlap", "6"],
        ["--chunk", "100000"],
        ["--encoding", "cp1252"],
        ["--labels", "sidecar"],
        ["--encoder", "static:none"],
    ],
)
def test_wrong_options_are_refused(options: list[str], notes: Path, tmp_path: Path) -> None:
    code, _, err = call("index", notes, tmp_path / "c", *options)
    assert code == 2 and err and not (tmp_path / "c").exists()


def test_wrong_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.pdf").write_bytes(b"x")
    (tmp_path / "a.jsonl").write_text('{"id": 1}', encoding="utf-8")
    for source in ("empty", "a.pdf", "nowhere", "nowhere.jsonl", "a.jsonl"):
        assert call("index", tmp_path / source, tmp_path / "c")[0] == 2 and not (tmp_path / "c").exists()
    call_json("create", tmp_path / "vectors", "--dim", 4)
    (tmp_path / "a.txt").write_text("text", encoding="utf-8")
    code, _, err = call("index", tmp_path, tmp_path / "vectors")
    assert code == 2 and "made from vectors" in err


@pytest.mark.medium
def test_texts_need_no_library_of_images(notes: Path, tmp_path: Path) -> None:
    without = "import sys; sys.modules['PIL'] = None; sys.modules['tokenizers'] = None"
    done = run_process("index", notes, tmp_path / "c", "--json", before=without)
    assert done.returncode == 0 and json.loads(done.stdout)["added"] == 2, done.stderr
    found = run_process("search", tmp_path / "c", "--text", "boats", "-k", "1", "--json", before=without)
    assert json.loads(found.stdout)["answers"][0]["hits"][0]["id"] == "work/boat.md", found.stderr


def test_another_encoder_is_aligned_by_the_texts(table: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    from tests.encoders.text_models import write_static

    other = f"static:{write_static(tmp_path / 'model')}"
    call_json("index", table, tmp_path / "c", "--text", "body")
    assert call("search", tmp_path / "c", "--text", "parcel", "--encoder", other)[0] == 4
    assert call_json("align", tmp_path / "c", "--encoder", other, "--texts", "--max-images", 40)["pairs"] == 40
    assert call("search", tmp_path / "c", "--text", "parcel", "--encoder", other)[0] == 0
    assert call("align", tmp_path / "c", "--encoder", other)[0] == 2


def test_a_server_answers_queries_by_text(notes: Path, tmp_path: Path) -> None:
    call_json("index", notes, tmp_path / "c")
    collection = stillhash.open(tmp_path / "c")
    encoders = {"c": open_query_encoder(collection)}
    with live_server({"c": collection}, query_encoders=encoders) as server:
        encoded = server.request("POST", "/v1/collections/c/encode", b"a boat", content_type="text/plain")
        assert encoded.json["features"] == open_encoder("words").encode_texts(["a boat"]).tolist()
        answer = server.request("POST", "/v1/collections/c/search", {"query": encoded.json["features"][0], "k": 1})
        assert answer.json["answers"][0]["hits"][0]["id"] == "work/boat.md"
        page = server.request("GET", "/c/c").data.decode()
        assert 'name="search"' in page and "words, label or id" in page and "picture of your own" not in page
        form = b'--edge\r\nContent-Disposition: form-data; name="words"\r\n\r\nboats\r\n--edge--\r\n'
        moved = server.request("POST", "/c/c/upload", form, content_type="multipart/form-data; boundary=edge")
        assert moved.status == 303 and b"work/boat.md" in server.request("GET", moved.headers["location"]).data
        refused = server.request("POST", "/v1/collections/c/encode", b"\x89PNG", content_type="image/png")
        assert refused.status == 422 and "text" in refused.data.decode()
