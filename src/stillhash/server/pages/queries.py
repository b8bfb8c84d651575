"""What a visitor searches for, and how: the query of a search page, and the options beside it in the address."""

import io
import json
import re
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlencode

import numpy as np
from fastapi import Request
from starlette.datastructures import FormData, QueryParams, UploadFile

from stillhash.collection import Collection, Hit, Item
from stillhash.collection.filters.language import compile_filter
from stillhash.collection.types import Filter
from stillhash.collection.validation import CodeInput, picture_type
from stillhash.errors import InvalidInput, NotFound, TooLarge
from stillhash.io import check_npy
from stillhash.numeric.validation import Floats, check_features
from stillhash.server.bodies import max_row_characters
from stillhash.server.dependencies import app_state
from stillhash.server.page_state import Picture, UploadedQuery
from stillhash.server.pages.rendering import form_text, parse_integer, read_form, templates
from stillhash.server.write_queue import CollectionExecutor

COLUMN_HITS = 12  # of a page, unless its address says otherwise
MAX_PAGE_HITS = 60  # of one page; further ones are on the next pages
MAX_PAGES = 20
MAX_PAGE_FILTERS = 16

PageParams = QueryParams | FormData  # of an address, or of a form


class PageOptions(NamedTuple):
    """What the address of a search page says beside the query."""

    against: int = 0  # the version that is compared with
    balance: float | None = None  # of similarity and labels; None follows from the evidence
    filters: tuple[str, ...] = ()  # conditions as JSON; hits meet all of them
    hits: int = COLUMN_HITS  # of a page
    page: int = 1
    before: str = ""  # "show" or "hide" the version that is compared with; otherwise it is hidden on a phone

    @classmethod
    def parse(cls, params: PageParams) -> Self:
        """Read the options of an address or a form; those that it has not keep their defaults."""
        texts = {name: form_text(params, name) for name in ("against", "balance", "hits", "page", "before")}
        filters = tuple(dict.fromkeys(text for text in params.getlist("filter") if isinstance(text, str) and text))
        if len(filters) > MAX_PAGE_FILTERS:
            raise InvalidInput(f"filter: expected at most {MAX_PAGE_FILTERS}, got {len(filters)}")
        for text in filters:
            compile_filter(_parse_filter(text))
        return cls(
            parse_integer(texts["against"] or "0", "against"),
            _parse_balance(texts["balance"]) if texts["balance"] else None,
            filters,
            max(1, min(MAX_PAGE_HITS, parse_integer(texts["hits"], "hits"))) if texts["hits"] else COLUMN_HITS,
            max(1, min(MAX_PAGES, parse_integer(texts["page"] or "1", "page"))),
            texts["before"] if texts["before"] in ("show", "hide") else "",
        )

    @property
    def last(self) -> int:
        """The rank of the last hit of this page."""
        return self.page * self.hits

    @property
    def where(self) -> Filter | None:
        """The condition that hits meet; None: all items."""
        conditions = [_parse_filter(text) for text in self.filters]
        return None if not conditions else conditions[0] if len(conditions) == 1 else {"$and": conditions}

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of an address that differ from the defaults."""
        values = {"against": str(self.against), "filter": list(self.filters), "hits": str(self.hits)}
        values |= {"page": str(self.page), "before": self.before}
        defaults: dict[str, Any] = {"against": "0", "filter": [], "hits": str(COLUMN_HITS), "page": "1", "before": ""}
        values |= {} if self.balance is None else {"balance": f"{self.balance:g}"}
        return {name: value for name, value in values.items() if value != defaults.get(name)}


class PageQuery(NamedTuple):
    vector: Floats | None  # None for words alone
    name: str  # the item's id as JSON, the token of an upload, or the words
    item: Item | None
    title: str
    words: str | None = None  # that a visitor typed
    lexical_field: str | None = None  # whose words are searched for, too

    @property
    def params(self) -> dict[str, str]:
        """The parameters that name it in addresses."""
        if self.words is not None:
            return {"words": self.words}
        return {"like": self.name} if self.item is not None else {"q": self.name}

    @property
    def kind(self) -> str:
        """What the hits are, for people."""
        if self.words is None:
            return "Similar to item" if self.item is not None else "Similar to your upload"
        if self.vector is None:
            return "Items with these words"
        return "Similar to these words" if self.lexical_field is None else "Similar to these words, or with them"

    @property
    def labels(self) -> list[Any]:
        return self.item.labels if self.item is not None else []

    def is_item(self, hit: Hit) -> bool:
        """Return whether this hit is the query's own item; 1 and "1" and true are different ids."""
        return self.item is not None and hit.id == self.item.id and type(hit.id) is type(self.item.id)


def page_address(name: str, params: dict[str, Any], options: PageOptions | None = None, **changed: Any) -> str:
    """Return the address of a search page: of a query's parameters, and of options with these changed."""
    beside = {} if options is None else options._replace(**changed).params
    query = urlencode(params | beside, doseq=True)
    return f"/c/{quote(name)}?{query}" if query else f"/c/{quote(name)}"


templates.env.globals["page_address"] = page_address


async def read_query(request: Request, executor: CollectionExecutor, params: PageParams) -> PageQuery:
    """Return the query that an address or a form names: an item (`like`), words, or an upload (`q`)."""
    like, words, token = (form_text(params, field) for field in ("like", "words", "q"))
    if like:
        return await executor.read(lambda c: item_query(c, like))
    if not words:
        upload = app_state(request).query_cache.get(executor.name, token)
        return PageQuery(upload.vector, token, None, upload.title)
    typed, encoder, vector = words.strip(), executor.query_encoder, None
    if encoder is not None and encoder.has_text:
        vector = await executor.encode_query(typed)
    elif not await executor.read(lambda c: c.lexical_field is not None):
        raise InvalidInput("words: expected a collection with an encoder of texts, or a lexical field")
    return await executor.read(lambda c: PageQuery(vector, f"words {typed}", None, typed, typed, c.lexical_field))


def item_query(collection: Collection, text: str) -> PageQuery:
    item = find_item(collection, text)
    return PageQuery(collection.reconstruct([item.id])[0], json.dumps(item.id), item, str(item.id))


def find_item(collection: Collection, text: str) -> Item:
    """Find an item by its id as JSON, or as a visitor typed it."""
    ids: list[Any] = [text] if text and text.isprintable() else []
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if (type(parsed) is int and abs(parsed) < 2**63) or (type(parsed) is str and parsed and parsed.isprintable()):
        ids.insert(0, parsed)
    item = next((item for item in collection.get(ids) if item is not None), None)
    if item is None:
        raise NotFound(f"No item {text if len(text) < 80 else text[:80] + '…'!r}")
    return item


def _parse_filter(text: str) -> Filter:
    try:
        condition = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"filter: expected a condition as JSON: {error}") from None
    if not isinstance(condition, dict):
        raise InvalidInput(f"filter: expected a condition as a JSON object, got {type(condition).__name__}")
    return condition


def _parse_balance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise InvalidInput(f"balance: expected a number in [0, 1], got {text[:40]!r}")
    return value


# ---- uploads ----

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
