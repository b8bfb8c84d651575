"""Upload files to import, and show how far that is."""

from urllib.parse import quote

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from stillhash.errors import NotFound
from stillhash.server.auth import Key
from stillhash.server.dependencies import ExecutorParam
from stillhash.server.pages.rendering import form_text, page_router, read_form, render
from stillhash.server.routes_long_work import start_import
from stillhash.server.tasks import Task
from stillhash.server.write_queue import CollectionExecutor

write_router = page_router("write")


def visible_task(request: Request, executor: CollectionExecutor, task_id: str) -> Task | None:
    """Return a task of this id that the visitor may see, None if it is listed no more."""
    key: Key = request.state.key
    try:
        task = executor.tasks.get(task_id)
    except NotFound:
        return None
    return task if key.has_role(task.role) else None


def require_task(request: Request, executor: CollectionExecutor, task_id: str) -> Task:
    """Return a task of this id that the visitor may see."""
    task = visible_task(request, executor, task_id)
    if task is None:
        raise NotFound("task: it is listed no more. Start it again")
    return task


@write_router.post("/c/{name}/import")
async def start_upload(request: Request, executor: ExecutorParam) -> Response:
    """Take files, and import them; a browser without scripts goes back to the page."""
    task = await start_import(request, executor)
    if "hx-request" in request.headers:
        return render(request, "collection_import.html", executor, task=task)
    return RedirectResponse(f"/c/{quote(executor.name)}/collection?task={task.id}#add", 303)


@write_router.get("/c/{name}/import")
async def import_progress(request: Request, executor: ExecutorParam, task: str) -> Response:
    """Show how far an import is."""
    return render(request, "collection_import.html", executor, task=require_task(request, executor, task))


@write_router.post("/c/{name}/import/cancel")
async def cancel_import(request: Request, executor: ExecutorParam) -> Response:
    task = require_task(request, executor, form_text(await read_form(request), "task"))
    if not task.ended:
        executor.tasks.cancel(task)
    if "hx-request" in request.headers:
        return render(request, "collection_import.html", executor, task=task)
    return RedirectResponse(f"/c/{quote(executor.name)}/collection?task={task.id}#add", 303)
