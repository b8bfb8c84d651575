"""Index texts, from files, folders and tables, as collections of chunks with labels, and search them by text."""

from stillhash.texts.chunking import TextChunk, split_text
from stillhash.texts.decoding import decode_text, read_text
from stillhash.texts.documents import BrokenDocument, Document, folder_documents
from stillhash.texts.indexing import TextIndexReport, index_documents
from stillhash.texts.query_encoder import TextQueryEncoder, align_texts, open_query_encoder
from stillhash.texts.tables import table_documents

__all__ = [
    "BrokenDocument",
    "Document",
    "TextChunk",
    "TextIndexReport",
    "TextQueryEncoder",
    "align_texts",
    "decode_text",
    "folder_documents",
    "index_documents",
    "open_query_encoder",
    "read_text",
    "split_text",
    "table_documents",
]
