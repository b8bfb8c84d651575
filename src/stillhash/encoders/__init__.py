"""Encode images and texts to feature vectors, index files of them as collections, and encode queries.

An encoder is opened by its name and is the same function wherever it is opened: its fingerprint tells whether features
made elsewhere, or last year, may be compared with its own. Untrusted image bytes are decoded only in `pixels`.
"""

from importlib import import_module

from stillhash.encoders.base import ENCODER_NAMES, Encoder, is_text_encoder, open_encoder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stillhash.encoders.documents import (
        BrokenDocument,
        Document,
        TextChunk,
        decode_text,
        folder_documents,
        read_text,
        split_text,
        table_documents,
    )
    from stillhash.encoders.indexing import (
        ImageIndexReport,
        TextIndexReport,
        align_images,
        align_texts,
        index_documents,
        index_folder,
    )
    from stillhash.encoders.queries import QueryEncoder, open_query_encoder

# Imported when first used: images need Pillow, and opening an encoder needs no collection.
MODULES = {
    "documents": "BrokenDocument Document TextChunk decode_text folder_documents read_text split_text table_documents",
    "indexing": "ImageIndexReport TextIndexReport align_images align_texts index_documents index_folder",
    "queries": "QueryEncoder open_query_encoder",
}


def __getattr__(name: str) -> object:
    for module, names in MODULES.items():
        if name in names.split():
            return getattr(import_module(f"stillhash.encoders.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ENCODER_NAMES",
    "BrokenDocument",
    "Document",
    "Encoder",
    "ImageIndexReport",
    "QueryEncoder",
    "TextChunk",
    "TextIndexReport",
    "align_images",
    "align_texts",
    "decode_text",
    "folder_documents",
    "index_documents",
    "index_folder",
    "is_text_encoder",
    "open_encoder",
    "open_query_encoder",
    "read_text",
    "split_text",
    "table_documents",
]
