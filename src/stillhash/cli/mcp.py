"""The command that serves a collection to assistants, by the Model Context Protocol."""

import functools
import sys
from typing import Annotated

from typer import Option, Typer

import stillhash
from stillhash.cli.defaults import MCP_PORT
from stillhash.cli.options import CollectionPath, optional_module
from stillhash.cli.output import answer, note
from stillhash.errors import StillhashError

app = Typer()
HTTP_HELP = "Serve by streamable HTTP on 127.0.0.1, not over stdin and stdout."
ALLOW_FEEDBACK_HELP = "Add a tool that votes on hits; no other process can write then."
TEXT_ENCODER_HELP = "Encoder of query texts, if not the collection's own."
ADDRESS_HELP = "Print the address with --http, and errors, as one JSON object."


@app.command(rich_help_panel="Collections: serving")
def mcp(
    path: CollectionPath,
    http: Annotated[bool, Option("--http", help=HTTP_HELP)] = False,
    port: Annotated[int, Option(min=0, max=65535, help="With --http; 0 picks a free port.")] = MCP_PORT,
    allow_feedback: Annotated[bool, Option("--allow-feedback", help=ALLOW_FEEDBACK_HELP)] = False,
    encoder: Annotated[str | None, Option(metavar="NAME", help=TEXT_ENCODER_HELP)] = None,
    as_json: Annotated[bool, Option("--json", help=ADDRESS_HELP)] = False,
) -> None:
    """Serve a collection as tools for assistants, by the Model Context Protocol.

    \b
    Examples:
      stillhash mcp films
      stillhash mcp films --http --port 8765
      stillhash mcp films --allow-feedback
    """
    integration = optional_module("integrations.mcp", "mcp")
    with stillhash.open(path, read_only=not allow_feedback) as collection:
        try:
            text_encoder = integration.open_text_encoder(collection, encoder)
        except StillhashError as error:
            if encoder is not None:
                raise
            text_encoder = None
            note(f"served without vectors of texts: {error}", color="yellow")
        options = {"encoder": text_encoder, "allow_feedback": allow_feedback}
        with integration.collection_server(collection, path.resolve().name, **options) as server:
            if http:
                integration.serve_http(server, port, functools.partial(announce_tools, as_json=as_json))
            else:
                integration.serve_stdio(server)


def announce_tools(address: str, as_json: bool = False) -> None:
    """Print the address of the tools, as soon as they can be called."""
    answer({"url": address}, as_json, f"The tools are at {address}; Ctrl-C stops the server.")
    sys.stdout.flush()
