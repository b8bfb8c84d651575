"""Encoders of texts that come as a folder of files: `sentence:FOLDER`, `static:FOLDER`, and what they share.

`static` is the mean of token vectors from a table, as WordLlama, model2vec and sentence-transformers ship them. The
folder has a tokenizer and a table in safetensors. A table of model2vec may have a weight for each token, and several
tokens may share a row. `static:wordllama` uses the files of the installed package wordllama, without importing it.
Tokens that the tokenizer does not know are left out; a text without any token becomes zeros.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from stillhash.encoders.base import TextOnly, check_output, check_texts, fingerprint, import_library
from stillhash.errors import InvalidInput, MissingExtra
from stillhash.numeric.validation import Floats

MAX_CONFIG_BYTES = 1 << 20
UNHASHED_SUFFIXES = (".md", ".gitattributes", ".png")  # files that features do not depend on
SENTENCE_VERSION = 1  # changes whenever the same model gives other features
STATIC_VERSION = 1  # changes whenever the same files give other features
WORDLLAMA = "wordllama"
WORDLLAMA_TABLE = "l2_supercat_256"
TABLE_NAMES = ("embeddings", "embedding.weight")  # of model2vec; of WordLlama and sentence-transformers
TABLE_FOLDERS = ("", "0_StaticEmbedding", "weights")
TOKENIZER_FOLDERS = ("", "0_StaticEmbedding", "tokenizers")
BLOCK_TEXTS_STATIC = 1024  # texts are tokenized at a time
BLOCK_TOKENS = 4096  # vectors are added at a time


Config = TypeVar("Config", dict[str, Any], list[Any])


def load_tokenizer(file: Path, name: str, extra: str = "text") -> Any:
    """Load a tokenizer.json that neither cuts texts nor fills them up."""
    tokenizers = import_library("tokenizers", extra, name)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain exceptions
        raise InvalidInput(f"encoder: {name!r}: {file.name}: expected a tokenizer: {str(error)[:300]}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_config(file: Path, name: str, kind: type[Config]) -> Config:
    """Read a JSON file of this type; an empty one if there is no such file."""
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_CONFIG_BYTES + 1)
        config = json.loads(data) if len(data) <= MAX_CONFIG_BYTES else None
    except FileNotFoundError:
        return kind()
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"encoder: {name!r}: {file.name}: expected JSON: {error}") from None
    if not isinstance(config, kind):
        raise InvalidInput(f"encoder: {name!r}: {file.name}: expected a JSON {kind.__name__}")
    return config


def hash_folder(folder: Path) -> str:
    """Hash the names and contents of all files in a folder, apart from descriptions and hidden files."""
    digest = hashlib.sha256()
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for each in sorted(files):
            if not each.startswith(".") and not each.endswith(UNHASHED_SUFFIXES):
                path = Path(root) / each
                with path.open("rb") as opened:
                    content = hashlib.file_digest(opened, "sha256").hexdigest()
                digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def normalise(features: Floats) -> Floats:
    """Divide rows by their lengths; a row of zeros stays."""
    lengths = np.sqrt(np.square(features, dtype=np.float64).sum(axis=1))
    return np.asarray(features / np.maximum(lengths, 1e-32)[:, None], np.float32)


class Sentence(TextOnly):
    """Encode by a model of sentence-transformers, read from a folder: nothing is fetched from a network.

    Texts go through it one by one, so that none is filled up to the length of another and a row is bitwise independent
    of the batch. A text that is longer than the model takes is cut by it.
    """

    def __init__(self, folder: str) -> None:
        self.name = f"sentence:{folder}"
        library = import_library("sentence_transformers", "sentence-transformers", self.name)
        path = Path(folder)
        if not (path / "modules.json").is_file() and not (path / "config.json").is_file():
            expected = "expected a folder with modules.json or config.json"
            raise InvalidInput(f"encoder: {self.name!r}: {expected}, got {folder!r}")
        try:
            with _quiet():
                model = library.SentenceTransformer(str(path.absolute()), device="cpu", local_files_only=True)
            self._model = model.eval()
        except Exception as error:  # files, names and shapes each fail in their own way
            reason = " ".join(str(error).split())[:300]
            raise InvalidInput(f"encoder: {self.name!r} cannot be loaded: {type(error).__name__}: {reason}") from None
        state = {"version": SENTENCE_VERSION, "files": hash_folder(path)}
        self.fingerprint = fingerprint({"encoder": "sentence", **state})
        self.dim = self._encode_one("text").shape[0]

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        rows = [self._encode_one(text) for text in check_texts(texts)]
        features = np.stack(rows) if rows else np.empty((0, self.dim), np.float32)
        return check_output(features, self.name, len(rows))

    def _encode_one(self, text: str) -> Floats:
        try:
            row = self._model.encode(text, batch_size=1, show_progress_bar=False, convert_to_numpy=True)
        except Exception as error:  # networks fail in ways of their own
            raise InvalidInput(f"encoder: {self.name!r} cannot encode {text[:50]!r}: {str(error)[:300]}") from None
        return np.asarray(row, np.float32)


@contextmanager
def _quiet() -> Iterator[None]:
    """Show no progress bar of weights, which are read in a moment."""
    logging = import_module("transformers.utils.logging")
    before = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            logging.enable_progress_bar()


class TokenTable(NamedTuple):
    """Vectors of tokens."""

    vectors: Floats  # (rows, dim)
    rows: NDArray[np.int64] | None  # (tokens,): the row of each token; None if it is the token's number
    weights: Floats | None  # (tokens,)


class Static(TextOnly):
    """Encode by the mean of token vectors."""

    def __init__(self, rest: str) -> None:
        self.name = f"static:{rest}"
        folder = _wordllama_folder(self.name) if rest == WORDLLAMA else Path(rest)
        if not folder.is_dir():
            raise InvalidInput(f"encoder: {self.name!r}: expected a folder, got {str(folder)!r}")
        table_file, tokenizer_file = _table_file(folder, self.name), _tokenizer_file(folder, self.name)
        self.tokenizer = load_tokenizer(tokenizer_file, self.name)
        self.table = _read_table(table_file, self.name)
        self.unit_length = _is_normalised(folder, self.name)
        self._unknown = _unknown_token(self.tokenizer)
        self._check_tokens()
        self.dim = self.table.vectors.shape[1]
        hashes = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (table_file, tokenizer_file)]
        state = {"version": STATIC_VERSION, "files": hashes, "normalise": self.unit_length}
        self.fingerprint = fingerprint({"encoder": "static", **state})

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        checked = check_texts(texts)
        features = np.zeros((len(checked), self.dim), np.float32)
        for start in range(0, len(checked), BLOCK_TEXTS_STATIC):
            encodings = self.tokenizer.encode_batch_fast(
                checked[start : start + BLOCK_TEXTS_STATIC], add_special_tokens=False
            )
            for row, encoding in zip(features[start:], encodings, strict=False):
                self._add_tokens(row, np.array(encoding.ids, np.int64))
        return check_output(normalise(features) if self.unit_length else features, self.name, len(checked))

    def _add_tokens(self, row: Floats, tokens: NDArray[np.int64]) -> None:
        """Set a row of zeros to the mean of these tokens' vectors, added in their order."""
        if self._unknown is not None:
            tokens = tokens[tokens != self._unknown]
        vectors, rows, weights = self.table
        for start in range(0, len(tokens), BLOCK_TOKENS):
            block = tokens[start : start + BLOCK_TOKENS]
            added = vectors[block if rows is None else rows[block]]
            if weights is not None:
                added *= weights[block][:, None]
            row += added.sum(axis=0)
        row /= np.float32(max(1, len(tokens)))

    def _check_tokens(self) -> None:
        """Check that each token has a row, so that no text can name another."""
        vectors, rows, weights = self.table
        tokens = 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        lengths = [len(array) for array in (vectors if rows is None else rows, weights) if array is not None]
        if tokens == 0 or min(lengths) < tokens:
            expected = f"expected a tokenizer with 1 to {min(lengths)} tokens, as the table has, got {tokens}"
            raise InvalidInput(f"encoder: {self.name!r}: {expected}")


