"""Commands for learning and upkeep: one command per method of `Collection`, without logic."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option, Typer

import stillhash
from stillhash.cli import output
from stillhash.cli.collection import QUERY_HELP, ChunkRows, CollectionPath, LabelsFile, RowsFile, current_version
from stillhash.cli.output import AsJson, answer, count_of, for_each_chunk
from stillhash.collection.storage.audit import MAX_ENTRIES
from stillhash.errors import BadState, InvalidInput
from stillhash.io import Chunk, parse_ids, read_chunks, read_json_lines, read_queries

app = Typer()
LEARNING_PANEL, UPKEEP_PANEL = "Collections: learning", "Collections: upkeep"
MAX_LISTED_IDS = 20
VOTED_HELP = """Ids of hits; or, without --vector, a file with one vote a line: \
'{"query": [0.1, 0.2], "id": "a", "vote": "up", "source": "ann", "position": 9}', '-' for stdin; "query_id", a stored \
item, may stand for "query"."""
AFTER_HELP = "The first entries past this number, 0 for the oldest; without it the latest ones."
SAMPLE_HELP = "Sample of rows, as for add; default: the items."

SampleFile = Annotated[Path | None, Argument(metavar="FILE", help=SAMPLE_HELP)]
VersionArgument = Annotated[int, Argument(metavar="VERSION", min=1, help="The number of the version.")]


@app.command(rich_help_panel=LEARNING_PANEL)
def learn(
    path: CollectionPath, file: RowsFile, labels: LabelsFile = None, chunk: ChunkRows = 1000, as_json: AsJson = False
) -> None:
    """Learn from labelled rows that are not stored as items. Each chunk makes a version."""
    versions: list[int] = []

    def learn_chunk(rows: Chunk) -> None:
        if not any(rows.labels):
            raise InvalidInput("labels: expected some, in the rows or by --labels FILE, got none")
        versions.append(collection.learn(rows.features, rows.labels))

    with stillhash.open(path) as collection:
        rows = for_each_chunk(read_chunks(file, collection.dim, chunk, labels=labels), learn_chunk, "learnt")
        result = {"rows": rows, "version": current_version(collection), "versions": versions}
    answer(result, as_json, f"{count_of(rows, 'row')} learnt; version {result['version']} is current")


@app.command(rich_help_panel=LEARNING_PANEL)
def feedback(
    path: CollectionPath,
    ids: Annotated[list[str], Argument(metavar="IDS|FILE", help=VOTED_HELP)],
    vector: Annotated[str | None, Option(metavar="FILE", help=QUERY_HELP)] = None,
    up: Annotated[bool | None, Option("--up/--down", help="Whether these items are good hits.")] = None,
    vote: Annotated[float | None, Option(help="In place of --up or --down: -1 to 1; 0 takes a vote back.")] = None,
    position: Annotated[int | None, Option(min=1, help="Rank at which the item was shown.")] = None,
    source: Annotated[str, Option(metavar="NAME", help="Who votes; the last vote of a source counts.")] = "",
    as_json: AsJson = False,
) -> None:
    """Learn from votes on hits of one query, or from a file of votes."""
    with stillhash.open(path) as collection:
        if vector is None:
            if len(ids) != 1 or (up, vote, position, source) != (None, None, None, ""):
                raise InvalidInput("--vector: expected the query of these votes, or a FILE of votes and no options")
            votes = read_json_lines(Path(ids[0]))
            count, version = len(votes), collection.feedback_many(votes)
        else:
            queries = read_queries(vector, collection.dim)
            if len(queries) != 1:
                raise InvalidInput(f"--vector: expected one query, got {len(queries)}")
            if (up is None) == (vote is None):
                raise InvalidInput("--vote: expected one of --up, --down and --vote")
            value = up if vote is None else vote
            names = parse_ids(ids)
            count = len(names)
            version = collection.feedback(queries[0], names, value, source=source, position=position)
    answer({"votes": count, "version": version}, as_json, f"{count_of(count, 'vote')}; version {version} is current")


@app.command(rich_help_panel=LEARNING_PANEL)
def doubtful(
    path: CollectionPath,
    count: Annotated[int, Option(min=1, help="Items to list, at most 1,000.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the items whose labels are least plausible, to check them; relabel corrects them."""
    with stillhash.open(path, read_only=True) as collection:
        items, share = collection.doubtful_labels(count), collection.stats()["wrong_label_share"]
    answer({"wrong_label_share": share, "items": [asdict(item) for item in items]}, as_json, output.doubtful_labels)


@app.command(rich_help_panel=LEARNING_PANEL)
def flush(path: CollectionPath, as_json: AsJson = False) -> None:
    """Learn all pending labelled rows now, instead of waiting for a full step."""
    with stillhash.open(path) as collection:
        version = collection.flush()
    answer({"version": version}, as_json, f"version {version} is current")


@app.command(rich_help_panel=LEARNING_PANEL)
def fit(path: CollectionPath, file: SampleFile = None, labels: LabelsFile = None, as_json: AsJson = False) -> None:
    """Fit the hash functions now and permanently, instead of waiting for more rows."""
    if file is None and labels is not None:
        raise InvalidInput("--labels: expected a FILE of rows with it")
    with stillhash.open(path) as collection:
        if file is None:
            collection.fit()
        else:
            sample = next(read_chunks(file, collection.dim, sys.maxsize, labels=labels), None)
            if sample is None:
                raise InvalidInput(f"{file.name}: expected rows, got none")
            collection.fit(sample.features, sample.labels)
        version = current_version(collection)
    answer({"version": version}, as_json, f"the hash functions are fitted; version {version} is current")


