"""Commands that measure and compare versions of the model on the same stored items."""

from dataclasses import asdict
from typing import Annotated

from typer import Argument, Option, Typer

import stillhash
from stillhash.cli import completion
from stillhash.cli.learning import LEARNING_PANEL
from stillhash.cli.options import CollectionPath, ModelVersion
from stillhash.cli.output import AsJson, answer
from stillhash.cli.searching import parse_version
from stillhash.errors import InvalidInput

app = Typer()
ONE_HELP = "The one version: a number, 0 for before learning, or hamming."
OTHER_HELP = "The other version; by default the current one."

ProbeQueries = Annotated[int, Option(min=1, help="Items that are queries.")]
ProbeItems = Annotated[int, Option(min=10, help="Items that they rank.")]
OneVersion = Annotated[str, Argument(metavar="ONE", help=ONE_HELP, autocompletion=completion.versions_or_hamming)]
OtherVersion = Annotated[
    str | None, Argument(metavar="OTHER", help=OTHER_HELP, autocompletion=completion.versions_or_hamming)
]


@app.command(rich_help_panel=LEARNING_PANEL)
def probe(
    path: CollectionPath,
    version: ModelVersion = None,
    queries: ProbeQueries = 100,
    items: ProbeItems = 2000,
    as_json: AsJson = False,
) -> None:
    """Measure a version of the model on stored items, with its gain, and for each label, the worst first.

    \b
    Examples:
      stillhash probe films
      stillhash probe films --version 3 --json
    """
    from stillhash.cli import probe_tables

    with stillhash.open(path, read_only=True) as collection:
        report = collection.probe(parse_version(version), queries=queries, items=items)
    answer(asdict(report), as_json, probe_tables.probe)


@app.command(rich_help_panel=LEARNING_PANEL)
def compare(
    path: CollectionPath,
    one: OneVersion,
    other: OtherVersion = None,
    queries: ProbeQueries = 100,
    items: ProbeItems = 2000,
    as_json: AsJson = False,
) -> None:
    """Compare two versions of the model on the same stored queries: what differs, what is gained and lost.

    \b
    Examples:
      stillhash compare films 0
      stillhash compare films 3 7 --json
    """
    from stillhash.cli import probe_tables

    versions = [parse_version(text) for text in (one, other)]
    if versions[0] is None:
        raise InvalidInput("ONE: expected a version, got none")
    with stillhash.open(path, read_only=True) as collection:
        comparison = collection.compare_versions(versions[0], versions[1], queries=queries, items=items)
    answer(asdict(comparison), as_json, probe_tables.comparison)