def _wordllama_folder(name: str) -> Path:
    spec = find_spec(WORDLLAMA)  # does not import it
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(f"encoder: {name!r} needs {WORDLLAMA}: pip install wordllama 'stillhash[text]'")
    return Path(next(iter(spec.submodule_search_locations)))


def _table_file(folder: Path, name: str) -> Path:
    """Return model.safetensors, WordLlama's table of 256 numbers, or the only table there is."""
    files = [file for each in TABLE_FOLDERS for file in sorted((folder / each).glob("*.safetensors"))]
    usual = [file for file in files if file.stem in ("model", WORDLLAMA_TABLE)]
    if len(usual or files) == 1 or (usual and usual[0].stem == "model"):
        return (usual or files)[0]
    listed = ", ".join(file.name for file in files[:5]) or "none"
    raise InvalidInput(f"encoder: {name!r}: expected model.safetensors, or one other table, got {listed}")


def _tokenizer_file(folder: Path, name: str) -> Path:
    """Return tokenizer.json, or the only file that WordLlama names after its model."""
    usual = [folder / each / "tokenizer.json" for each in TOKENIZER_FOLDERS]
    others = [file for each in TOKENIZER_FOLDERS for file in sorted((folder / each).glob("*_tokenizer_config.json"))]
    present = [file for file in usual if file.is_file()]
    if present or len(others) == 1:
        return (present or others)[0]
    listed = ", ".join(file.name for file in others[:5]) or "none"
    raise InvalidInput(f"encoder: {name!r}: expected tokenizer.json, got {listed}")


