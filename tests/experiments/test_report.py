"""Reports from small made-up result files. What a figure looks like is not judged here, only that it is there."""

from __future__ import annotations

import json
import re
import statistics
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhash.errors import InvalidInput
from stillhash.experiments import figures
from stillhash.experiments.report import report
from stillhash.experiments.report_tables import fit_time, plain
from stillhash.experiments.results import PAPER_TABLES, Variant, read_results


def line(**changes: Any) -> dict[str, Any]:
    """A line of a run that ended; its time is 1 s of learning per 1,000 rows by default."""
    rows = changes.get("rows", 1000)
    return {
        "dataset": "toy",
        "experiment": "table",
        "method": "ohsl",
        "bits": 32,
        "seed": 0,
        "params": {},
        "rows": rows,
        "final": True,
        "map": 0.5,
        "expected_map": changes.get("map", 0.5),
        "precision_10": None,
        "precision_100": None,
        "ndcg_10": None,
        "queries": 50,
        "database": 1000,
        "chance": 0.125,
        "seconds": {"learn": rows / 1000, "refresh": 0.0, "encode": 0.0, "io": 0.0},
        "refreshes": 0,
        "machine": {"cpu": "abacus", "cores": 2},
        "versions": {"numpy": "2.0"},
        "commit": "abc123",
        "a key of tomorrow": [1, 2],
        **changes,
    }


def write(folder: Path, lines: Iterable[dict[str, Any]], name: str = "results.jsonl", end: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(one) + "\n" for one in lines) + end, encoding="utf-8")
    return folder


def written(tmp_path: Path, lines: Iterable[dict[str, Any]]) -> str:
    """The Markdown made of these lines."""
    report(write(tmp_path / "in", lines), tmp_path / "out")
    return (tmp_path / "out" / "report.md").read_text(encoding="utf-8")


def tables(text: str) -> list[dict[str, list[str]]]:
    """The tables of a Markdown text: the cells of each row by its first cell."""
    tables_of_text = []
    for block in text.split("\n\n"):
        if block.startswith("|"):
            rows = [[cell.strip() for cell in row.strip("|").split(" |")] for row in block.splitlines()]
            tables_of_text.append({first: cells for first, *cells in rows if first != "---"})
    return tables_of_text


def curve(values: Sequence[float], **changes: Any) -> list[dict[str, Any]]:
    last = len(values) - 1
    return [line(rows=1000 * i, map=value, final=i == last, **changes) for i, value in enumerate(values)]


# ---- the whole ----


def everything() -> list[dict[str, Any]]:
    lines = []
    for method, top in (("ohsl", 0.6), ("ohsl-sym", 0.5), ("oasis", 0.52), ("hmoh", 0.58)):
        for seed in range(2):
            lines += curve([0.4, top - 0.05, top - 0.01, top + 0.01 * seed], method=method, seed=seed)
    for method, io in (("ohsl", 0.0), ("hmoh", 4.0)):
        for i in range(6):
            seconds = {"learn": float(i), "refresh": 0.0, "encode": 0.0, "io": io * i * i}
            lines.append(line(experiment="time", method=method, rows=1000 * i, final=i == 5, map=None, seconds=seconds))
    lines += [line(experiment="C", params={"C": C} if C != 0.01 else {}, map=C / 2) for C in (0.001, 0.01, 0.1)]
    lines += [line(experiment="length", params={"target_factor": ratio}, map=ratio / 10) for ratio in (1, 2, 4)]
    return lines


@pytest.fixture(scope="module")
def report_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("report")
    return report(write(folder / "in" / "deep", everything()), folder / "out")


def test_the_returned_files_exist_and_no_others(report_files: list[Path]) -> None:
    assert {path.name for path in report_files} == {path.name for path in report_files[0].parent.iterdir()}
    assert [path.name for path in report_files[:2]] == ["report.md", "report.html"]
    stems = ("curves-toy-32", "time-toy-32", "step-toy", "length-toy", "same-codes-toy-32")
    assert {path.name for path in report_files[2:]} == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}
    for path in report_files[2:]:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and path.stat().st_size > 5000
        else:
            assert ET.parse(path).getroot().tag.endswith("svg")


