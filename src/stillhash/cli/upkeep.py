"""Commands for upkeep: disk, copies, checks, the index of words, and forgetting.

Each is a method of `Collection`, without logic.
"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option, Typer

import stillhash
from stillhash.cli.completion import MAX_AUDIT_ENTRIES
from stillhash.cli.items import SelectAll, SelectedWhere, parse_selection
from stillhash.cli.options import (
    IDS_FILE_HELP,
    ITEMS_PANEL,
    LEXICAL_HELP,
    RESCORE_HELP,
    ChunkRows,
    CollectionName,
    CollectionPath,
    IdColumn,
    OptionalPath,
    ServerKey,
    VectorColumn,
    Where,
    parse_columns,
)
from stillhash.cli.output import AsJson, answer, count_of, for_each_chunk, progress_bar
from stillhash.errors import BadState, InvalidInput

if TYPE_CHECKING:
    from stillhash.io import Chunk

app = Typer()
UPKEEP_PANEL = "Collections: upkeep"
MAX_LISTED_IDS = 20
URL_HELP = "A server that has the collection open, in place of PATH."
GIVEN_HELP = "The features that items were added with, as for add; without it, kept features are read."
AFTER_HELP = "The first entries past this number, 0 for the oldest; without it the latest ones."


@app.command(rich_help_panel=UPKEEP_PANEL)
def seal(path: CollectionPath, as_json: AsJson = False) -> None:
    """Move unsealed codes into segments now; this happens by itself every 131,072 rows.

    \b
    Examples:
      stillhash seal films
    """
    with stillhash.open(path) as collection:
        sealed = collection.seal()
    answer({"sealed": sealed}, as_json, "sealed" if sealed else "nothing to seal")


@app.command(rich_help_panel=UPKEEP_PANEL)
def compact(
    path: OptionalPath = None,
    url: Annotated[str | None, Option(metavar="URL", help=URL_HELP)] = None,
    key: ServerKey = None,
    collection: CollectionName = None,
    as_json: AsJson = False,
) -> None:
    """Rewrite the segments that have deleted or changed rows, to free disk and memory.

    Searches and writes go on meanwhile. If it is interrupted, the next one goes on.

    \b
    Examples:
      stillhash compact films
      stillhash compact --url http://127.0.0.1:8000 --collection films
    """
    if (path is None) == (url is None):
        raise InvalidInput("path: expected a folder, or the --url of a server that has it open, and not both")
    with progress_bar("compacting", 1.0, counts=False) as update:
        if url is not None:
            with stillhash.Client(url, key, collection=collection) as client:
                dropped = client.compact(progress=lambda share: update(completed=share))
        else:
            assert path is not None
            with stillhash.open(path) as local:
                dropped = local.compact(progress=lambda done, total: update(completed=done / max(1, total)))
    answer({"dropped": dropped}, as_json, f"{count_of(dropped, 'deleted row')} dropped")


@app.command(rich_help_panel=UPKEEP_PANEL)
def snapshot(
    path: CollectionPath,
    to: Annotated[Path, Argument(metavar="TO", help="A folder, or a .tar file, that does not exist.")],
    as_json: AsJson = False,
) -> None:
    """Copy the collection, as of one commit, to a new folder or .tar file; other processes may write meanwhile.

    \b
    Examples:
      stillhash snapshot films backups/films-monday
      stillhash snapshot films films.tar
    """
    with stillhash.open(path, read_only=True) as collection, progress_bar("copying", 1.0, counts=False) as update:
        size = collection.snapshot(to, progress=lambda share: update(completed=share))
    answer({"path": str(to), "bytes": size}, as_json, f"copied {size:,} bytes to {to}")


@app.command(rich_help_panel=ITEMS_PANEL)
def export(
    path: CollectionPath,
    file: Annotated[Path, Argument(metavar="FILE", help="The file to write: .jsonl or .parquet.")],
    where: Where = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace FILE if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write all items as a table: ids, labels, metadata, codes and, where they are stored, features.

    It is of one commit, also while another process writes, and appears once it is complete. What is learnt is not in
    it: `stillhash snapshot` copies all.

    \b
    Examples:
      stillhash export films films.parquet
      stillhash export films recent.jsonl --where '{"year": {"$gte": 2020}}'
    """
    from stillhash.io import parse_json_object

    allowed = parse_json_object(where, "where")
    with stillhash.open(path, read_only=True) as collection, progress_bar("items exported", None) as update:
        report = collection.export(
            file,
            where=allowed,
            overwrite=overwrite,
            progress=lambda done, total: update(completed=done, total=total),
        )
    text = f"{count_of(report['items'], 'item')} exported to {file}, {report['bytes']:,} bytes"
    answer({"path": str(file), **report}, as_json, text)


