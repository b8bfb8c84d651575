"""Run the recipes of docs/migrating.md against real files and stores of other libraries, and check what arrives."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from tests.cli.test_collection import call
from tests.support.toys import toy

GUIDE = (Path(__file__).parent.parent / "docs" / "migrating.md").read_text()
ROWS, DIM = 1200, 8
X, Y = toy(ROWS, DIM, 4)
NAMES = np.array(["cat", "dog", "sea", "sky"])
CODES = np.random.default_rng(0).integers(0, 256, (ROWS, 8), dtype=np.uint8)
LABELS = [NAMES[row > 0].tolist() for row in Y]
TEXTS = [", ".join(some) for some in LABELS]


def blocks(title: str, kind: str = "python") -> list[str]:
    section = re.search(rf"^## {title}.*?(?=^## |\Z)", GUIDE, re.MULTILINE | re.DOTALL)
    assert section is not None, title
    return re.findall(rf"```{kind}\n(.*?)```", section[0], re.DOTALL)


def run_block(block: str) -> None:
    exec(compile(block, "migrating.md", "exec"), {})


def write_files() -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow has no Parquet")
    columns = {"image_id": list(range(ROWS)), "embedding": list(X), "label": TEXTS, "year": list(range(ROWS))}
    parquet.write_table(pyarrow.table(columns), "images.parquet")
    np.save("vectors.npy", X)
    np.save("labels.npy", Y)


def write_faiss() -> None:
    faiss = pytest.importorskip("faiss", reason="faiss is not installed")
    index = faiss.IndexFlatL2(DIM)
    index.add(X)
    faiss.write_index(index, "vectors.faiss")
    binary = faiss.IndexBinaryFlat(64)
    binary.add(CODES)
    faiss.write_index_binary(binary, "codes.faiss")
    about = [{"id": row, "genres": some, "year": row} for row, some in enumerate(LABELS)]
    Path("about.jsonl").write_text("\n".join(map(json.dumps, about)), encoding="utf-8")


def write_qdrant() -> None:
    qdrant = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    client, models = qdrant.QdrantClient(path="qdrant"), qdrant.models
    size = models.VectorParams(size=DIM, distance=models.Distance.DOT)
    client.create_collection("films", vectors_config=size)
    payloads = [{"genres": some, "year": row} for row, some in enumerate(LABELS)]
    client.upload_collection("films", vectors=X, payload=payloads, ids=range(ROWS))
    client.close()


def write_chroma() -> None:
    chromadb = pytest.importorskip("chromadb", reason="chromadb is not installed")
    source = chromadb.PersistentClient("chroma").create_collection("films")
    metadata = [{"genres": text, "year": row} for row, text in enumerate(TEXTS)]
    source.add(ids=list(map(str, range(ROWS))), embeddings=X, metadatas=metadata, documents=TEXTS)


def write_lance() -> None:
    lancedb = pytest.importorskip("lancedb", reason="lancedb is not installed")
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    vectors = pyarrow.array(X.tolist(), pyarrow.list_(pyarrow.float32(), DIM))
    columns = {"id": list(range(ROWS)), "vector": vectors, "genres": LABELS, "year": list(range(ROWS))}
    lancedb.connect("lance").create_table("films", pyarrow.table(columns))


STORES: dict[str, Callable[[], None]] = {
    "FAISS": write_faiss,
    "Qdrant": write_qdrant,
    "Chroma": write_chroma,
    "LanceDB": write_lance,
}


def check_items(path: str, expected_ids: list[Any], metadata: Callable[[int], dict[str, Any] | None]) -> None:
    with stillhash.open(path, read_only=True) as collection:
        assert collection.count() == ROWS and collection.verify() == []
        items = collection.get(expected_ids)
        assert [item and item.labels for item in items] == [sorted(some) for some in LABELS]
        assert [item and item.metadata for item in items] == [metadata(row) for row in range(ROWS)]


@pytest.mark.nightly
@pytest.mark.parametrize("name", STORES)
def test_recipes_of_other_stores(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    STORES[name]()
    block, *others = blocks(f"From {name}")
    for other in others:
        run_block(other)
    for _ in range(2):  # a second run changes nothing
        run_block(block)
        if name == "Chroma":
            check_items("from-chroma", list(map(str, range(ROWS))), lambda row: {"year": row, "document": TEXTS[row]})
        else:
            check_items(f"from-{name.lower()}", list(range(ROWS)), lambda row: {"year": row})
    if name == "FAISS":
        with stillhash.open("from-faiss-codes", read_only=True) as collection:
            np.testing.assert_array_equal(collection.codes(range(ROWS)), CODES)


@pytest.mark.nightly
def test_recipes_of_files_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("pandas", "datasets"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    write_files()
    for block in blocks("Files", "sh"):
        for command in block.splitlines():
            code, _, err = call(*shlex.split(command)[1:])
            assert code == 0, f"{command}: {err}"
    for block in blocks("Tables"):
        run_block(block)
    for path in ("gallery", "from-pandas", "from-datasets"):
        check_items(path, list(range(ROWS)), lambda row: {"year": row})
    with stillhash.open("from-arrays", read_only=True) as collection:
        items = collection.get(range(ROWS))
        assert [item and item.labels for item in items] == [np.flatnonzero(row).tolist() for row in Y]


def test_every_recipe_belongs_to_a_section_that_is_run() -> None:
    run = [*blocks("Files", "sh"), *blocks("Tables"), *(block for name in STORES for block in blocks(f"From {name}"))]
    every = re.findall(r"```(?:python|sh)\n(.*?)```", GUIDE, re.DOTALL)
    assert sorted(run) == sorted(every)