def test_all_sections_are_in_the_report(report_files: list[Path]) -> None:
    text = report_files[0].read_text(encoding="utf-8")
    for what in ("Tables 1 and 2", "Figures 3 and 4", *(f"(Figure {i})" for i in (5, 6, 7, 8)), "Speed of learning"):
        assert what in text
    assert "Not in this report" not in text
    assert "No runs of LEGO." in text


class Page(HTMLParser):
    """Notes what a browser would fetch, and which ids are there."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "srcset", "data"):
                self.links.append(value or "")


def test_the_page_is_self_contained(report_files: list[Path]) -> None:
    text = report_files[1].read_text(encoding="utf-8")
    page = Page(text)
    assert page.tags.count("svg") == 5
    assert not {"img", "script", "link", "iframe", "object"} & set(page.tags)
    assert "http:" not in text and "https:" not in text and "@import" not in text
    assert len(page.ids) == len(set(page.ids))  # although five figures came with ids of their own
    referred = {link.removeprefix("#") for link in page.links} | set(re.findall(r"url\(#([^)]+)\)", text))
    assert referred and referred <= set(page.ids)


def test_the_page_suits_the_dark_and_a_phone(report_files: list[Path]) -> None:
    text = report_files[1].read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text
    pictures = text[text.index("<svg") :]
    assert "currentColor" in pictures and figures.INK not in pictures and figures.GROUND not in pictures


def test_the_same_files_give_the_same_report(tmp_path: Path) -> None:
    results = write(tmp_path / "in", curve([0.1, 0.2, 0.3]))
    first, second = (report(results, tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


# ---- tables ----


def test_best_is_bold_and_second_underlined_in_each_column(tmp_path: Path) -> None:
    final = {16: {"ohsl": 0.5, "hmoh": 0.6, "okh": 0.4}, 64: {"ohsl": 0.7, "hmoh": 0.3, "okh": 0.65}}
    lines = [line(method=name, bits=bits, map=value) for bits, row in final.items() for name, value in row.items()]
    table = tables(written(tmp_path, lines))[0]
    assert list(table) == ["", "OHSL", "HMOH", "OKH"]
    assert table[""] == ["16 bits", "64 bits"]
    assert table["OHSL"] == ["<u>0.500</u>", "**0.700**"]
    assert table["HMOH"] == ["**0.600**", "0.300"]
    assert table["OKH"] == ["0.400", "<u>0.650</u>"]


def test_means_that_print_alike_share_a_place(tmp_path: Path) -> None:
    values = {"ohsl": 0.50010, "hmoh": 0.50049, "okh": 0.4}
    table = tables(written(tmp_path, [line(method=name, map=value) for name, value in values.items()]))[0]
    assert [table[name] for name in ("OHSL", "HMOH", "OKH")] == [["**0.500**"], ["**0.500**"], ["<u>0.400</u>"]]


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    values = [0.5, 0.53, 0.59]
    lines = [line(seed=seed, map=value) for seed, value in enumerate(values)]
    lines += [line(method="okh", seed=seed, map=0.3 + 0.1 * seed) for seed in range(2)]
    text = written(tmp_path, lines)
    table = tables(text)[0]
    assert table["OHSL"] == [f"**0.540 ± {statistics.stdev(values):.3f}**"] == ["**0.540 ± 0.046**"]
    assert table["OKH"] == ["<u>0.350 ± 0.071</u> (n = 2)"]
    assert "over 3 seeds; cells of fewer seeds say so" in text
    assert "Queries: 50. Database: 1,000. Chance: 0.125." in text


def test_only_final_lines_count(tmp_path: Path) -> None:
    table = tables(written(tmp_path, curve([0.9, 0.8, 0.4])))[0]
    assert table["OHSL"] == ["**0.400**"]


def test_variants_have_rows_of_their_own(tmp_path: Path) -> None:
    lines = [
        line(method="brandnew", map=0.1),
        line(method="hmoh", params={"merge": "sum_lsh", "lr": 0.5}, map=0.3),
        line(method="hmoh", map=0.2),
    ]
    table = tables(written(tmp_path, lines))[0]
    assert list(table) == ["", "HMOH", "HMOH (lr=0.5, merge=sum_lsh)", "brandnew"]


@pytest.mark.parametrize(("change", "has_table"), [(0.0009, False), (0.0011, True)])
def test_expected_map_has_a_table_where_ties_matter(tmp_path: Path, change: float, has_table: bool) -> None:
    lines = [line(map=0.5), line(method="lsh", map=0.4, expected_map=0.4 + change)]
    text = written(tmp_path, lines)
    assert ("every order at once" in text) is has_table
    if has_table:
        assert tables(text)[1]["LSH"] == ["<u>0.401</u>"]


def test_every_measure_has_a_table(tmp_path: Path) -> None:
    values = {"map": 0.4, "precision_10": 0.8, "precision_100": 0.7, "ndcg_10": 0.3}
    old = {key: value for key, value in line(method="okh", map=0.2).items() if key not in values} | {"map": 0.2}
    text = written(tmp_path, [line(**values), line(method="lsh", **dict.fromkeys(values, 0.1)), old])
    *shown, _ = tables(text)[:5]
    assert [table["OHSL"] for table in shown] == [[f"**{value:.3f}**"] for value in values.values()]
    assert ["OKH" in table for table in shown] == [True, False, False, False]  # written before there were others
    assert re.findall(r"^(\S+):$", text, re.MULTILINE) == ["P@10", "P@100", "nDCG@10"]


@pytest.mark.parametrize(("dataset", "number", "name"), [("coco100k_x", 1, "MS-COCO"), ("nuswide21", 2, "NUS-WIDE")])
def test_the_papers_own_figures_stand_beside(tmp_path: Path, dataset: str, number: int, name: str) -> None:
    lines = [line(dataset=dataset, bits=bits) for bits in (16, 24, 96)]
    lines += [line(dataset=dataset, method="hmoh", params={"merge": "sum_lsh"}, bits=16, map=0.4)]
    text = written(tmp_path, lines)
    table = tables(text)[0]
    assert f"the paper's own Table {number} ({name}), made from other features" in text
    assert table[""] == ["16 bits", "24 bits", "96 bits", "*paper, 16*", "*paper, 96*"]
    printed = PAPER_TABLES[dataset[:4] if number == 1 else "nuswide"].map
    assert table["OHSL"][3:] == [f"*{printed['ohsl'][bits]:.3f}*" for bits in (16, 96)]
    assert table["HMOH (merge=sum_lsh)"][3:] == ["—", "—"]  # the paper's HMOH is the plain one
    assert table["HMOH"] == ["—", "—", "—", *(f"*{printed['hmoh'][bits]:.3f}*" for bits in (16, 96))]


def test_the_papers_figures_as_printed() -> None:
    assert PAPER_TABLES["coco"].map["ohsl"] == {16: 0.524, 32: 0.536, 64: 0.574, 96: 0.578}
    assert PAPER_TABLES["nuswide"].map["hmoh"] == {16: 0.668, 32: 0.716, 64: 0.725, 96: 0.728}
    assert all(len(paper.map) == 8 for paper in PAPER_TABLES.values())


def test_other_datasets_have_no_column_of_the_paper(tmp_path: Path) -> None:
    assert "paper," not in written(tmp_path, [line()])


# ---- labels ----


def few_labels(values: dict[int, float], **changes: Any) -> list[dict[str, Any]]:
    last = max(values)
    return [
        line(
            **{"experiment": "few-labels", "labelled": labels, "final": labels == last, "precision_10": value} | changes
        )
        for labels, value in values.items()
    ]


def test_quality_against_labels_has_a_table_and_a_chart_for_each_length(tmp_path: Path) -> None:
    lines = few_labels({0: 0.8, 10: 0.7, 1200: 0.9}) + few_labels({0: 0.6, 10: 0.7, 1200: 0.7}, seed=1)
    lines += few_labels({0: 0.5, 1200: 0.6}, bits=64)
    text = written(tmp_path, lines)
    section = text[text.index("## Quality against labels") :]
    short, long, *_ = tables(section)
    assert short["labelled rows"] == ["mAP", "P@10", "P@100", "nDCG@10"]
    assert [short[labels][1] for labels in ("0", "10", "1,200")] == ["0.700", "0.700 (+0.000)", "0.800 (+0.100)"]
    assert short["10"] == ["0.500 (+0.000)", "0.700 (+0.000)", "—", "—"]
    assert long["1,200"][1] == "0.600 (+0.100)"
    assert "Mean over 2 seeds." in section and "Mean over 1 seed." in section
    assert section.count("![") == 2 and (tmp_path / "out" / "labels-toy-64-ohsl.png").exists()


def test_checkpoints_differ_by_labelled_rows(tmp_path: Path) -> None:
    run_set = read_results(write(tmp_path, few_labels({10: 0.7, 0: 0.8}) + few_labels({0: 0.6}, final=True, seed=1)))
    assert [[at.labelled for at in run.checkpoints] for run in run_set.runs] == [[0, 10], [0]]


# ---- time ----


def timed(method: str, seconds: Sequence[float], part: str = "learn") -> list[dict[str, Any]]:
    nothing = dict.fromkeys(("learn", "refresh", "encode", "io"), 0.0)
    last = len(seconds) - 1
    return [
        line(
            experiment="time", method=method, rows=100 * (i + 1), final=i == last, map=None, seconds=nothing | {part: t}
        )
        for i, t in enumerate(seconds)
    ]


def test_time_table_has_totals_shares_fits_and_ratios(tmp_path: Path) -> None:
    lines = timed("ohsl", [1, 2, 3, 4]) + timed("hmoh", [10, 40, 90, 160], "io") + timed("okh", [1, 2])
    head, *_ = all_tables = tables(written(tmp_path, lines))
    assert head[""] == [
        *("rows", "total, s", "learning", "refreshing", "encoding", "I/O", "R² linear", "R² quadratic", "times OHSL")
    ]
    assert head["OHSL"] == ["400", "4", "100.0%", "0.0%", "0.0%", "0.0%", "1.0000", "1.0000", "1"]
    rows, total, *shares, linear, quadratic, ratio = head["HMOH"]
    assert (rows, total, shares) == ("400", "160", ["0.0%", "0.0%", "0.0%", "100.0%"])
    assert float(linear) < 0.95 and quadratic == "1.0000" and ratio == "40"
    assert head["OKH"][-3:] == ["—", "—", "1"]  # two points fit anything; OHSL had taken as long at 200 rows
    assert all_tables[1]["OHSL"] == ["100"]  # no table of quality, so speed is that of experiment time


def test_fits_recover_planted_curves() -> None:
    n = np.arange(1, 11) * 1000.0
    straight = fit_time(n, 3e-3 * n)
    assert straight is not None
    assert straight.linear == pytest.approx((3e-3,)) and straight.linear_r2 == pytest.approx(1)
    assert straight.quadratic == pytest.approx((3e-3, 0), abs=1e-12)
    bent = fit_time(n, 2e-3 * n + 5e-6 * n**2)
    assert bent is not None
    assert bent.quadratic == pytest.approx((2e-3, 5e-6)) and bent.quadratic_r2 == pytest.approx(1)
    assert bent.linear_r2 < 0.97


def test_fit_of_noise_is_worse_than_perfect() -> None:
    n = np.arange(1, 51) * 10.0
    noisy = fit_time(n, 0.1 * n + np.random.default_rng(0).normal(0, 2, 50))
    assert noisy is not None
    assert noisy.linear == pytest.approx((0.1,), rel=0.05)
    assert 0.9 < noisy.linear_r2 <= noisy.quadratic_r2 < 1


@pytest.mark.parametrize(
    ("rows", "seconds"), [([], []), ([1, 2], [1, 2]), ([1, 2, 3], [2, 2, 2]), ([0, 0, 0], [1, 2, 3])]
)
def test_too_few_or_equal_points_have_no_fit(rows: list[float], seconds: list[float]) -> None:
    assert fit_time(rows, seconds) is None


def test_time_axes_are_logarithmic_where_methods_lie_far_apart(tmp_path: Path) -> None:
    for slow, scale in ((30.0, "linear"), (3000.0, "log")):
        lines = timed("ohsl", [1, 2, 3]) + timed("hmoh", [1, slow / 2, slow])
        runs = read_results(write(tmp_path, lines)).runs
        look = figures.looks(run.variant for run in runs)
        chart = figures.time_chart(figures.curves(runs, lambda at: at.total, look), "time")
        assert chart.axes[0].get_yscale() == chart.axes[0].get_xscale() == scale


def test_speed_of_learning(tmp_path: Path) -> None:
    seconds = {"learn": 0.5, "refresh": 9.0, "encode": 9.0, "io": 9.0}
    lines = [line(rows=1000, seconds=seconds), line(seed=1, rows=1000, bits=32), line(bits=64, rows=2_000_000)]
    lines += [line(method="lsh", seconds=dict.fromkeys(seconds, 0.0))]
    text = written(tmp_path, lines)
    speed = tables(text[text.index("## Speed of learning") :])[0]
    assert speed["OHSL"] == ["1,500", "1,000"]
    assert "LSH" not in speed  # it learns nothing


# ---- missing and refused input ----


def test_absent_sections_are_left_out_and_named(tmp_path: Path) -> None:
    text = written(tmp_path, [line()])
    headings = [row for row in text.splitlines() if row.startswith("## ")]
    assert headings == [
        "## Retrieval quality (Tables 1 and 2)",
        "## Speed of learning",
        "## Not in this report",
        "## Where the numbers come from",
    ]
    missing = text[text.index("## Not in this report") :].split("\n\n")[1].splitlines()
    assert [re.match(r"- (.*?):", row)[1] for row in missing] == [  # type: ignore[index]
        "Figures 3 and 4",
        *(f"Figure {i}" for i in (5, 6, 7, 8)),
    ]
    assert "![" not in text and len(list((tmp_path / "out").iterdir())) == 2


def test_files_without_a_line_make_a_report_of_what_is_missing(tmp_path: Path) -> None:
    text = written(tmp_path, [])
    assert "Read 0 lines in 1 file." in text and text.count("\n- ") == 7


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"experiment": "tables"}, "experiment"),
        ({"experiment": "C", "method": "okh"}, "C in params"),
        ({"experiment": "length", "params": {"target_factor": 0}}, "target_factor in params"),
    ],
)
def test_a_bad_value_is_refused_with_file_and_line(tmp_path: Path, values: dict[str, Any], key: str) -> None:
    write(tmp_path, [line(), line(**values)])
    with pytest.raises(InvalidInput, match=rf"results\.jsonl, line 2: {key}: expected"):
        read_results(tmp_path)


def test_missing_keys_are_named(tmp_path: Path) -> None:
    bad = line()
    del bad["rows"], bad["seconds"]
    write(tmp_path / "in", [line(), line(seed=1), bad])
    with pytest.raises(InvalidInput, match=r"results\.jsonl, line 3: .*got no rows, seconds"):
        report(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["null", "[]", "3", "{"])
def test_a_line_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    write(tmp_path, [], end=text + "\n")
    with pytest.raises(InvalidInput, match=r"line 1: expected one JSON object"):
        read_results(tmp_path)


def test_only_what_is_needed_is_needed(tmp_path: Path) -> None:
    needed = ("dataset", "experiment", "method", "bits", "seed", "params", "rows", "final", "map", "seconds")
    lines = [{key: value for key, value in line(seed=seed).items() if key in needed} for seed in range(2)]
    lines[1] |= {"commit": None, "chance": None}
    text = written(tmp_path, lines)
    assert tables(text)[0]["OHSL"] == ["**0.500 ± 0.000**"]
    assert tables(text)[-1]["commit"] == ["not recorded"]


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^results"):
        report(tmp_path, tmp_path / "out")
    with pytest.raises(InvalidInput, match=r"^results"):
        report(tmp_path / "missing", tmp_path / "out")
    results = write(tmp_path / "in", [line()])
    with pytest.raises(InvalidInput, match=r"^out"):
        report(results, results / "results.jsonl")


# ---- runs ----


def test_a_later_line_of_the_same_run_replaces(tmp_path: Path) -> None:
    text = written(tmp_path, [line(map=0.1), line(map=0.2), line(seed=1, map=0.2)])
    assert tables(text)[0]["OHSL"] == ["**0.200 ± 0.000**"]


def test_sizes_are_not_mixed(tmp_path: Path) -> None:
    lines = [line(dataset="coco", map=0.9, queries=5, rows=100, database=100), line(dataset="coco"), line()]
    lines += [line(dataset="coco", experiment="time", map=None)]
    text = written(tmp_path, lines)
    assert re.findall("^### (.*)", text, re.MULTILINE)[:3] == [
        "coco (5 queries, 100 rows)",
        "coco (50 queries, 1000 rows)",
        "toy",
    ]
    assert [table["OHSL"][0] for table in tables(text)[:3]] == ["**0.900**", "**0.500**", "**0.500**"]
    assert "### coco\n" in text  # of experiment time there is one size


def test_unfinished_runs_are_left_out(tmp_path: Path) -> None:
    text = written(tmp_path, [line(), line(seed=1, map=0.9, rows=700, final=False)])
    assert tables(text)[0]["OHSL"] == ["**0.500**"]


def test_a_silent_line_of_a_sweep_is_at_the_default(tmp_path: Path) -> None:
    lines = [line(experiment="C", params={"C": C, "merge": "hmoh"}) for C in (0.1, 1)]
    lines += [line(experiment="C", params={"merge": "hmoh"})]
    runs = read_results(write(tmp_path, lines)).runs
    assert [run.swept for run in runs] == [0.01, 0.1, 1]
    assert {run.variant for run in runs} == {Variant("ohsl", (("merge", "hmoh"),))}
    (swept,) = figures.sweep(runs)
    assert swept.x == [0.01, 0.1, 1] and swept.label == "32 bits"


def test_curves_are_means_with_extremes_where_all_seeds_have_a_checkpoint(tmp_path: Path) -> None:
    lines = curve([0.1, 0.2, 0.3], seed=0) + curve([0.3, 0.3, 0.4], seed=1)
    lines += [line(seed=1, rows=1500, map=0.9, final=False)]
    runs = read_results(write(tmp_path, lines)).runs
    (curve_line,) = figures.curves(runs, lambda at: at.map, figures.looks(run.variant for run in runs))
    assert curve_line.x == [0, 1000, 2000]
    assert curve_line.mean == pytest.approx([0.2, 0.25, 0.35])
    assert (curve_line.low, curve_line.high) == ([0.1, 0.2, 0.3], [0.3, 0.3, 0.4])


def test_provenance_has_commits_machines_and_versions(tmp_path: Path) -> None:
    lines = [line(), line(seed=1, commit="def456", machine={"cpu": "abacus", "load": [1]})]
    lines += [line(seed=seed, machine={"cores": seed}) for seed in range(2, 7)]
    text = written(tmp_path, lines)
    provenance = tables(text)[-1]
    assert provenance["commit"] == ["abc123, def456"]
    assert provenance["machine: cpu"] == ["abacus"] and provenance["versions: numpy"] == ["2.0"]
    assert provenance["machine: cores"] == ["2 to 6"] and provenance["machine: load"] == [r"\[1\]"]


# ---- presentation ----


def test_names_from_files_are_only_text(tmp_path: Path) -> None:
    name = "<script>alert(1)</script> | *a* _b_ `c` $x$ ../../up"
    lines = [at for dataset in (name, name.replace("|", "/")) for at in curve([0.1, 0.2], dataset=dataset, method=name)]
    paths = report(write(tmp_path / "in", lines), tmp_path / "out")
    assert {path.parent for path in paths} == {tmp_path / "out"} and len(set(paths)) == len(paths) == 6
    page = paths[1].read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; | *a* _b_ `c` $x$ ../../up</h3>" in page


def test_plain_leaves_ordinary_names_alone() -> None:
    assert plain("coco100k_mnv2, OHSL-sym (merge=sum_lsh)") == "coco100k_mnv2, OHSL-sym (merge=sum_lsh)"
    assert plain("_a_\nb|c") == r"\_a\_ b\|c"


def test_methods_look_different_and_variants_share_a_colour() -> None:
    plain_ones = [Variant(name) for name in figures.METHOD_LOOKS]
    other = Variant("hmoh", (("merge", "sum_lsh"),))
    look = figures.looks([*plain_ones, other])
    for kind in (lambda one: one[:2], lambda one: one.marker):
        assert len({kind(look[variant]) for variant in plain_ones}) == len(plain_ones)
    assert look[other].colour == look[Variant("hmoh")].colour and look[other].dash != look[Variant("hmoh")].dash


def test_names_of_lines_keep_their_distance() -> None:
    rng = np.random.default_rng(0)
    for n in range(1, 20):
        places = np.sort(rng.random(n) ** 3).tolist()
        places = figures.separate(places, 0.05)
        assert np.all(np.diff(places) >= 0.05 - 1e-9)
        assert places[0] >= 0 and places[-1] <= 1 + 1e-9
    assert figures.separate([0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9])
    assert figures.separate([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
