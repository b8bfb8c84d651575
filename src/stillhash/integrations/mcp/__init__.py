"""The Model Context Protocol: a collection as tools for assistants, to search, explain, describe and vote."""

from stillhash.errors import MissingExtra

try:
    import mcp  # noqa: F401
except ImportError as error:
    raise MissingExtra("stillhash.integrations.mcp needs mcp: pip install 'stillhash[mcp]'") from error

from stillhash.integrations.mcp.queries import open_text_encoder
from stillhash.integrations.mcp.server import collection_server, serve_http, serve_stdio

__all__ = ["collection_server", "open_text_encoder", "serve_http", "serve_stdio"]
