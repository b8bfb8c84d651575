"""Run experiments: one pass over a stream, with a method and checkpoints. It knows no method by name.

A job is one pass of one method over one dataset; its records are one file of JSON lines, written whole when the job
is done, so a stopped run continues with the jobs that are missing. Reports are made from these files alone.
"""

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from stillhash.experiments.data import Dataset
from stillhash.experiments.drift import open_stream
from stillhash.experiments.job import Job
from stillhash.experiments.label_studies import LABEL_STUDIES
from stillhash.experiments.passes import Pass, by_labels, by_rows
from stillhash.experiments.texts import TEXT_EXPERIMENTS
from stillhash.numeric.threads import usable_cores


def run(jobs: list[Job], out: Path, workers: int | None = None, done: Callable[[Job], None] | None = None) -> int:
    """Run the jobs whose files are missing, as many at a time as there are cores; return how many ran."""
    out.mkdir(parents=True, exist_ok=True)
    missing = [job for job in jobs if not (out / job.file).exists()]
    with ProcessPoolExecutor(workers or usable_cores(), mp_context=get_context("spawn")) as pool:
        running = {pool.submit(run_job, job, out): job for job in missing}
        for finished in as_completed(running):
            finished.result()
            if done:
                done(running[finished])
    return len(missing)


def run_job(job: Job, out: Path) -> None:
    """Run one job into its file, which appears only when it is complete."""
    lines = [json.dumps(record) for record in records(job, _open_cached(job.data))]
    unfinished = out / f".{job.file}.{os.getpid()}"
    unfinished.write_text("\n".join(lines) + "\n", encoding="utf-8")
    unfinished.rename(out / job.file)


_open_cached = lru_cache(maxsize=1)(open_stream)  # the jobs of a worker are mostly on one dataset


def records(job: Job, data: Dataset) -> Iterator[dict[str, Any]]:
    """Yield a record at every checkpoint of a job."""
    if study := (TEXT_EXPERIMENTS | LABEL_STUDIES).get(job.experiment):
        return study(job, data)
    return (by_labels if job.experiment == "few-labels" else by_rows)(Pass(job, data))
