"""Uploads of the search page: a vector, an image or a text to search for."""

import io
import json
import re
from typing import Any

import numpy as np
from fastapi import Request
from starlette.datastructures import FormData, UploadFile

from stillhash.collection.input_rows import CodeInput
from stillhash.collection.validation import picture_type
from stillhash.errors import InvalidInput, TooLarge
from stillhash.io import check_npy
from stillhash.numeric.validation import check_features
from stillhash.server.dependencies import app_state
from stillhash.server.pages.rendering import form_text, read_form
from stillhash.server.query_cache import Picture, UploadedQuery
from stillhash.server.request_body import max_row_characters
from stillhash.server.write_queue import CollectionExecutor

MAX_UPLOAD_BYTES = 8 << 20


async def store_upload(request: Request, executor: CollectionExecutor) -> str:
    """Read the form of an upload, and return the token that names it in addresses."""
    state = app_state(request)
    form = await read_form(request, min(MAX_UPLOAD_BYTES, state.settings.max_body_bytes))
    try:
        return state.query_cache.put(executor.name, await _uploaded_query(executor, form))
    finally:
        await form.close()


async def _uploaded_query(executor: CollectionExecutor, form: FormData) -> UploadedQuery:
    file, numbers, words = form.get("file"), form_text(form, "numbers"), form_text(form, "words").strip()
    if words:
        return UploadedQuery(await executor.encode_query(words), words, None)
    data, title = b"", ""
    if isinstance(file, UploadFile):
        data, title = await file.read(), file.filename or "a file"
    data, title = (data, title) if data else (numbers.encode(), "pasted numbers")
    if not data.strip():
        raise InvalidInput("file: expected a file or a list of numbers, got nothing")
    kind = picture_type(data)
    if executor.collection.codes_only:
        return UploadedQuery(parse_code(data, executor.collection.bits), title, None)
    if kind is None:
        vector = await executor.read(lambda c: parse_vector(data, c.dim))
    else:
        vector = await executor.encode_query(data)
    (features,) = check_features(vector[None], "file", columns=executor.collection.dim, whose="this collection")
    return UploadedQuery(features, title, None if kind is None else Picture(data, kind))


def parse_vector(data: bytes, dim: int) -> Any:
    """Parse the numbers (D,) of an .npy file, a JSON list or a row of text; the values are not validated yet."""
    is_npy = data.startswith(b"\x93NUMPY")
    if not is_npy and len(data) > max_row_characters(dim):
        raise TooLarge(f"file: expected text of at most {max_row_characters(dim)} bytes, got {len(data)}")
    try:
        array = _load_npy(data) if is_npy else _parse_text(data.decode("utf-8-sig").strip())
    except UnicodeDecodeError:
        raise InvalidInput("file: expected an .npy array, or text with numbers") from None
    except (ValueError, EOFError, OSError, MemoryError, RecursionError, OverflowError) as error:
        raise InvalidInput(f"file: expected one row of numbers: {error}") from None
    if array.ndim != 1 and array.shape[:-1] != (1,):
        raise InvalidInput(f"file: expected one row of numbers, got an array of shape {array.shape}")
    return array.reshape(-1)


def parse_code(data: bytes, bits: int) -> Any:
    """Parse a ready code (bytes,): an .npy file of uint8, or hexadecimal digits."""
    try:
        value = _load_npy(data) if data.startswith(b"\x93NUMPY") else data.decode("utf-8-sig").strip()
    except (ValueError, EOFError, OSError, MemoryError, RecursionError, OverflowError) as error:
        raise InvalidInput(f"file: expected a code of {bits} bits in hexadecimal digits: {error}") from None
    codes, _ = CodeInput(bits).codes(value, "file")
    if len(codes) != 1:
        raise InvalidInput(f"file: expected one code, got {len(codes)}")
    return codes[0]


def _load_npy(data: bytes) -> Any:
    file = io.BytesIO(data)
    check_npy(file, len(data))
    return np.load(file, allow_pickle=False)


def _parse_text(text: str) -> Any:
    if text.startswith("["):
        return np.asarray(json.loads(text))
    rows = [line for line in text.splitlines() if line.strip()]
    if len(rows) != 1:
        raise ValueError(f"the text has {len(rows)} rows")
    return np.array([float(word) for word in re.split(r"[\s,;]+", rows[0].strip(" \t,;"))])
