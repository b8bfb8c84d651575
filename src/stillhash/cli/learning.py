"""The commands of collections, learning and upkeep: the verbs of `Collection`, one command each, and no logic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import stillhash
from stillhash.cli import output
from stillhash.cli.collection import At, Labels, Rows, Size, Vector, current_version, each, opened
from stillhash.cli.output import AsJson, answer, sentence
from stillhash.errors import BadState, InvalidInput
from stillhash.io import Chunk, parse_ids, read_chunks, read_queries

app = typer.Typer()
LEARNING, UPKEEP = "Collections: learning", "Collections: upkeep"
MANY = 20  # ids in a line

Numbered = Annotated[
    int, typer.Argument(metavar="VERSION", min=1, help="The number of the version.", show_default=False)
]


# ---- learning ----


@app.command(rich_help_panel=LEARNING)
def learn(path: At, file: Rows, labels: Labels = None, chunk: Size = 1000, as_json: AsJson = False) -> None:
    """Learn from labelled rows that are no items. Each chunk makes a version."""
    made: list[int] = []

    def step(c: Chunk) -> None:
        if not any(c.labels):
            raise InvalidInput("no row has labels; they come with the rows, or from --labels FILE")
        made.append(collection.learn(c.features, c.labels))

    with opened(path, write=True) as collection:
        rows = each(read_chunks(file, collection.dim, chunk, labels=labels), step, "learnt")
        result = {"rows": rows, "version": current_version(collection), "versions": made}
    answer(result, as_json, sentence(f"{output.rows(rows)} learnt; version {result['version']} is current"))


@app.command(rich_help_panel=LEARNING)
def feedback(
    path: At,
    ids: Annotated[
        list[str],
        typer.Argument(metavar="IDS", help="Items; whole numbers are integers, '\"7\"' is text.", show_default=False),
    ],
    vector: Vector,
    relevant: Annotated[bool, typer.Option("--up/--down", help="Whether they are what was looked for.")],
    weight: Annotated[float, typer.Option(help="How much of a full vote, up to 1.")] = 1.0,
    source: Annotated[str, typer.Option(metavar="NAME", help="Who says so; a source's last word counts.")] = "",
    as_json: AsJson = False,
) -> None:
    """Learn from a thumb up or down on items that were found for a query."""
    with opened(path, write=True) as collection:
        asked = read_queries(vector, collection.dim)
        if len(asked) != 1:
            raise InvalidInput(f"--vector holds {len(asked)} queries; one is wanted")
        version = collection.feedback(asked[0], parse_ids(ids), relevant, weight=weight, source=source)
    told = f"thumbs {'up' if relevant else 'down'}: {len(ids)}; version {version} is current"
    answer({"thumbs": len(ids), "version": version}, as_json, sentence(told))


@app.command(rich_help_panel=LEARNING)
def relabel(
    path: At,
    name: Annotated[str, typer.Argument(metavar="ID", help="An item.", show_default=False)],
    labels: Annotated[str, typer.Argument(metavar="LABELS", help="'cat|dog'; '' for none.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Give an item other labels, and learn from them."""
    told = [label.strip() for label in labels.split("|") if label.strip()]
    with opened(path, write=True) as collection:
        collection.relabel(parse_ids([name]), [told])
        version = collection.flush()
    line = f"{name} is labelled {', '.join(told) or 'nothing'}; version {version} is current"
    answer({"id": name, "labels": told, "version": version}, as_json, sentence(line))


@app.command(rich_help_panel=LEARNING)
def flush(path: At, as_json: AsJson = False) -> None:
    """Learn the labelled items that wait for a full step."""
    with opened(path, write=True) as collection:
        version = collection.flush()
    answer({"version": version}, as_json, sentence(f"version {version} is current"))


