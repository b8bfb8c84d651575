"""Search texts by similarity and by words, and learn from labels which texts belong together.

The texts are docstrings of Python's own library. They are encoded by their words and parts of words, which needs no
model and no download, and a lexical index is stored beside the codes. So there are three searches: by code, by words
(BM25), and by both. Then docstrings get labels, the packages that they come from, a few at a time. The codes stay as
they are, and of the first ten hits of docstrings that are not stored, more and more come from the right package.

    pip install stillhash
    python examples/text.py
"""

import argparse
import ast
import importlib
import json
import random
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import stillhash
from stillhash import Answer
from stillhash.encoders import Document, index_documents, open_encoder, open_query_encoder

PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "urllib", "xml")
MIN_CHARACTERS = 60
QUERIES = 200
STEPS = (0, 50, 200, 400, 800)  # docstrings that have labels, at each step
QUESTION = "wait until a child process has ended"


def run(folder: Path) -> dict[str, Any]:
    """Index, search, label and search again; return the hits of a question, and P@10 at each step."""
    documents = [document for package in PACKAGES for document in read_docstrings(package)]
    random.Random(0).shuffle(documents)
    queries, stored = documents[:QUERIES], documents[QUERIES:]
    package = {document.id: document.metadata["package"] for document in documents}

    encoder = open_encoder("words")
    with stillhash.open(folder / "docstrings", encoder=encoder, lexical_field="text", init_rows=500) as collection:
        index_documents(stored, collection, encoder, chunk=0)  # one item each; long texts would be split into chunks

        query_encoder = open_query_encoder(collection)
        question = query_encoder.text(QUESTION)
        hits = {
            "by code": collection.search(question, k=3),
            "by words": collection.lexical_search(QUESTION, k=3),
            "by both": collection.hybrid_search(question, QUESTION, k=3),
        }

        features = encoder.encode_texts([document.text for document in queries])

        def precision(answers: list[Answer]) -> float:
            """Return P@10: the share of the first ten hits that come from the package of the query."""
            pages = zip(answers, queries, strict=True)
            right = [package[hit.id] == package[query.id] for answer, query in pages for hit in answer.hits]
            return round(float(np.mean(right)), 3)

        curve = [{"labelled": 0, "p10": precision(collection.search(features, k=10))}]
        for start, end in pairwise(STEPS):
            names = [document.id for document in stored[start:end]]
            collection.relabel(names, [[package[name]] for name in names])
            collection.flush()  # learn now, however few labels are pending
            curve.append({"labelled": end, "p10": precision(collection.search(features, k=10))})
    return {
        "documents": len(stored),
        "hits": {how: [hit.id for hit in answer.hits] for how, answer in hits.items()},
        "before": curve[0]["p10"],
        "after": curve[-1]["p10"],
        "curve": curve,
    }


def read_docstrings(package: str) -> list[Document]:
    """Return the docstrings of the classes, functions and methods of a package, from its source files."""
    documents = []
    folder = Path(importlib.import_module(package).__path__[0])
    for file in sorted(folder.rglob("*.py")):
        if "test" in file.parts:
            continue
        top = ast.parse(file.read_bytes()).body
        methods = [node for each in top if isinstance(each, ast.ClassDef) for node in each.body]
        for node in [*top, *methods]:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if len(text) >= MIN_CHARACTERS:
                    name = f"{file.relative_to(folder.parent).as_posix()}:{node.lineno} {node.name}"
                    documents.append(Document(name, text, [], {"package": package}))
    return documents


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a new folder for the collection; a temporary one without")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    options = parser.parse_args()
    if options.out and options.out.exists():
        parser.error(f"--out: expected a new folder, got {options.out}, which exists")
    with tempfile.TemporaryDirectory() as temporary:
        result = run(options.out or Path(temporary) / "text")
    if options.json:
        print(json.dumps(result))
        return
    print(f"{result['documents']:,} docstrings of {', '.join(PACKAGES)}")
    print(f"hits for {QUESTION!r}, before any label:")
    for how, names in result["hits"].items():
        print(f"  {how:9} " + f"\n{'':12}".join(names))
    print(f"{QUERIES} other docstrings as queries; a hit is right if it comes from the same package")
    print("docstrings with labels   P@10")
    for step in result["curve"]:
        print(f"{step['labelled']:22,}   {step['p10']:.3f}")


if __name__ == "__main__":
    main()
