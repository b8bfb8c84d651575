"""Haystack: a document store over two collections, retrievers, and a component that learns from votes.

Documents with an embedding are items of one collection. Those without are in a second one, of codes only, so that they
take part neither in vector search nor in learning; filters reach both.
"""

from importlib import import_module

from stillhash.errors import MissingExtra

try:
    import_module("haystack.document_stores.types")
except ImportError as error:
    raise MissingExtra("stillhash.integrations.haystack needs Haystack: pip install 'stillhash[haystack]'") from error

from stillhash.integrations.haystack.feedback import StillhashFeedback
from stillhash.integrations.haystack.retrievers import StillhashEmbeddingRetriever, StillhashHybridRetriever
from stillhash.integrations.haystack.store import StillhashDocumentStore

__all__ = ["StillhashDocumentStore", "StillhashEmbeddingRetriever", "StillhashFeedback", "StillhashHybridRetriever"]
