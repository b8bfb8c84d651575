"""Routes that start work that takes long, and show how far it is: upkeep, uploads, duplicates."""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from fastapi import Depends, Query, Request
from pydantic import BaseModel, Field, StrictInt
from starlette.responses import FileResponse

from stillhash.collection import Collection
from stillhash.collection.maintenance.duplicates import check_likeness
from stillhash.collection.transfer.export import check_table_format
from stillhash.collection.types import Filter
from stillhash.errors import InvalidInput, NotFound, StoreFailed
from stillhash.files import FOLDER_MODE
from stillhash.numeric.cosine_groups import MIN_COSINE
from stillhash.server.bodies import RAW_MEDIA, RequestBody, check_length, receive
from stillhash.server.dependencies import ExecutorParam, api_router, app_state
from stillhash.server.schemas import FilterCondition
from stillhash.server.settings import Settings
from stillhash.server.tasks import Report, Task, TaskState
from stillhash.server.uploads import FileImport, FileIndexer, accepted_suffixes, check_upload
from stillhash.server.write_queue import CollectionExecutor

# ---- upkeep ----
#
# Copies go to the server's folder of snapshots.

TaskKind = Literal["verify", "compact", "build_rescoring", "snapshot", "export"]
TASK_KINDS: tuple[TaskKind, ...] = get_args(TaskKind)


def start_upkeep(
    executor: CollectionExecutor,
    settings: Settings,
    kind: TaskKind,
    format: str | None = None,
    rescore_bits: int | None = None,
) -> Task:
    """Start a task of one of these kinds; `format` is that of an export, jsonl by default."""
    if kind == "verify":
        return executor.tasks.start(kind, "Verify", verify_work)
    if kind == "compact":
        return executor.tasks.start(kind, "Compact", compact_work)
    if kind == "build_rescoring":
        return executor.tasks.start(kind, "Build rescoring codes", partial(rescoring_work, rescore_bits=rescore_bits))
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


def rescoring_work(collection: Collection, report: Report, rescore_bits: int | None) -> dict[str, Any]:
    """Give the collection rescoring codes. One that is cancelled leaves the codes that it has built."""
    report(0, "encoding kept features, and writing all codes")
    return {"missing": collection.build_rescoring(rescore_bits=rescore_bits, progress=report)}


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


# ---- routes of tasks ----

read_router, admin_router = api_router("read", "tasks"), api_router("admin", "tasks")

ExportFormatName = Literal["jsonl", "parquet"]


class StartTaskBody(RequestBody):
    kind: TaskKind
    format: Annotated[ExportFormatName | None, Field(description="Of an export; jsonl by default.")] = None
    rescore_bits: Annotated[StrictInt | None, Field(description="Of build_rescoring; as of a new collection.")] = None


class TaskError(BaseModel):
    error: Annotated[str, Field(description="Its class.")]
    message: str


class TaskResponse(BaseModel):
    """Long work: what it is, how far it is, and what came of it."""

    id: str
    kind: str
    title: str
    who: Annotated[str, Field(description="Started it.")]
    created: Annotated[str, Field(description="UTC, ISO 8601.")]
    state: TaskState
    share: Annotated[float, Field(description="That is done.", ge=0, le=1)]
    message: Annotated[str, Field(description="What it does now.")]
    result: Annotated[dict[str, Any] | None, Field(description="Of one that is done.")]
    error: Annotated[TaskError | None, Field(description="Of one that has failed.")]

    @classmethod
    def of(cls, task: Task) -> "TaskResponse":
        error = task.error
        described = None if error is None else TaskError(error=type(error).__name__, message=str(error))
        values = {name: getattr(task, name) for name in cls.model_fields if name != "error"}
        return cls(**values, error=described)


class TasksResponse(BaseModel):
    tasks: Annotated[list[TaskResponse], Field(description="The latest first.")]


async def get_task(request: Request, executor: ExecutorParam, id: str) -> Task:
    """Return the task that the path names, if the key has the role that it needs."""
    task = executor.tasks.get(id)
    request.state.key.check_role(task.role)
    return task


TaskParam = Annotated[Task, Depends(get_task)]


@admin_router.post("/tasks")
async def start_task(request: Request, executor: ExecutorParam, body: StartTaskBody) -> TaskResponse:
    """Start to verify, compact, snapshot or export the collection, or to give it rescoring codes.

    Snapshots and exports go to the server's folder for them.
    """
    return TaskResponse.of(start_upkeep(executor, app_state(request).settings, **vars(body)))


@read_router.get("/tasks")
async def tasks(request: Request, executor: ExecutorParam) -> TasksResponse:
    """List the tasks that the key may see: those that wait, run, or ended within a day."""
    key = request.state.key
    return TasksResponse(tasks=[TaskResponse.of(task) for task in executor.tasks.list() if key.has_role(task.role)])


@read_router.get("/tasks/{id}")
async def task(task: TaskParam) -> TaskResponse:
    """Return how far a task is, and what came of it."""
    return TaskResponse.of(task)


