"""LangChain: a vector store, a retriever and a document index over a collection, whose ranking learns."""

from stillhash.errors import MissingExtra

try:
    import langchain_core  # noqa: F401
except ImportError as error:
    message = "stillhash.integrations.langchain needs langchain-core: pip install 'stillhash[langchain]'"
    raise MissingExtra(message) from error

from stillhash.integrations.langchain.vector_store import (
    StillhashDocumentIndex,
    StillhashEmbeddings,
    StillhashRetriever,
    StillhashVectorStore,
)

__all__ = ["StillhashDocumentIndex", "StillhashEmbeddings", "StillhashRetriever", "StillhashVectorStore"]