@app.command(rich_help_panel=LEARNING_PANEL)
def versions(path: CollectionPath, as_json: AsJson = False) -> None:
    """List the versions of the model."""
    with stillhash.open(path, read_only=True) as collection:
        answer({"versions": collection.versions()}, as_json, output.versions)


@app.command(rich_help_panel=LEARNING_PANEL)
def tag(
    path: CollectionPath,
    version: VersionArgument,
    name: Annotated[str, Argument(metavar="NAME", help="A name for the version.")],
    as_json: AsJson = False,
) -> None:
    """Name a version; a version with a name is never dropped."""
    with stillhash.open(path) as collection:
        collection.tag(version, name)
    answer({"version": version, "tag": name}, as_json, f"version {version} is named {name!r} and kept")


@app.command(rich_help_panel=LEARNING_PANEL)
def rollback(path: CollectionPath, version: VersionArgument, as_json: AsJson = False) -> None:
    """Restore an earlier version under a new number; results are identical."""
    with stillhash.open(path) as collection:
        current = collection.rollback(version)
    text = f"version {current} is current, with the results of version {version}"
    answer({"version": current, "rollback_to": version}, as_json, text)


@app.command(rich_help_panel=UPKEEP_PANEL)
def seal(path: CollectionPath, as_json: AsJson = False) -> None:
    """Move unsealed codes into a segment now; this happens by itself every 131,072 rows."""
    with stillhash.open(path) as collection:
        sealed = collection.seal()
    answer({"sealed": sealed}, as_json, "sealed" if sealed else "nothing to seal")


@app.command(rich_help_panel=UPKEEP_PANEL)
def compact(path: CollectionPath, as_json: AsJson = False) -> None:
    """Rewrite the codes without deleted rows, to free disk and memory."""
    with stillhash.open(path) as collection:
        dropped = collection.stats()["deleted"]
        collection.compact()
    answer({"dropped": dropped}, as_json, f"{count_of(dropped, 'deleted row')} dropped")


@app.command(rich_help_panel=UPKEEP_PANEL)
def snapshot(
    path: CollectionPath,
    to: Annotated[Path, Argument(metavar="TO", help="A folder that does not exist.")],
    as_json: AsJson = False,
) -> None:
    """Copy the collection, as of one commit, to a new folder; other processes may write meanwhile."""
    with stillhash.open(path, read_only=True) as collection:
        size = collection.snapshot(to)
    answer({"path": str(to), "bytes": size}, as_json, f"copied {size:,} bytes to {to}")


@app.command(rich_help_panel=UPKEEP_PANEL)
def stats(path: CollectionPath, as_json: AsJson = False) -> None:
    """Show settings, counts and disk use."""
    with stillhash.open(path, read_only=True) as collection:
        answer(collection.stats(), as_json, output.stats)


@app.command(rich_help_panel=UPKEEP_PANEL)
def audit(
    path: CollectionPath,
    limit: Annotated[int, Option(min=1, max=MAX_ENTRIES, help="Entries to list.")] = 20,
    after: Annotated[int | None, Option(min=0, metavar="NUMBER", help=AFTER_HELP)] = None,
    who: Annotated[str | None, Option(metavar="NAME", help="Only the changes of this name.")] = None,
    as_json: AsJson = False,
) -> None:
    """List who changed what, and when, the latest last."""
    with stillhash.open(path, read_only=True) as collection:
        entries = collection.audit(after, limit, who=who)
    answer({"entries": [asdict(entry) for entry in entries]}, as_json, output.audit)


@app.command(rich_help_panel=UPKEEP_PANEL)
def verify(path: CollectionPath, as_json: AsJson = False) -> None:
    """Check all stored data, and list the problems. The exit code is 5 if there are any."""
    with stillhash.open(path, read_only=True) as collection:
        problems = collection.verify()
    answer({"problems": problems}, as_json, "\n".join(problems) or "OK")
    if problems:
        raise Exit(BadState.exit_code)


@app.command(rich_help_panel=UPKEEP_PANEL)
def repair(path: CollectionPath, as_json: AsJson = False) -> None:
    """Restore what is not damaged, and list the lost items. No other process may have the collection open."""
    done, lost = stillhash.repair(path)
    lines = [*done, f"{count_of(len(lost), 'item')} lost"] if done else ["OK"]
    if lost:
        lines[-1] += f": {', '.join(map(str, lost[:MAX_LISTED_IDS]))}{', ...' if len(lost) > MAX_LISTED_IDS else ''}"
    answer({"done": done, "lost": lost}, as_json, "\n".join(lines))


@app.command(rich_help_panel=UPKEEP_PANEL)
def upgrade(
    path: CollectionPath,
    delete_old: Annotated[bool, Option("--delete-old", help="Delete the old collection afterwards.")] = False,
    as_json: AsJson = False,
) -> None:
    """Convert a collection of version 0.1 to the format of this version. No other process may have it open.

    The old collection is kept beside it, as PATH.format-1.
    """
    done, old = stillhash.upgrade(path, delete_old=delete_old)
    text = "\n".join(done) or f"nothing to do: {path} has the format of this version"
    answer({"done": done, "old": None if old is None else str(old)}, as_json, text)
