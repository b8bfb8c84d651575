"""The report on labels that are missing, wrong or late, and on pre-processing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhash.experiments import figures
from stillhash.experiments.data import Dataset
from stillhash.experiments.presets import PRESETS
from stillhash.experiments.report import report
from stillhash.experiments.results import EXPERIMENT_KINDS, read_results
from stillhash.experiments.run import records
from tests.experiments.test_report import line, tables, write, written
from tests.support.toys import toy

AXES = {"labelled-share": "labelled_share", "label-noise": "label_noise", "label-delay": "label_delay"}
HEADINGS = {
    "labelled-share": "## Quality by share of labelled rows",
    "label-noise": "## Quality by label noise",
    "label-delay": "## Quality by label delay",
}


def axis(experiment: str, values: dict[float, float], **changes: Any) -> list[dict[str, Any]]:
    """Lines of one method, the mAP by the value of the axis."""
    return [line(experiment=experiment, **{AXES[experiment]: x}, map=y, **changes) for x, y in values.items()]


def processed(method: str, on: bool, chosen_by: float, **changes: Any) -> dict[str, Any]:
    params = {"center": on, "unit_norm": on, **changes.pop("params", {})}
    values = {"map": chosen_by, "precision_10": 0.5}
    return line(experiment="preprocessing", method=method, params=params, validation=values, **changes)


@pytest.mark.parametrize("experiment", AXES)
def test_each_axis_has_tables_of_three_measures_and_a_figure(experiment: str, tmp_path: Path) -> None:
    values: dict[float, float] = {1: 0.5, 0: 0.4} if experiment == "labelled-share" else {0: 0.5, 1: 0.4}
    lines = axis(experiment, values, precision_10=0.7, ndcg_10=0.3, labelled_rows=800)
    lines += axis(experiment, {0: 0.45, 1: 0.6}, method="hmoh", precision_10=0.8, ndcg_10=0.2, labelled_rows=800)
    lines += axis(experiment, {0: 0.1, 1: 0.2}, bits=64)
    text = written(tmp_path, lines)
    section = text[text.index(HEADINGS[experiment]) : text.index("## Not in this report")]
    assert section.count("\n### ") == section.count("![") == 2 and section.count("**bold**") == 2
    quality, precision, ndcg, longer = tables(section)
    assert [one for one in ("mAP:", "P@10:", "nDCG@10:", "P@100:") if one in section] == ["mAP:", "P@10:", "nDCG@10:"]
    assert next(iter(quality.values())) == ["0", "1"] and quality["*labelled rows*"] == ["800", "800"]
    assert quality["HMOH"][1] == "**0.600**" and quality["OHSL"][1] == f"<u>{values[1]:.3f}</u>"
    assert precision["OHSL"] == ["<u>0.700</u>"] * 2 and ndcg["OHSL"] == ["**0.300**"] * 2
    assert longer["OHSL"] == ["**0.100**", "**0.200**"] and longer["*labelled rows*"] == ["—", "—"]
    for kind in ("png", "svg"):
        assert len(list((tmp_path / "out").glob(f"quality-by-*.{kind}"))) == 2
    assert (tmp_path / "out" / "report.html").read_text(encoding="utf-8").count("<svg") == 2
    assert "## Retrieval quality" not in text


def test_seeds_are_means_and_initial_stages_have_parts_of_their_own(tmp_path: Path) -> None:
    lines = axis("labelled-share", {0.1: 0.3, 1: 0.5}, labelled_rows=10)
    lines += axis("labelled-share", {0.1: 0.5, 1: 0.7}, seed=1, labelled_rows=20)
    lines += axis("labelled-share", {0.1: 0.9}, dataset="toy, 3,000 labelled initial rows")
    text = written(tmp_path, lines)
    several, labelled = tables(text[text.index("## Quality by share") :])[:2]
    assert several["OHSL"] == ["**0.400 ± 0.141**", "**0.600 ± 0.141**"] and several["*labelled rows*"] == ["15", "15"]
    assert labelled["labelled share"] == ["0.1"] and labelled["OHSL"] == ["**0.900**"]
    assert "### toy, 3,000 labelled initial rows, 32 bits" in text and text.count("![") == 1  # one value is no line


@pytest.mark.parametrize(("key", "value"), [("labelled_share", 0.5), ("label_noise", 0.25), ("label_delay", 5)])
def test_other_tables_do_not_mix_labels(key: str, value: float, tmp_path: Path) -> None:
    other = next(name for name in AXES if AXES[name] != key)
    lines = [line(dataset="coco", method=method, **{key: v}) for method in ("ohsl", "hmoh") for v in (value, None)]
    lines += [line(experiment=other, **{AXES[other]: x, key: value}) for x in (0, 1)] + axis(other, {0: 0.1, 1: 0.2})
    run_set = read_results(write(tmp_path / "in", lines))
    name = f", {key.replace('_', ' ')} {value:g}"
    assert {run.dataset for run in run_set.runs} == {"coco", f"coco{name}", "toy", f"toy{name}"}
    assert len(run_set.runs) == 8
    text = written(tmp_path, lines)
    assert text.count("paper's own Table") == 1  # with all labels, true and in time
    assert f"### coco{name}\n" in text and "### coco\n" in text and f"### toy{name}, 32 bits" in text


def test_lines_without_the_fields_have_all_labels(tmp_path: Path) -> None:
    (run,) = read_results(write(tmp_path, [line(experiment="labelled-share"), line(experiment="labelled-share")])).runs
    assert run.swept == 1 and run.dataset == "toy" and run.end.labelled_rows is None and run.end.validation == {}


def test_a_logarithmic_axis_may_have_zero(tmp_path: Path) -> None:
    for values, scale in (({0.01: 0.1, 1: 0.2}, "log"), ({0: 0.1, 0.01: 0.1, 1: 0.2}, "symlog")):
        runs = read_results(write(tmp_path, axis("labelled-share", values))).runs
        lines = figures.axis_lines(runs, figures.looks(run.variant for run in runs))
        chart = figures.sweep_chart(lines, "title", "labelled share", log=True)
        assert chart.axes[0].get_xscale() == scale and list(chart.axes[0].get_xticks()) == sorted(values)
        assert [one.label for one in lines] == ["OHSL"] and lines[0].x == sorted(values)


def test_preprocessing_is_chosen_on_the_queries_set_apart(tmp_path: Path) -> None:
    lines = [
        processed("ohsl", True, 0.5, map=0.4, precision_10=0.6),
        processed("ohsl", False, 0.4, map=0.7, precision_10=0.9),  # better where it is not to be chosen
        processed("hmoh", True, 0.2, map=0.3, params={"merge": "sum_lsh"}),
        processed("hmoh", False, 0.3, map=0.5, params={"merge": "sum_lsh"}),
        processed("hmoh", False, 0.3, map=0.45),
        line(experiment="preprocessing", method="okh", map=0.9),  # of no queries set apart
    ]
    text = written(tmp_path, lines)
    section = text[text.index("## The better pre-processing") :]
    assert "### toy, 32 bits" in section and "## Retrieval quality" not in text
    (table, *_) = tables(section)
    assert table[""] == ["pre-processing", "mAP", "P@10", "P@100", "nDCG@10", "mAP, the other"]
    assert list(table) == ["", "OHSL", "HMOH", "HMOH (merge=sum_lsh)"]
    assert table["OHSL"] == ["centred, unit norm", "0.400", "**0.600**", "—", "—", "0.700"]
    assert table["HMOH (merge=sum_lsh)"] == ["none", "**0.500**", "—", "—", "—", "0.300"]
    assert table["HMOH"] == ["none", "0.450", "—", "—", "—", "—"]


def test_preprocessing_is_chosen_by_the_mean_over_seeds(tmp_path: Path) -> None:
    lines = [processed("ohsl", True, value, seed=seed, map=0.2 + 0.2 * seed) for seed, value in enumerate((0.9, 0.1))]
    lines += [processed("ohsl", False, 0.6, seed=seed, map=0.6) for seed in range(2)]
    table = tables(written(tmp_path, lines))[0]
    assert table["OHSL"] == ["none", "**0.600 ± 0.000**", "—", "—", "—", "0.300 ± 0.141"]


def test_presets_have_kinds_that_reports_know() -> None:
    for preset in PRESETS.values():
        assert {job.experiment for job in preset("scenes", 1, ())} <= set(EXPERIMENT_KINDS)


def test_a_report_of_real_runs(tmp_path: Path) -> None:
    X, Y = toy(1600)
    data, results = Dataset("toy", (X,), 1.0, Y, np.arange(100)), tmp_path / "in"
    results.mkdir()
    methods = ("tally", "lemon")
    for preset in (*AXES, "preprocessing"):
        jobs = PRESETS[preset]("toy", 1, methods)
        for job in (replace(job, bits=16, queries=None) for job in jobs if job.first == 300 and job.bits == 64):
            lines = "".join(json.dumps(one) + "\n" for one in records(job, data))
            (results / job.file).write_text(lines, encoding="utf-8")
    paths = report(results, tmp_path / "out")
    text = paths[0].read_text(encoding="utf-8")
    assert all(heading in text for heading in HEADINGS.values())
    share, *_ = tables(text)
    assert share["labelled share"] == ["0", "0.01", "0.1", "0.5", "1"]
    assert share["*labelled rows*"] == ["0", "15", "150", "750", "1,500"]
    assert list(share)[2:] == ["Tally", "Tally (codes_see_labels=false)", "LEMON"]
    chosen = tables(text[text.index("## The better pre-processing") :])[0]
    assert list(chosen) == ["", "Tally", "LEMON"] and {row[0] for row in chosen.values()} <= {
        *("pre-processing", "centred, unit norm", "none")
    }
    assert len([path for path in paths if path.suffix == ".png"]) == 3