@app.command(rich_help_panel=UPKEEP_PANEL)
def stats(path: CollectionPath, as_json: AsJson = False) -> None:
    """Show settings, counts and disk use.

    \b
    Examples:
      stillhash stats films
      stillhash stats films --json
    """
    from stillhash.cli import result_tables

    with stillhash.open(path, read_only=True) as collection:
        answer(collection.stats(), as_json, result_tables.stats)


@app.command(rich_help_panel=UPKEEP_PANEL)
def audit(
    path: CollectionPath,
    limit: Annotated[int, Option(min=1, max=MAX_AUDIT_ENTRIES, help="Entries to list.")] = 20,
    after: Annotated[int | None, Option(min=0, metavar="NUMBER", help=AFTER_HELP)] = None,
    who: Annotated[str | None, Option(metavar="NAME", help="Only the changes of this name.")] = None,
    as_json: AsJson = False,
) -> None:
    """List who changed what, and when, the latest last.

    \b
    Examples:
      stillhash audit films --limit 50
      stillhash audit films --after 0 --who ann
    """
    from stillhash.cli import result_tables

    with stillhash.open(path, read_only=True) as collection:
        entries = collection.audit(after, limit, who=who)
    answer({"entries": [asdict(entry) for entry in entries]}, as_json, result_tables.audit)


@app.command(rich_help_panel=UPKEEP_PANEL)
def verify(path: CollectionPath, as_json: AsJson = False) -> None:
    """Check all stored data, and list the problems. The exit code is 5 if there are any.

    \b
    Examples:
      stillhash verify films
      stillhash verify films --json
    """
    with stillhash.open(path, read_only=True) as collection, progress_bar("reading", 1.0, counts=False) as update:
        problems = collection.verify(progress=lambda share: update(completed=share))
    answer({"problems": problems}, as_json, "\n".join(problems) or "OK")
    if problems:
        raise Exit(BadState.exit_code)


@app.command(rich_help_panel=UPKEEP_PANEL)
def build_rescoring(
    path: CollectionPath,
    file: Annotated[Path | None, Argument(metavar="FILE", help=GIVEN_HELP)] = None,
    ids: Annotated[Path | None, Option(metavar="FILE", help=IDS_FILE_HELP)] = None,
    id_column: IdColumn = None,
    vector_column: VectorColumn = None,
    rescore_bits: Annotated[int | None, Option(help=f"{RESCORE_HELP} 0 drops those that are not complete.")] = None,
    chunk: ChunkRows = 1000,
    as_json: AsJson = False,
) -> None:
    """Give a collection rescoring codes that has none: of kept features, or of those in a file.

    Several files may have them, one after another, and each goes on after an interruption. Once all items have a code,
    searches use them; until then all is as before.

    \b
    Examples:
      stillhash build-rescoring films
      stillhash build-rescoring films rows.jsonl
      stillhash build-rescoring films vectors.npy --ids ids.txt
    """
    from stillhash.io import read_chunks

    with stillhash.open(path) as collection:
        missing = 0
        if file is not None:
            columns = parse_columns(id_column, vector_column, None, None, None)
            chunks = read_chunks(file, collection.dim, chunk, ids=ids, columns=columns, require_ids=True, first_id=0)

            def build(rows: "Chunk") -> None:
                nonlocal missing
                missing = collection.build_rescoring(rows.ids, rows.features, rescore_bits=rescore_bits)

            for_each_chunk(chunks, build, "read")
        if not missing:
            with progress_bar("building", 1.0, counts=False) as update:
                collection.build_rescoring(rescore_bits=rescore_bits, progress=lambda share: update(completed=share))
        bits = collection.stats()["rescore_bits"]
    text = f"all items have rescoring codes of {bits} bits per feature" if bits else "no rescoring codes"
    if missing:
        text = f"{count_of(missing, 'item')} left without a rescoring code: give the features of these too"
    answer({"missing": missing, "rescore_bits": bits}, as_json, text)


