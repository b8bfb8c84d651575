"""Routes of tasks: long work that goes on while its client does something else."""

from typing import Annotated, Any, Literal

from fastapi import Depends, Request
from pydantic import BaseModel, Field
from starlette.responses import FileResponse

from stillhash.server.dependencies import ExecutorParam, api_router, app_state
from stillhash.server.request_body import RequestBody
from stillhash.server.tasks import Task, TaskState
from stillhash.server.upkeep_tasks import TaskKind, exported_file, start_upkeep

read_router, admin_router = api_router("read", "tasks"), api_router("admin", "tasks")

ExportFormatName = Literal["jsonl", "parquet"]


class StartTaskBody(RequestBody):
    kind: TaskKind
    format: Annotated[ExportFormatName | None, Field(description="Of an export; jsonl by default.")] = None


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
    """Start to verify, compact, snapshot or export the collection.

    Snapshots and exports go to the server's folder for them.
    """
    return TaskResponse.of(start_upkeep(executor, app_state(request).settings, body.kind, body.format))


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