def _is_normalised(folder: Path, name: str) -> bool:
    """Return what the configuration says: `normalize` of model2vec, or a module of sentence-transformers."""
    config = read_config(folder / "config.json", name, dict)
    if isinstance(config.get("normalize"), bool):
        return bool(config["normalize"])
    modules = read_config(folder / "modules.json", name, list)
    return any(isinstance(module, dict) and str(module.get("type")).endswith("Normalize") for module in modules)


def _read_table(file: Path, name: str) -> TokenTable:
    try:
        tensors = safetensors.numpy.load_file(file)
    except (safetensors.SafetensorError, OSError, KeyError, TypeError) as error:  # a type that NumPy has not
        raise InvalidInput(f"encoder: {name!r}: {file.name}: expected tensors that NumPy has: {error}") from None
    table = next((tensors[each] for each in TABLE_NAMES if each in tensors), None)
    if table is None or table.ndim != 2 or not all(table.shape) or table.dtype.kind not in "fi":
        got = ", ".join(f"{each} {array.dtype} {array.shape}" for each, array in list(tensors.items())[:5])
        raise InvalidInput(f"encoder: {name!r}: expected a table {' or '.join(TABLE_NAMES)}, got {got or 'none'}")
    weights, mapping = tensors.get("weights"), tensors.get("mapping")
    if weights is not None and (weights.ndim != 1 or weights.dtype.kind != "f"):
        raise InvalidInput(f"encoder: {name!r}: weights: expected one number for each token, got {weights.shape}")
    if mapping is not None and (mapping.ndim != 1 or mapping.dtype.kind not in "iu"):
        raise InvalidInput(f"encoder: {name!r}: mapping: expected one row for each token, got {mapping.shape}")
    rows = None if mapping is None else mapping.astype(np.int64)
    if rows is not None and not (len(rows) and rows.min() >= 0 and rows.max() < len(table)):
        raise InvalidInput(f"encoder: {name!r}: mapping: expected rows from 0 to {len(table) - 1}, got others")
    arrays = [table.astype(np.float32), None if weights is None else weights.astype(np.float32)]
    if not all(np.isfinite(array).all() for array in arrays if array is not None):
        raise InvalidInput(f"encoder: {name!r}: {file.name}: expected finite numbers, got NaN or infinity")
    return TokenTable(np.ascontiguousarray(arrays[0]), rows, arrays[1])


def _unknown_token(tokenizer: Any) -> int | None:
    """Return the number of the token that stands for all unknown ones."""
    model = json.loads(tokenizer.to_str())["model"]
    if isinstance(model.get("unk_id"), int):
        return int(model["unk_id"])
    number = tokenizer.token_to_id(model["unk_token"]) if isinstance(model.get("unk_token"), str) else None
    return None if number is None else int(number)
