"""`sentence:FOLDER`: encode texts by a model of sentence-transformers, read from a folder.

Nothing is fetched from a network: the folder must have all files of the model. Texts go through it one by one, so that
none is filled up to the length of another and a row is bitwise independent of the batch. A text that is longer than the
model takes is cut by it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import numpy as np

from stillhash.encoders.base import TextOnly, check_output, check_texts, fingerprint, import_library
from stillhash.encoders.text_models import hash_folder
from stillhash.errors import InvalidInput
from stillhash.numeric.validation import Floats

SENTENCE_VERSION = 1  # changes whenever the same model gives other features


class Sentence(TextOnly):
    """Encode by a model of sentence-transformers."""

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
