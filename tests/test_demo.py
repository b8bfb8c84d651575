"""The demo: in the terminal, and its page as a process of its own."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import stillhash
from stillhash import demo
from stillhash.errors import InvalidInput
from tests.support.waiting import until


def recording_console(**options: Any) -> Console:
    return Console(file=io.StringIO(), width=80, **options)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    console = recording_console()
    plot = tmp_path_factory.mktemp("demo") / "curve.png"
    return demo.run_terminal(2500, 64, 0, plot, console), written(console)


@pytest.fixture
def result(outcome: tuple[dict[str, Any], str]) -> dict[str, Any]:
    return outcome[0]


def test_late_labels_are_learnt_and_the_codes_are_fixed(result: dict[str, Any]) -> None:
    cosine, (first, *_, last) = result["cosine"], result["curve"]
    assert [point["labelled"] for point in result["curve"]] == [0, 10, 30, 100, 300, 1000, 2250]
    assert last["labelled"] == result["scenes"] == 2500 - result["queries"]
    assert cosine["precision_10"] > result["chance"] + 0.3  # no straw man
    assert all(abs(first[name] - cosine[name]) < 0.03 for name in demo.MEASURES)  # nothing is lost at the start
    assert last["ndcg_10"] > cosine["ndcg_10"] + 0.03 and last["precision_10"] > cosine["precision_10"]
    for few, more in pairwise(result["curve"]):
        assert all(more[name] > few[name] - 0.02 for name in demo.MEASURES)  # labels hardly ever make it worse
    assert result["codes_unchanged"] is True


def test_a_stored_scene_finds_itself_and_a_vote_moves_its_item(result: dict[str, Any]) -> None:
    tour = demo.Tour(**result["tour"])
    assert tour.first == tour.stored
    assert tour.rank_before == tour.rank_undone == 8 and tour.rank_liked == 1


def test_the_result_is_json(result: dict[str, Any]) -> None:
    assert json.loads(json.dumps(result)) == result


def test_the_plot_is_a_png(result: dict[str, Any]) -> None:
    data = Path(result["plot"]).read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(data) > 10_000


def test_the_examples_say_what_matches(result: dict[str, Any]) -> None:
    assert len(result["examples"]) == demo.EXAMPLE_QUERIES
    for example in result["examples"]:
        for hits in (example["before"], example["after"]):
            assert len(hits) == demo.EXAMPLE_HITS
            for hit in hits:
                assert hit["matching"] == [name for name in hit["labels"] if name in example["query"]]
    assert 0 < result["exact"]["before"] < result["exact"]["after"] <= 1


def test_without_a_terminal_progress_is_plain_lines(outcome: tuple[dict[str, Any], str]) -> None:
    result, printed = outcome
    assert "\x1b" not in printed
    lines = printed.rstrip().splitlines()  # older versions of rich end with an empty line
    assert len(lines) == 3 + len(result["curve"])  # what it is, the heading, cosine, and a line for each point
    assert max(map(len, lines)) <= 80
    assert f"{result['scenes']:,}" in lines[-1]


def test_show_fits_80_columns(result: dict[str, Any]) -> None:
    console = recording_console()
    demo.show({**result, "plot": "[x].png"}, console)
    printed = written(console)
    assert "[x].png" in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert "…" not in printed
    assert "none has changed" in printed


def test_show_marks_matching_digits_and_admits_changed_codes(result: dict[str, Any]) -> None:
    console = recording_console(force_terminal=True, color_system="standard")
    hits = [{"labels": [1, 7], "matching": [7]}] * demo.EXAMPLE_HITS
    example = {"query": [7], "before": hits, "after": hits}
    demo.show({**result, "examples": [example], "codes_unchanged": False}, console)
    assert "\x1b[2m1\x1b[0m\x1b[1;32m7\x1b[0m" in written(console)
    assert "some have changed" in written(console)


def test_refuses_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^plot"):
        demo.run_terminal(2500, 64, 0, tmp_path / "missing" / "curve.png", recording_console())
    with pytest.raises(InvalidInput, match=r"^plot"):
        demo.run_terminal(2500, 64, 0, tmp_path, recording_console())
    with pytest.raises(InvalidInput, match=r"^scenes"):
        demo.run_terminal(100, 64, 0, tmp_path / "curve.png", recording_console())


# ---- the page ----


@pytest.mark.nightly
def test_the_demo_serves_a_page_while_it_learns_and_keeps_its_collection(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stillhash", "demo", "--port", "0", "--scenes", "2000", "--path", "demo"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert process.stdout is not None
        address = re.search(r"http://\S+:\d+", process.stdout.readline())
        assert address is not None
        with stillhash.Client(address[0]) as client:
            until(lambda: len(client.quality()["curve"]) >= 3, "learning", 180)
            curve, count = client.quality()["curve"], client.count()
            assert curve[-1]["map"] > curve[-1]["before"]["map"]
            (item,) = client.sample()
            picture = client.picture(item.id)
            assert picture is not None
            assert client.search(client.encode(picture), 3).hits  # a thumbnail is an image like any other
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    with stillhash.open(tmp_path / "demo", read_only=True) as collection:
        assert collection.count() >= count and collection.verify() == []
