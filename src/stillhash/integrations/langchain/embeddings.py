"""The encoders of this library as embeddings of LangChain."""

from langchain_core.embeddings import Embeddings

from stillhash.encoders import Encoder, open_encoder
from stillhash.errors import InvalidInput


class StillhashEmbeddings(Embeddings):
    """Embed texts by an encoder, named as for `open_encoder`; no service is called.

    A new collection of a `StillhashVectorStore` remembers the encoder, so that the command line, the server and
    `stillhash mcp` can search it by text too.
    """

    def __init__(self, encoder: str) -> None:
        self.encoder: Encoder = open_encoder(encoder)
        if not self.encoder.has_text:
            raise InvalidInput(f"encoder: expected one of texts, got {encoder!r}")

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return one vector for each text."""
        return [row.tolist() for row in self.encoder.encode_texts(texts)] if texts else []

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a text."""
        return self.embed_documents([text])[0]