@app.command(rich_help_panel=UPKEEP_PANEL)
def repair(path: CollectionPath, as_json: AsJson = False) -> None:
    """Compute again what follows from the rest, drop what is lost, and list the lost items.

    A damaged segment costs its items: if a snapshot has a file of its name, copy that one first. No other process may
    have the collection open.

    \b
    Examples:
      stillhash repair films
    """
    done, lost = stillhash.repair(path)
    lines = [*done, f"{count_of(len(lost), 'item')} lost"] if done else ["OK"]
    if lost:
        lines[-1] += f": {', '.join(map(str, lost[:MAX_LISTED_IDS]))}{', ...' if len(lost) > MAX_LISTED_IDS else ''}"
    answer({"done": done, "lost": lost}, as_json, "\n".join(lines))


@app.command(rich_help_panel=UPKEEP_PANEL)
def lexical(
    path: CollectionPath,
    field: Annotated[str | None, Option(metavar="FIELD", help=LEXICAL_HELP)] = None,
    none: Annotated[bool, Option("--none", help="Drop the index of words.")] = False,
    as_json: AsJson = False,
) -> None:
    """Index the words of a field of the metadata, for search --lexical and --hybrid; all of it, or nothing changes.

    \b
    Examples:
      stillhash lexical films --field text
      stillhash lexical films --none
    """
    if (field is None) != none:
        raise InvalidInput("--field: expected a field of the metadata, or --none, got both or neither")
    with stillhash.open(path) as collection, progress_bar("items", float(collection.count())) as update:
        items = collection.set_lexical_field(field, progress=lambda done, total: update(completed=float(done)))
    text = "words are not indexed any more" if none else f"{field}: the words of {count_of(items, 'item')} indexed"
    answer({"lexical_field": field, "items": items}, as_json, text)


if TYPE_CHECKING:
    from stillhash.collection.types import ForgetReport


@app.command(rich_help_panel=UPKEEP_PANEL)
def forget(
    path: CollectionPath,
    ids: Annotated[list[str] | None, Argument(metavar="IDS", help="Ids of items.")] = None,
    where: SelectedWhere = None,
    every: SelectAll = False,
    source: Annotated[str | None, Option(help="A source of votes, in place of items.")] = None,
    snapshots: Annotated[
        Path | None, Option(metavar="FOLDER", help="Folder of snapshots to look into; they are not changed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove items, or the votes of a source, so that no file of the collection holds anything of them.

    Their part in what was learnt is taken out exactly. All codes are rewritten. The report says what remains.

    \b
    Examples:
      stillhash forget films 42 43
      stillhash forget films --source ann
      stillhash forget films --where '{"owner": "ann"}' --snapshots backups
    """
    from stillhash.io import parse_ids

    names: list[Any] | None = parse_ids(ids) if ids else None
    with stillhash.open(path) as collection:
        report = collection.forget(names, where=parse_selection(where, every), source=source, snapshots=snapshots)
    answer(asdict(report), as_json, "\n".join(_lines(report)))


def _lines(report: "ForgetReport") -> list[str]:
    """Return the report as sentences."""
    lines = [f"{count_of(report.items, 'item')} and {count_of(report.votes, 'vote')} forgotten"]
    if report.unlearnt:
        lines.append(f"{count_of(report.unlearnt, 'learnt row')} taken out of the statistics")
    if report.versions:
        lines.append(f"{count_of(len(report.versions), 'version')} of the model dropped")
    lines += [f"snapshot {name} still holds {count} of them" for name, count in report.snapshots.items()]
    return [*lines, *(f"remains: {sentence}" for sentence in report.remains)]
