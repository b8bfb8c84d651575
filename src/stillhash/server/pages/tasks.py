"""Long work on the collection page: start it, watch it, cancel it, and download what it wrote."""

from urllib.parse import quote

from fastapi import Request
from starlette.responses import FileResponse, RedirectResponse, Response

from stillhash.errors import InvalidInput
from stillhash.server.auth import Key
from stillhash.server.dependencies import ExecutorParam, app_state
from stillhash.server.pages.rendering import form_text, page_router, read_form, render, templates
from stillhash.server.routes_tasks import TASK_KINDS, TaskParam, exported_file, start_upkeep
from stillhash.server.tasks import Task
from stillhash.server.write_queue import CollectionExecutor

read_router, admin_router = page_router("read"), page_router("admin")


def visible_tasks(executor: CollectionExecutor, visitor: Key) -> list[Task]:
    """Return the tasks that a visitor may see, the latest first."""
    return [task for task in executor.tasks.list() if visitor.has_role(task.role)]


templates.env.globals["visible_tasks"] = visible_tasks


@read_router.get("/c/{name}/tasks")
async def tasks(request: Request, executor: ExecutorParam) -> Response:
    """Return the list of tasks, as the page's script fetches it while one runs."""
    return _answer(request, executor)


@admin_router.post("/c/{name}/tasks")
async def start_task(request: Request, executor: ExecutorParam) -> Response:
    """Start to verify, compact, snapshot or export the collection."""
    form = await read_form(request)
    name = form_text(form, "kind")
    kind = next((one for one in TASK_KINDS if one == name), None)
    if kind is None:
        raise InvalidInput(f"kind: expected one of {', '.join(TASK_KINDS)}, got {name[:40]!r}")
    start_upkeep(executor, app_state(request).settings, kind, form_text(form, "format") or None)
    return _answer(request, executor)


@read_router.post("/c/{name}/tasks/{id}/cancel")
async def cancel_task(request: Request, executor: ExecutorParam, task: TaskParam) -> Response:
    """Cancel a task, or drop one that has ended from the list."""
    executor.tasks.cancel(task)
    return _answer(request, executor)


@read_router.get("/c/{name}/tasks/{id}/file")
async def task_file(request: Request, task: TaskParam) -> Response:
    """Download the file that an export has written."""
    path = exported_file(task, app_state(request).settings)
    return FileResponse(path, filename=path.name, content_disposition_type="attachment")


def _answer(request: Request, executor: CollectionExecutor) -> Response:
    """Return the list for a script; without one, go back to the collection page."""
    if "hx-request" in request.headers:
        return render(request, "task_list.html", executor)
    return RedirectResponse(f"/c/{quote(executor.name)}/collection#tasks", 303)
