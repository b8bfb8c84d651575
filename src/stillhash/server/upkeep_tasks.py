"""The tasks of upkeep: verify, compact, snapshot and export a collection.

Copies go to the server's folder of snapshots.
"""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from stillhash.collection import Collection
from stillhash.collection.export import check_table_format
from stillhash.errors import NotFound, StoreFailed
from stillhash.files.sealed_files import FOLDER_MODE
from stillhash.server.settings import Settings
from stillhash.server.tasks import Report, Task
from stillhash.server.write_queue import CollectionExecutor

TaskKind = Literal["verify", "compact", "snapshot", "export"]
TASK_KINDS: tuple[TaskKind, ...] = get_args(TaskKind)


def start_upkeep(executor: CollectionExecutor, settings: Settings, kind: TaskKind, format: str | None = None) -> Task:
    """Start a task of one of these kinds; `format` is that of an export, jsonl by default."""
    if kind == "verify":
        return executor.tasks.start(kind, "Verify", verify_work)
    if kind == "compact":
        return executor.tasks.start(kind, "Compact", compact_work)
    folder, name = snapshots_folder(settings), copy_name(executor.name)
    if kind == "snapshot":
        return executor.tasks.start(kind, "Snapshot", partial(snapshot_work, path=folder / name))
    path = folder / f"{name}.{format or 'jsonl'}"
    return executor.tasks.start(kind, f"Export as {check_table_format(path)}", partial(export_work, path=path))


def snapshots_folder(settings: Settings) -> Path:
    """Return the server's folder of snapshots; NotFound if it has none."""
    if settings.snapshots is None:
        raise NotFound("snapshots: this server has no folder for them. Start it with --snapshots FOLDER")
    return settings.snapshots


def copy_name(collection: str) -> str:
    """Return a name for a copy that is made now."""
    return f"{collection}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"


def verify_work(collection: Collection, report: Report) -> dict[str, Any]:
    """Check everything that is stored."""
    report(0, "reading every file")
    return {"problems": collection.verify(progress=report)}


def compact_work(collection: Collection, report: Report) -> dict[str, Any]:
    """Drop the deleted rows. One that is cancelled leaves what it has done so far."""

    def progress(done: int, total: int) -> None:
        report(done / max(1, total), f"{done:,} of {total:,} rows")

    return {"dropped": collection.compact(progress=progress)}


def snapshot_work(collection: Collection, report: Report, path: Path) -> dict[str, Any]:
    """Copy the collection to a new folder."""
    report(0, "copying all files")
    return {"name": path.name, "bytes": collection.snapshot(path, progress=report)}


def export_work(collection: Collection, report: Report, path: Path) -> dict[str, Any]:
    """Write all items as a table to a file."""

    def progress(done: int, total: int) -> None:
        report(done / max(1, total), f"{done:,} of {total:,} items")

    report(0, "reading items")
    try:
        path.parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreFailed(f"snapshots: the folder could not be created: {error}") from error
    return {"name": path.name, **collection.export(path, progress=progress)}


def exported_file(task: Task, settings: Settings) -> Path:
    """Return the file that an export has written; NotFound if it is none, or is gone."""
    folder = snapshots_folder(settings)
    path = folder / str(task.result["name"]) if task.kind == "export" and task.state == "done" else folder
    if not path.is_file():
        raise NotFound("file: expected a task that has exported a file which is there, got another")
    return path
