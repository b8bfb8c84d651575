"""The route that imports uploaded files, as a task."""

from fastapi import Request

from stillhash.errors import InvalidInput
from stillhash.server.dependencies import app_state
from stillhash.server.file_imports import FileImport, FileIndexer, accepted_suffixes, check_upload
from stillhash.server.tasks import Task
from stillhash.server.upload_body import check_length, receive
from stillhash.server.write_queue import CollectionExecutor

EXISTING_CHOICES, LABELS_FROM = ("refuse", "skip"), ("auto", "folders", "none")


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
