"""Uploads of the search page: a vector, an image or a text to search for."""

from fastapi import Request
from starlette.datastructures import FormData, UploadFile

from stillhash.collection.validation import picture_type
from stillhash.errors import InvalidInput
from stillhash.numeric.validation import check_features
from stillhash.server.dependencies import app_state
from stillhash.server.pages.rendering import form_text, read_form
from stillhash.server.query_cache import Picture, UploadedQuery, parse_code, parse_vector
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
