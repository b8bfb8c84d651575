"""The commands `stillhash experiment` with labels of stored items: late-labels, new-class and corrections."""

from pathlib import Path
from typing import Annotated, Any

import typer

from stillhash.cli.options import optional_module
from stillhash.cli.output import AsJson, answer, progress_bar
from stillhash.errors import InvalidInput

app = typer.Typer()

StudyData = Annotated[str, typer.Option(help="A feature folder, or 'scenes', the built-in digits.")]
OneLabelData = Annotated[str, typer.Option(help="A feature folder with one label on each row.")]
Lengths = Annotated[str, typer.Option(help="Lengths of the codes, separated by commas.")]
Seeds = Annotated[int, typer.Option(min=1, help="Repetitions, with random_state 0, 1, ... and other labels.")]
StudyQueries = Annotated[int, typer.Option(min=1, help="Queries, about; they are no items.")]
StreamRows = Annotated[int | None, typer.Option(min=600, help="Only the first rows of the stream are items.")]
StudyWorkers = Annotated[int | None, typer.Option(min=1, help="Jobs at a time; default: one for each core.")]
Results = Annotated[Path, typer.Option(help="Folder of result files, one for each job.")]


@app.command(name="late-labels")
def late_labels(
    data: StudyData = "scenes",
    bits: Lengths = "64,128",
    seeds: Seeds = 3,
    queries: StudyQueries = 1000,
    rows: StreamRows = None,
    workers: StudyWorkers = None,
    results: Results = Path("results"),
    as_json: AsJson = False,
) -> None:
    """Store items without labels and label them later, and compare with float cosine and labels at insertion.

    \b
    Examples:
      stillhash experiment late-labels --seeds 1 --queries 100 --rows 3000
    """
    _run("late-labels", data, bits, seeds, queries, rows, workers, results, as_json)


@app.command(name="new-class")
def new_class(
    data: OneLabelData,
    bits: Lengths = "64,128",
    seeds: Seeds = 3,
    queries: StudyQueries = 1000,
    rows: StreamRows = None,
    workers: StudyWorkers = None,
    results: Results = Path("results"),
    as_json: AsJson = False,
) -> None:
    """Leave one class of labelled items without labels, label it later, and compare its queries with float cosine.

    \b
    Examples:
      stillhash experiment new-class --data FOLDER --seeds 1
    """
    _run("new-class", data, bits, seeds, queries, rows, workers, results, as_json)


@app.command()
def corrections(
    data: StudyData = "scenes",
    bits: Lengths = "64,128",
    seeds: Seeds = 3,
    queries: StudyQueries = 1000,
    rows: StreamRows = None,
    workers: StudyWorkers = None,
    results: Results = Path("results"),
    as_json: AsJson = False,
) -> None:
    """Correct labels of stored items, delete items, and compare with a collection that was right from the start.

    \b
    Examples:
      stillhash experiment corrections --seeds 1 --queries 100 --rows 3000
    """
    _run("corrections", data, bits, seeds, queries, rows, workers, results, as_json)


def _run(
    study: str,
    data: str,
    bits: str,
    seeds: int,
    queries: int,
    rows: int | None,
    workers: int | None,
    results: Path,
    as_json: bool,
) -> None:
    """Run the jobs that have no result file, and print the tables of all results in the folder."""
    names = ("label_studies", "label_study_tables", "results", "run", "tables")
    studies, study_tables, files, runner, tables = (optional_module(f"experiments.{n}", "experiments") for n in names)
    if not all(length.isdigit() for length in bits.split(",")):
        raise InvalidInput(f"bits: expected whole numbers separated by commas, got {bits!r}")
    jobs = studies.study_jobs(study, data, tuple(map(int, bits.split(","))), seeds, queries, rows)
    with progress_bar(f"experiment {study}", len(jobs)) as update:
        update(completed=sum((results / job.file).exists() for job in jobs))
        ran = runner.run(jobs, results, workers, lambda job: update(advance=1))
    result: dict[str, Any] = {"jobs": len(jobs), "run": ran, "skipped": len(jobs) - ran, "results": str(results)}
    runs = [run for run in files.read_results(results).runs if run.experiment == study]
    sections = [table for section in study_tables.study_sections(runs) for table in section["tables"]]
    answer(result, as_json, lambda _, console: tables.print_sections(console, sections))