@read_router.delete("/tasks/{id}")
async def cancel_task(executor: ExecutorParam, task: TaskParam) -> TaskResponse:
    """Cancel a task, which then ends soon; or drop one that has ended from the list.

    Of a copy nothing is left. What an import has added stays, and so do the rows that a compaction has rewritten.
    """
    executor.tasks.cancel(task)
    return TaskResponse.of(task)


@read_router.get("/tasks/{id}/file", response_class=FileResponse)
async def task_file(request: Request, task: TaskParam) -> FileResponse:
    """Download the file that an export has written."""
    path = exported_file(task, app_state(request).settings)
    return FileResponse(path, filename=path.name, content_disposition_type="attachment")


# ---- uploads and duplicates ----

EXISTING_CHOICES, LABELS_FROM = ("refuse", "skip"), ("auto", "folders", "none")
MAX_GROUPS = 1000  # of near-duplicates
UPLOAD_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "One file as it is, or several as a form.",
        "content": {RAW_MEDIA: {"schema": {"type": "string", "format": "binary"}}},
    }
}

FileName = Annotated[str, Query(description="Of a file that is sent as it is; its ending says what it is.")]
ExistingRows = Annotated[Literal["refuse", "skip"], Query(description="What to do with rows whose ids exist.")]
LabelsFrom = Annotated[Literal["auto", "folders", "none"], Query(description="Where labels of images come from.")]

write_router = api_router("write", "tasks")


class DuplicatesBody(RequestBody):
    cosine: Annotated[
        float | None, Field(ge=MIN_COSINE, le=1, description="Of the features of two items, at least; 0.97 by default.")
    ] = None
    distance: Annotated[
        StrictInt | None,
        Field(
            ge=0, le=512, description="Bits in which two codes differ at most; 3 where there are no rescoring codes."
        ),
    ] = None
    where: FilterCondition = None
    limit: Annotated[StrictInt, Field(ge=1, le=MAX_GROUPS, description="Groups, the earliest first.")] = MAX_GROUPS


@write_router.post("/upload", openapi_extra=UPLOAD_BODY)
async def upload(
    request: Request,
    executor: ExecutorParam,
    filename: FileName = "",
    existing: ExistingRows = "refuse",
    labels: LabelsFrom = "auto",
) -> TaskResponse:
    """Import a file of rows, images, texts or a ZIP of them. Its task has what was added, once it is done."""
    return TaskResponse.of(await start_import(request, executor, filename, existing, labels))


@read_router.post("/duplicates")
async def duplicates(executor: ExecutorParam, body: DuplicatesBody) -> TaskResponse:
    """Find groups of items that are nearly the same. Its task has `groups`, lists of ids, once it is done."""
    return TaskResponse.of(await find_duplicates(executor, body.cosine, body.distance, body.where, body.limit))


async def find_duplicates(
    executor: CollectionExecutor,
    cosine: float | None,
    distance: int | None,
    where: Filter | None = None,
    limit: int = MAX_GROUPS,
) -> Task:
    """Start a task that finds near-duplicates."""
    if distance is not None and distance >= (bits := executor.collection.bits):
        raise InvalidInput(f"distance: expected less than {bits}, the bits of a code, got {distance}")
    likeness = await executor.read(lambda collection: check_likeness(collection.stats(), cosine, distance))

    def find(collection: Collection, report: Report) -> dict[str, Any]:
        progress = partial(report, message="comparing codes")
        own = likeness._asdict()
        return {**own, "groups": collection.duplicates(**own, where=where, limit=limit, progress=progress)}

    return executor.tasks.start("duplicates", f"Near-duplicates {likeness}", find, "read")


def file_indexer(executor: CollectionExecutor) -> FileIndexer | None:
    """Return what indexes images or texts for a collection, None if it takes rows of features only."""
    return executor.query_encoder if isinstance(executor.query_encoder, FileIndexer) else None


async def start_import(
    request: Request, executor: CollectionExecutor, name: str = "", existing: str = "", labels: str = ""
) -> Task:
    """Store the files of a request's body, and start a task that imports them.

    Of a form, the fields `existing` and `labels` count; else the arguments.
    """
    if executor.collection.read_only:
        raise InvalidInput("upload: expected a collection that can be written, got one that is open for reading only")
    limit, indexer = app_state(request).settings.max_upload_bytes, file_indexer(executor)
    upload = executor.uploads.begin(accepted_suffixes(indexer), check_length(request, limit))
    try:
        await receive(request, upload, name, limit)
        check_upload(upload)
        chosen = {"existing": existing, "labels": labels, **upload.fields}
        work = FileImport(
            upload,
            indexer,
            _choice(chosen["existing"], "existing", EXISTING_CHOICES),
            _choice(chosen["labels"], "labels", LABELS_FROM),
        )
        title = upload.files[0] if len(upload.files) == 1 else f"{len(upload.files):,} files"
        upload.task = executor.tasks.start("import", f"Import {title}", work.run, "write")
    except BaseException:
        executor.uploads.remove(upload)
        raise
    return upload.task


def _choice(value: str, name: str, choices: tuple[str, ...]) -> str:
    """Return one of these choices, the first for an empty text."""
    if value and value not in choices:
        raise InvalidInput(f"{name}: expected {' or '.join(choices)}, got {value[:40]!r}")
    return value or choices[0]