@app.command(rich_help_panel=LEARNING)
def fit(
    path: At,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A sample, as for add; else the rows that wait.")
    ] = None,
    labels: Labels = None,
    as_json: AsJson = False,
) -> None:
    """Fix the hash functions now, for ever, instead of waiting for more rows."""
    if file is None and labels is not None:
        raise InvalidInput("--labels is given without a FILE of rows")
    with opened(path, write=True) as collection:
        if file is None:
            collection.fit()
        else:
            sample = list(read_chunks(file, collection.dim, 1000, labels=labels))
            if not sample:
                raise InvalidInput(f"{file.name}: there are no rows")
            told = [one for c in sample for one in c.labels]
            collection.fit(np.concatenate([c.features for c in sample]), told)
        version = current_version(collection)
    answer({"version": version}, as_json, sentence(f"the hash functions are fixed; version {version} is current"))


@app.command(rich_help_panel=LEARNING)
def versions(path: At, as_json: AsJson = False) -> None:
    """List the versions of the model that are kept."""
    with opened(path) as collection:
        found = collection.versions()
    answer({"versions": found}, as_json, output.versions)


@app.command(rich_help_panel=LEARNING)
def tag(
    path: At,
    version: Numbered,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name from now on.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Name a version; one that has a name is kept."""
    with opened(path, write=True) as collection:
        collection.tag(version, name)
    answer({"version": version, "tag": name}, as_json, sentence(f"version {version} is {name!r} and will be kept"))


@app.command(rich_help_panel=LEARNING)
def rollback(path: At, version: Numbered, as_json: AsJson = False) -> None:
    """Publish an earlier version anew: the same answers, under a new number."""
    with opened(path, write=True) as collection:
        now = collection.rollback(version)
    told = f"version {now} is current, and answers as version {version} did"
    answer({"version": now, "rollback_to": version}, as_json, sentence(told))


# ---- upkeep ----


@app.command(rich_help_panel=UPKEEP)
def seal(path: At, as_json: AsJson = False) -> None:
    """Move the latest codes into a segment now; it happens by itself every 131,072 rows."""
    with opened(path, write=True) as collection:
        sealed = collection.seal()
    answer({"sealed": sealed}, as_json, sentence("sealed" if sealed else "nothing to seal"))


@app.command(rich_help_panel=UPKEEP)
def compact(path: At, as_json: AsJson = False) -> None:
    """Rewrite the codes without deleted rows, which frees their disk and memory."""
    with opened(path, write=True) as collection:
        dropped = collection.stats()["deleted"]
        collection.compact()
    answer({"dropped": dropped}, as_json, sentence(f"compacted; deleted rows dropped: {dropped:,}"))


@app.command(rich_help_panel=UPKEEP)
def snapshot(
    path: At,
    to: Annotated[Path, typer.Argument(metavar="TO", help="A folder that is not there yet.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Copy the collection, as it stands at one commit, to a new folder; others may write meanwhile."""
    with opened(path) as collection:
        size = collection.snapshot(to)
    answer({"path": str(to), "bytes": size}, as_json, sentence(f"{to} is a copy, of {size:,} bytes"))


@app.command(rich_help_panel=UPKEEP)
def stats(path: At, as_json: AsJson = False) -> None:
    """Say how the collection stands: settings, items, versions, bytes."""
    with opened(path) as collection:
        answer(collection.stats(), as_json, output.pairs)


@app.command(rich_help_panel=UPKEEP)
def verify(path: At, as_json: AsJson = False) -> None:
    """Check all that is stored, and list what is wrong. The exit code is 5 if anything is."""
    with opened(path) as collection:
        problems = collection.verify()
    answer({"problems": problems}, as_json, sentence("\n".join(problems) or "all is well"))
    if problems:
        raise typer.Exit(BadState.exit_code)


@app.command(rich_help_panel=UPKEEP)
def repair(path: At, as_json: AsJson = False) -> None:
    """Bring back what is not damaged, and name the items that are lost. Nobody else may have the collection open."""
    done, lost = stillhash.repair(path)
    told = [*done, f"items lost: {len(lost)}" if lost else "no item is lost"] if done else ["all is well"]
    names = f" ({', '.join(map(str, lost[:MANY]))}{', ...' if len(lost) > MANY else ''})" if lost else ""
    answer({"done": done, "lost": lost}, as_json, sentence("\n".join(told) + names))
