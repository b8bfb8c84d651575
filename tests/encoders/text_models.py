"""Tiny text models for tests: tables of token vectors, a transformer, an ONNX graph, and their slow twins."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from stillhash.encoders import words

SAMPLE_WORDS = ["the", "a", "cat", "dog", "boat", "red", "blue", "parcel", "late", "courier", "refund", "sail"]
TEXTS = [
    "the red boat",
    "a cat and a dog",
    "",
    "   \n\t ",
    "PARCEL late, courier; parcel!",
    "unknown zebra words",
    "the " * 3000,
    "Grüße aus Köln, naïve café",
    "小包が遅れています",
    "emoji 🚤 and e\u0301 combining",
]


def write_tokenizer(path: Path, *, special: bool = False) -> Path:
    """Write a tokenizer of whole words, of which some are known; with a special token before them, or without."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {token: at for at, token in enumerate(["[UNK]", "[PAD]", "[CLS]", *SAMPLE_WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    tokenizer.save(str(path))
    return path


def write_static(folder: Path, *, layout: str = "model2vec", dim: int = 12, seed: int = 0, **config: Any) -> Path:
    """Write a table as model2vec, model2vec with weights and shared rows, or WordLlama ships it."""
    rng, tokens = np.random.default_rng(seed), len(SAMPLE_WORDS) + 3
    folder.mkdir(parents=True, exist_ok=True)
    if layout == "wordllama":
        (folder / "weights").mkdir()
        (folder / "tokenizers").mkdir()
        write_tokenizer(folder / "tokenizers" / "l2_supercat_tokenizer_config.json")
        table = rng.normal(size=(tokens, dim)).astype(np.float16)
        safetensors.numpy.save_file({"embedding.weight": table}, folder / "weights" / "l2_supercat_256.safetensors")
        return folder
    write_tokenizer(folder / "tokenizer.json")
    tensors = {"embeddings": rng.normal(size=(tokens, dim)).astype(np.float32)}
    if layout == "weighted":
        tensors["embeddings"] = tensors["embeddings"][: tokens // 2]
        tensors["weights"] = rng.random(tokens).astype(np.float32)
        tensors["mapping"] = rng.integers(0, tokens // 2, tokens).astype(np.int64)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"normalize": True, **config}), encoding="utf-8")
    return folder


def static_row(encoder: Any, text: str) -> np.ndarray[Any, Any]:
    """Return the features of one text, token by token."""
    vectors, rows, weights = encoder.table
    total, count = np.zeros(encoder.dim), 0
    for token, number in zip(*(lambda e: (e.tokens, e.ids))(encoder.tokenizer.encode(text)), strict=True):
        if token == "[UNK]":
            continue
        vector = vectors[number if rows is None else rows[number]]
        total += vector if weights is None else vector * weights[number]
        count += 1
    mean = total / max(1, count)
    length = math.sqrt(sum(value * value for value in mean))
    return np.asarray(mean / length if encoder.unit_length and length else mean, np.float32)


def words_row(text: str) -> np.ndarray[Any, Any]:
    """Return the features of `words` of one text, part by part, in integers of any size."""
    row = [0] * words.WORDS_DIM
    for word, count in words.count_words(text).items():
        for number, weight in word_hashes(word):
            first, second = mix(number), mix(number ^ 0xA5A5A5A5 << 32)
            for place in range(words.PLACES):
                sign = 1 if second >> place & 1 else -1
                row[first >> 8 * place & 255] += sign * weight * math.isqrt(words.UNIT * words.UNIT * count)
    length = math.sqrt(max(1, sum(value * value for value in row)))
    return np.array([value / length for value in row], np.float32)


def word_hashes(word: str) -> list[tuple[int, int]]:
    """Return hash and weight of a word and of its parts."""
    marked = f"<{word}>"
    dense = words.DENSE_SCRIPTS.search(word) is not None
    sizes = words.DENSE_GRAM_SIZES if dense else words.GRAM_SIZES
    parts = [marked[at : at + size] for size in sizes for at in range(len(marked) - size + 1)]
    whole = words.UNIT if dense or len(word) > 3 else {1: 16, 2: 16, 3: 32}[len(word)]
    weight = max(1, round(words.PARTS_WEIGHT * whole / math.sqrt(max(1, len(parts)))))
    return [(polynomial(marked), whole)] + [((polynomial(part) + (len(part) << 56)) % 2**64, weight) for part in parts]


def polynomial(text: str) -> int:
    total = 0
    for character in text:
        total = (total * int(words.HASH_BASE) + ord(character)) % 2**64
    return total


def mix(number: int) -> int:
    """Return SplitMix64 of a number."""
    mask = (1 << 64) - 1
    number = (number + 0x9E3779B97F4A7C15) & mask
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & mask
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & mask
    return number ^ number >> 31


def write_onnx_text(folder: Path, *, types: bool = True, dim: int = 6, **sidecar: Any) -> Path:
    """Write a model whose token vectors are rows of a table, plus the token's type, times the mask."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder / "tokenizer.json")
    table = np.random.default_rng(3).normal(size=(len(SAMPLE_WORDS) + 3, dim)).astype(np.float32)
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if types else [])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "t"]) for name in names]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["vectors"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "axis"], ["wide"]),
        helper.make_node("Mul", ["vectors", "wide"], ["last_hidden_state"]),
    ]
    graph = helper.make_graph(
        nodes,
        "text",
        inputs,
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["n", "t", dim])],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([2]), "axis")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    if sidecar:
        (folder / "model.json").write_text(json.dumps(sidecar), encoding="utf-8")
    return folder


def write_sentence(folder: Path) -> Path:
    """Write a transformer of one small layer with random weights, in the files of sentence-transformers."""
    import torch
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    folder.mkdir(parents=True)
    file = str(write_tokenizer(folder / "tokenizer.json", special=True))
    PreTrainedTokenizerFast(tokenizer_file=file, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(SAMPLE_WORDS) + 3, max_position_embeddings=64, **sizes)).save_pretrained(folder)
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    configs: dict[str, Any] = {
        "modules.json": [
            {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for at, (kind, path) in enumerate(modules)
        ],
        "sentence_bert_config.json": {"max_seq_length": 32, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True},
    }
    (folder / "1_Pooling").mkdir()
    for name, config in configs.items():
        (folder / name).write_text(json.dumps(config), encoding="utf-8")
    return folder
