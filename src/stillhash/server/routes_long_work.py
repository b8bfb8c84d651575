"""Routes whose work takes a while, and goes on as a task: imports of uploaded files, and near-duplicates."""

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Query, Request
from pydantic import Field, StrictInt

from stillhash.collection import Collection
from stillhash.collection.duplicates import check_likeness
from stillhash.collection.types import Filter
from stillhash.errors import InvalidInput
from stillhash.numeric.cosine_groups import MIN_COSINE
from stillhash.server.dependencies import ExecutorParam, api_router, app_state
from stillhash.server.file_imports import FileImport, FileIndexer, accepted_suffixes, check_upload
from stillhash.server.request_body import RAW_MEDIA, RequestBody
from stillhash.server.routes_tasks import TaskResponse
from stillhash.server.schemas import FilterCondition
from stillhash.server.tasks import Report, Task
from stillhash.server.upload_body import check_length, receive
from stillhash.server.write_queue import CollectionExecutor

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

read_router, write_router = api_router("read", "tasks"), api_router("write", "tasks")


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
