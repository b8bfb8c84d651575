"""Commands that change the file of keys, which a server reads when it starts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, Typer

from stillhash.cli.completion import ROLE_NAMES, one_of
from stillhash.cli.options import optional_module
from stillhash.cli.output import AsJson, answer, note

if TYPE_CHECKING:
    from rich.console import Console

KEYS_GROUP_HELP = """Create, list and remove the keys of a server.

\b
Examples:
  stillhash keys add keys.json --name ann --role write
  stillhash keys list keys.json
"""
app = Typer(help=KEYS_GROUP_HELP, no_args_is_help=True)
ROLE_HELP = "read, feedback, write or admin; each includes the ones before it."
COLLECTIONS_HELP = "Names of collections, with commas between; without it, all."

KeyFile = Annotated[Path, Argument(metavar="FILE", help="The file of keys, as of 'serve --keys'.")]


@app.command()
def add(
    file: KeyFile,
    name: Annotated[str, Option(metavar="NAME", help="Who has the key: shown in logs and in 'keys list'.")],
    role: Annotated[str, Option(metavar="ROLE", help=ROLE_HELP, autocompletion=one_of(*ROLE_NAMES))],
    collections: Annotated[str | None, Option(metavar="NAMES", help=COLLECTIONS_HELP)] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it, once: the file stores only a hash. A missing file is created.

    \b
    Examples:
      stillhash keys add keys.json --name ann --role write
      stillhash keys add keys.json --name web --role read --collections films
    """
    names = None if collections is None else [one.strip() for one in collections.split(",")]
    key = optional_module("server", "server").add_key(file, name, role, names)
    answer({"name": name, "role": role, "collections": names, "key": key}, as_json, key)
    if not as_json:
        note(f"{name} is in {file}. The key is shown only now; servers read its hash when they start.")


@app.command(name="list")
def list_keys(file: KeyFile, as_json: AsJson = False) -> None:
    """List the names, roles and collections of the keys.

    \b
    Examples:
      stillhash keys list keys.json
    """
    keys = [
        {
            **{"name": key.name, "role": key.role, "created": key.created, "id": key.id},
            "collections": None if key.collections is None else sorted(key.collections),
        }
        for key in optional_module("server", "server").read_keys(file)
    ]
    answer({"keys": keys}, as_json, _show_keys)


@app.command()
def remove(
    file: KeyFile, name: Annotated[str, Argument(metavar="NAME", help="As in 'keys list'.")], as_json: AsJson = False
) -> None:
    """Remove a key; a server refuses it from its next start on.

    \b
    Examples:
      stillhash keys remove keys.json ann
    """
    optional_module("server", "server").remove_key(file, name)
    answer({"removed": name}, as_json, f"{name} is removed from {file}")


def _show_keys(result: dict[str, Any], console: "Console") -> None:
    from rich.text import Text

    from stillhash.experiments.tables import print_table

    columns = ("name", "role", "collections", "created", "id")
    rows: list[list[str | Text]] = [
        [Text(key["name"], style="bold"), key["role"], Text(_collection_names(key)), key["created"], key["id"]]
        for key in result["keys"]
    ]
    if rows:
        print_table(console, None, columns, rows, text=columns)
    else:
        console.print("no keys")


def _collection_names(key: dict[str, Any]) -> str:
    return "all" if key["collections"] is None else ", ".join(key["collections"])
