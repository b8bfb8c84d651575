"""What every encoder of texts promises, and that fast encoders equal their slow twins."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stillhash.encoders import Encoder, is_text_encoder, open_encoder
from stillhash.encoders.base import MAX_TEXT_CHARACTERS
from stillhash.errors import InvalidInput, MissingExtra, TooLarge, WrongType
from tests.encoders.text_models import (
    SAMPLE_WORDS,
    TEXTS,
    static_row,
    words_row,
    write_onnx_text,
    write_sentence,
    write_static,
)

NAMES = ("words", "static", "static-weighted", "static-wordllama", "onnx-text", "onnx-text-cls", "sentence")
ANY_TEXT = st.lists(st.one_of(st.sampled_from(SAMPLE_WORDS), st.text(max_size=12)), max_size=30).map(" ".join)


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "model"
    if request.param == "words":
        return "words"
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    if request.param == "sentence":
        pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
        return f"sentence:{write_sentence(folder)}"
    if request.param.startswith("onnx"):
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
        cls = request.param.endswith("cls")
        return f"onnx-text:{write_onnx_text(folder, types=not cls, pooling='cls' if cls else 'mean')}"
    layout = request.param.partition("-")[2] or "model2vec"
    return f"static:{write_static(folder, layout=layout)}"


@pytest.fixture(scope="module")
def encoder(name: str) -> Encoder:
    return open_encoder(name)


def test_shape_and_kind(encoder: Encoder, name: str) -> None:
    features = encoder.encode_texts(TEXTS)
    assert encoder.name == name and encoder.has_text is True and is_text_encoder(name)
    assert features.shape == (len(TEXTS), encoder.dim) and features.dtype == np.float32
    assert features.flags.c_contiguous and np.isfinite(features).all()
    assert len(np.unique(features[[0, 1, 4]], axis=0)) == 3
    assert encoder.encode_texts([]).shape == (0, encoder.dim) and encoder.encode_texts([]).dtype == np.float32


def test_the_same_each_time(encoder: Encoder, name: str) -> None:
    once, again = encoder.encode_texts(TEXTS), encoder.encode_texts(tuple(TEXTS))
    np.testing.assert_array_equal(once, again)
    reopened = open_encoder(name)
    assert reopened.fingerprint == encoder.fingerprint and re.fullmatch("[0-9a-f]{64}", encoder.fingerprint)
    np.testing.assert_array_equal(once, reopened.encode_texts(TEXTS))


def test_a_row_does_not_depend_on_its_batch(encoder: Encoder) -> None:
    whole = encoder.encode_texts(TEXTS * 3)
    np.testing.assert_array_equal(whole, np.concatenate([encoder.encode_texts([text]) for text in TEXTS * 3]))
    np.testing.assert_array_equal(whole[: len(TEXTS)], encoder.encode_texts(TEXTS[::-1])[::-1])


def test_images_are_refused(encoder: Encoder) -> None:
    with pytest.raises(InvalidInput, match=rf"^encoder: .*{re.escape(encoder.name)}"):
        encoder.encode([])


@pytest.mark.parametrize("texts", ["one text", [b"bytes"], [None], 5, ["fine", 3]])
def test_what_is_no_text_is_refused(encoder: Encoder, texts: Any) -> None:
    with pytest.raises(WrongType, match=r"^texts"):
        encoder.encode_texts(texts)


def test_texts_that_cannot_be_encoded_are_refused(encoder: Encoder) -> None:
    with pytest.raises(InvalidInput, match=r"^texts\[1\].*surrogate"):
        encoder.encode_texts(["fine", "half \ud800 a pair"])
    with pytest.raises(TooLarge, match=r"^texts\[0\]"):
        encoder.encode_texts(["x" * (MAX_TEXT_CHARACTERS + 1)])


def test_features_are_the_same_in_another_process(encoder: Encoder, name: str) -> None:
    script = (
        "import sys; from stillhash.encoders import open_encoder; from tests.encoders.text_models import TEXTS;"
        "e = open_encoder(sys.argv[1]); print(e.fingerprint, e.encode_texts(TEXTS).tobytes().hex());"
        "assert 'PIL' not in sys.modules"
    )
    if name.startswith("sentence"):  # transformers imports Pillow where it is installed
        script = script.partition("assert")[0]
    done = subprocess.run(
        [sys.executable, "-c", script, name],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == [encoder.fingerprint, encoder.encode_texts(TEXTS).tobytes().hex()]


@settings(max_examples=60, deadline=None)
@given(st.lists(ANY_TEXT, max_size=6))
def test_words_equal_their_slow_twin(texts: list[str]) -> None:
    expected = [words_row(text) for text in texts]
    np.testing.assert_array_equal(open_encoder("words").encode_texts(texts), np.array(expected).reshape(-1, 256))


def test_words_do_not_change() -> None:
    """Features of this version are in collections: other ones need a new WORDS_VERSION."""
    row = open_encoder("words").encode_texts(["The courier lost my parcel"])[0]
    assert abs(float(np.linalg.norm(row)) - 1) < 1e-6
    assert row[:4].tolist() == [0.05465494468808174, 0.07244957238435745, 0.0, 0.0]


def test_words_of_one_kind_are_similar() -> None:
    rows = open_encoder("words").encode_texts(["lost parcels", "the parcel is lost", "password reset", "密码重置"])
    assert rows[0] @ rows[1] > 0.3 > abs(rows[0] @ rows[2]) and abs(rows[2] @ rows[3]) < 0.3


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[Encoder]:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    folder = tmp_path_factory.mktemp("tables")
    paths = [write_static(folder / layout, layout=layout) for layout in ("model2vec", "weighted", "wordllama")]
    return [open_encoder(f"static:{path}") for path in paths]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(ANY_TEXT, max_size=6))
def test_tables_equal_their_slow_twin(tables: list[Encoder], texts: list[str]) -> None:
    for encoder in tables:
        expected = np.array([static_row(encoder, text) for text in texts]).reshape(-1, encoder.dim)
        np.testing.assert_allclose(encoder.encode_texts(texts), expected, atol=2e-6)


def test_sentences_need_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    folder, calls = write_sentence(tmp_path / "small"), list[Any]()
    monkeypatch.setattr("socket.socket.connect", lambda _, address: calls.append(address))
    monkeypatch.setattr("socket.getaddrinfo", lambda *names, **_: calls.append(names))
    assert open_encoder(f"sentence:{folder}").dim == 16 and calls == []
    for missing in ("all-MiniLM-L6-v2", str(tmp_path)):
        with pytest.raises(InvalidInput, match=r"^encoder: 'sentence:.*expected a folder"):
            open_encoder(f"sentence:{missing}")
    (folder / "modules.json").write_text("[", encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"^encoder: 'sentence:.*cannot be loaded"):
        open_encoder(f"sentence:{folder}")
    assert calls == []


MINILM = os.environ.get("STILLHASH_MINILM", "")  # a folder with all-MiniLM-L6-v2


@pytest.mark.skipif(not MINILM, reason="STILLHASH_MINILM names no folder")
def test_minilm_understands_sentences() -> None:
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    encoder = open_encoder(f"sentence:{MINILM}")
    rows = encoder.encode_texts(["My parcel has not arrived", "Where is the package?", "I forgot my password"])
    assert encoder.dim == 384 and rows[0] @ rows[1] > rows[0] @ rows[2] + 0.1


# ---- files ----


def test_how_token_vectors_become_one(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    rows = {}
    for pooling in ("mean", "cls"):
        folder = write_onnx_text(tmp_path / pooling, pooling=pooling, normalize=False)
        tokens = [open_encoder(f"onnx-text:{folder}").encode_texts([word])[0] for word in ("red", "boat")]
        rows[pooling] = open_encoder(f"onnx-text:{folder}").encode_texts(["red boat"])[0], *tokens
    np.testing.assert_allclose(rows["mean"][0], (rows["mean"][1] + rows["mean"][2]) / 2, rtol=1e-6)
    np.testing.assert_array_equal(rows["cls"][0], rows["cls"][1])
    folder = write_onnx_text(tmp_path / "transformers")  # no sidecar: the files of sentence-transformers
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}', encoding="utf-8")
    (folder / "modules.json").write_text('[{"type": "x.Transformer"}, {"type": "x.Pooling"}]', encoding="utf-8")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 2}', encoding="utf-8")
    encoder: Any = open_encoder(f"onnx-text:{folder}")
    assert (encoder.pooling.pooling, encoder.pooling.normalize, encoder.pooling.max_tokens) == ("cls", False, 2)
    np.testing.assert_array_equal(encoder.encode_texts(["red boat"])[0], rows["cls"][0])


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.onnx", "x"),
        ("model.json", "[]"),
        ("model.json", '{"pooling": "max"}'),
        ("model.json", '{"size": 3}'),
        ("model.json", '{"max_tokens": true}'),
        ("model.json", '{"output": "other"}'),
        ("tokenizer.json", "{}"),
        ("sentence_bert_config.json", '{"max_seq_length": -1}'),
        ("1_Pooling/config.json", '{"pooling_mode_max_tokens": true}'),
    ],
)
def test_damaged_onnx_folders_are_refused(file: str, content: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    folder = write_onnx_text(tmp_path / "model")
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(content, encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"^encoder: 'onnx-text:"):
        open_encoder(f"onnx-text:{folder}")


def test_fingerprints_follow_the_files(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    one, other = (write_static(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    raw = write_static(tmp_path / "raw", normalize=False)
    prints = [open_encoder(f"static:{path}").fingerprint for path in (one, other, raw)]
    assert len(set(prints)) == 3
    lengths = np.linalg.norm(open_encoder(f"static:{raw}").encode_texts(["red boat", "dog"]), axis=1)
    assert (abs(lengths - 1) > 1e-3).all()


def test_damaged_tables_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    import safetensors.numpy

    damages: dict[str, Any] = {
        "model.safetensors": [b"", b"\x08\0\0\0\0\0\0\0{}      ", b"\xff" * 64],
        "tokenizer.json": [b"", b"{}", b"\xff\xfe"],
        "config.json": [b"[", b"[]"],
    }
    for file, contents in damages.items():
        for at, content in enumerate(contents):
            folder = write_static(tmp_path / f"{file}{at}")
            (folder / file).write_bytes(content)
            with pytest.raises(InvalidInput, match=r"^encoder: 'static:"):
                open_encoder(f"static:{folder}")
    tokens = len(SAMPLE_WORDS) + 3
    good = np.ones((tokens, 4), np.float32)
    for at, tensors in enumerate(
        [
            {"other": good},
            {"embeddings": good[0]},
            {"embeddings": good[:3]},
            {"embeddings": good * np.nan},
            {"embeddings": good, "weights": np.ones(3, np.float32)},
            {"embeddings": good, "weights": good},
            {"embeddings": good, "mapping": np.full(tokens, tokens)},
            {"embeddings": good, "mapping": np.full(tokens, -1)},
        ]
    ):
        folder = write_static(tmp_path / f"tensors{at}")
        safetensors.numpy.save_file(tensors, folder / "model.safetensors")
        with pytest.raises(InvalidInput, match=r"^encoder: 'static:"):
            open_encoder(f"static:{folder}")
    with pytest.raises(InvalidInput, match="expected a folder"):
        open_encoder(f"static:{tmp_path / 'none'}")


def test_the_installed_wordllama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "wordllama", raising=False)
    write_static(tmp_path / "wordllama", layout="wordllama")
    (tmp_path / "wordllama" / "__init__.py").write_text("raise ImportError('a hub')", encoding="utf-8")
    importlib.invalidate_caches()
    assert open_encoder("static:wordllama").dim == 12


@pytest.mark.parametrize(
    ("name", "hidden", "extra"),
    [
        ("static:{}", "tokenizers", "text"),
        ("sentence:{}", "sentence_transformers", "sentence-transformers"),
        ("onnx-text:{}", "onnxruntime", "onnx-text"),
        ("static:wordllama", "wordllama", "text"),
    ],
)
def test_a_missing_library_is_named(
    name: str, hidden: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    folder = write_static(tmp_path / "model")
    monkeypatch.setitem(sys.modules, hidden, None)  # importing it fails
    if hidden == "wordllama":
        monkeypatch.setattr(import_module("stillhash.encoders.text_models"), "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=rf"{hidden}.*pip install .*'stillhash\[{extra}\]'"):
        open_encoder(name.format(folder))
