"""Commands on collections: results as JSON and as text, and exit codes."""

from __future__ import annotations

import getpass
import inspect
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from typer.testing import CliRunner

import stillhash
from stillhash.cli.main import app
from stillhash.errors import Conflict, InvalidInput, NotFound, StillhashError
from tests.collection.test_doubtful_labels import create, noisy_rows
from tests.server.serve_command import serve_command
from tests.support.toys import toy

X, Y = toy(900, 16, 4)
NAMES = np.array(["cat", "dog", "sea", "sky"])
CHANGES = ["create", "add", "import", "delete", "update-metadata", "relabel", "add-labels", "remove-labels"]
ITEMS = [*CHANGES, "get", "count", "ids", "search", "range-search", "duplicates", "facets", "suggest"]
TAUGHT = ["learn", "feedback", "doubtful", "suggest-labels"]
LEARNING = [*TAUGHT, "flush", "fit", "versions", "tag", "rollback", "probe", "compare"]
VERBS = [*ITEMS, *LEARNING, "seal", "compact", "build-rescoring", "snapshot", "stats", "audit", "verify", "repair"]
GUIDE = (Path(__file__).parents[2] / "docs" / "collection.md").read_text()


def call(*args: Any, stdin: str = "") -> tuple[int, str, str]:
    """The exit code as `run` gives it, stdout, and stderr with the error."""
    done = CliRunner().invoke(app, list(map(str, args)), input=stdin, env={"COLUMNS": "200"})
    if isinstance(done.exception, StillhashError):
        return done.exception.exit_code, done.stdout, f"{done.stderr}{done.exception}"
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def call_json(*args: Any, stdin: str = "") -> dict[str, Any]:
    code, out, err = call(*args, "--json", stdin=stdin)
    assert code == 0, err
    assert out.count("\n") == 1
    result = json.loads(out)
    assert isinstance(result, dict)
    return result


def line(r: int, **changes: Any) -> str:
    row = {"id": f"r{r}", "features": X[r].tolist(), "labels": NAMES[Y[r] > 0].tolist(), "metadata": {"n": r}}
    return json.dumps({**row, **changes}) + "\n"


@pytest.fixture
def films(tmp_path: Path) -> Path:
    """A collection of 600 rows, fitted on 300."""
    (tmp_path / "rows.jsonl").write_text("".join(map(line, range(600))))
    call_json("create", tmp_path / "films", "--dim", 16, "--init-rows", 300, "--learn-rows", 200)
    call_json("add", tmp_path / "films", tmp_path / "rows.jsonl", "--chunk", 250)
    return tmp_path / "films"


def vector(r: int) -> str:
    return json.dumps(X[r].tolist())


# ---- words ----


@pytest.mark.medium
def test_every_command_has_help_and_is_in_the_guide() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(VERBS) <= set(commands)
    for name in VERBS:
        command = commands[name]
        assert command.help, name
        assert "--json" in [option for each in command.params for option in each.opts], name
        for each in command.params:
            assert getattr(each, "help", None), f"{name} {each.name}"
        assert re.search(rf"^stillhash {name}\b", GUIDE, re.MULTILINE), f"docs/collection.md has no example of {name}"
        assert call(name, "--help")[0] == 0


def test_defaults_are_those_of_the_library() -> None:
    library = inspect.signature(stillhash.open).parameters
    create = typer.main.get_command(app).commands["create"]  # type: ignore[attr-defined]
    for each in create.params:
        if each.name in ("method", "codes_see_labels", "init_rows", "learn_rows", "keep_versions", "source_cap"):
            assert each.default == library[each.name].default


# ---- items ----


def test_create(tmp_path: Path) -> None:
    path = tmp_path / "films"
    options = "--bits", 32, "--method", "ohsl", "--params", '{"C": 0.5}', "--keep-versions", 4
    assert call_json("create", path, "--dim", 8, *options) == {"path": str(path), "dim": 8, "bits": 32}
    stats = call_json("stats", path)
    assert stats["method"] == "ohsl" and stats["params"] == {"C": 0.5} and stats["keep_versions"] == 4
    code, out, err = call("create", path, "--dim", 8)
    assert code == 4 and not out and str(path) in err


@pytest.mark.parametrize(
    ("options", "seeing"),
    [
        ([], True),
        (["--bits", "16"], True),
        (["--codes-see-labels"], True),
        (["--no-codes-see-labels"], False),
        (["--codes-see-labels", "--method", "ohsl"], False),
    ],
)
def test_create_chooses_whether_codes_see_labels(options: list[str], seeing: bool, tmp_path: Path) -> None:
    call_json("create", tmp_path / "films", "--dim", 8, *options)
    assert call_json("stats", tmp_path / "films")["codes_see_labels"] is seeing
    code, out, _ = call("stats", tmp_path / "films")
    assert code == 0 and re.search(rf"codes_see_labels +{seeing}\b", out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "hmoh"], "method"),
        (["--params", '{"codes_see_labels": false}'], "codes_see_labels"),
        (["--params", "{"], "params: "),
        (["--params", '{"wings": 2}'], "wings"),
        (["--init-rows", "5"], "init_rows"),
        (["--bits", "4"], "--bits"),
    ],
)
def test_create_refuses(options: list[str], message: str, tmp_path: Path) -> None:
    code, _, err = call("create", tmp_path / "films", "--dim", 8, *options)
    assert code == 2 and message in err
    assert not (tmp_path / "films").exists()


def test_create_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = call("create", tmp_path / "file", "--dim", 8)
    assert code == 7 and "file" in err


def test_add_reports_the_total(films: Path, tmp_path: Path) -> None:
    assert call_json("count", films) == {"count": 600}
    (tmp_path / "one.jsonl").write_text(line(600))
    assert call("add", films, tmp_path / "one.jsonl")[1] == "1 row added, 601 items in total\n"
    assert call("count", films)[1] == "601\n"


def test_add_from_stdin(films: Path) -> None:
    assert call_json("add", films, "-", stdin=line(700) + line(701))["added"] == 2
    assert call_json("get", films, "r700", "r701")["items"][1]["metadata"] == {"n": 701}


def test_upsert_replaces_and_add_does_not(films: Path, tmp_path: Path) -> None:
    (tmp_path / "new.jsonl").write_text(line(3, metadata={"n": "new"}))
    code, _, err = call("add", films, tmp_path / "new.jsonl")
    assert code == 4 and "new.jsonl, line 1: " in err and "r3" in err
    assert call_json("add", films, tmp_path / "new.jsonl", "--upsert")["count"] == 600
    assert call_json("get", films, "r3")["items"][0]["metadata"] == {"n": "new"}
    np.save(tmp_path / "new.npy", X[:2])
    code, _, err = call("add", films, tmp_path / "new.npy", "--upsert")
    assert code == 2 and "new.npy, row 0: id" in err


def test_arrays_are_numbered_from_the_count(films: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", X[:5])
    np.save(tmp_path / "labels.npy", Y[:5])
    (tmp_path / "about.jsonl").write_text("null\n" * 4 + '{"last": true}\n')
    options = "--labels", tmp_path / "labels.npy", "--metadata", tmp_path / "about.jsonl", "--chunk", 2
    assert call_json("add", films, tmp_path / "rows.npy", *options)["count"] == 605
    items = call_json("get", films, *range(600, 605))["items"]
    assert [item["id"] for item in items] == list(range(600, 605)) and items[4]["metadata"] == {"last": True}
    assert [sorted(item["labels"]) for item in items] == [np.flatnonzero(y).tolist() for y in Y[:5]]


def test_no_learn(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(map(line, range(400))))
    call_json("create", tmp_path / "films", "--dim", 16, "--init-rows", 300)
    call_json("add", tmp_path / "films", tmp_path / "rows.jsonl", "--no-learn")
    assert call_json("stats", tmp_path / "films")["pending"] == 0


def test_rows_added_before_an_error_stay_and_are_reported(films: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(map(line, range(700, 705))) + line(705, features=[1, 2]))
    code, out, err = call("add", films, path, "--chunk", 2)
    assert code == 2 and not out
    assert "bad.jsonl, line 6: features: " in err and "4" in err.rpartition("(")[2]
    assert call_json("count", films) == {"count": 604}
    code, _, err = call("add", films, path)
    assert code == 2 and call_json("count", films) == {"count": 604}
    path.write_text(line(710) + line(711, labels=[["nested"]]))
    code, _, err = call("add", films, path)
    assert code == 2 and "bad.jsonl, line 1 to line 2: labels" in err


def test_an_interrupt_reports_the_rows_added(films: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = stillhash.Collection.add, []

    def add(self: stillhash.Collection, *args: Any, **options: Any) -> int:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, *args, **options)

    monkeypatch.setattr(stillhash.Collection, "add", add)
    (tmp_path / "more.jsonl").write_text("".join(map(line, range(700, 710))))
    code, _, err = call("add", films, tmp_path / "more.jsonl", "--chunk", 2)
    assert code != 0 and "4" in err
    assert call_json("count", films) == {"count": 604}


def test_count_and_ids_of_some(films: Path) -> None:
    with stillhash.open(films, read_only=True) as collection:
        where, names = {"labels": "sea"}, collection.ids({"labels": "sea"})
    assert 0 < len(names) < 600
    assert call_json("count", films, "--where", json.dumps(where)) == {"count": len(names)}
    assert call_json("ids", films, "--where", json.dumps(where)) == {"ids": names}
    assert call_json("ids", films, "--limit", 2, "--after", names[0], "--where", json.dumps(where)) == {
        "ids": names[1:3]
    }
    listed = call("ids", films, "--where", json.dumps(where))[1]
    assert call_json("delete", films, stdin=listed) == {"deleted": len(names), "absent": 0}
    assert call_json("ids", films, "--where", json.dumps(where)) == {"ids": []}


def test_delete(films: Path) -> None:
    assert call_json("delete", films, "r1", "r2", "r1", "nobody") == {"deleted": 2, "absent": 1}
    assert call("delete", films, "r3")[1] == "1 deleted\n"
    assert call_json("delete", films, stdin="r4\n\nr5\n") == {"deleted": 2, "absent": 0}
    assert call_json("delete", films, "-", stdin="r6\r\nnobody\n") == {"deleted": 1, "absent": 1}
    assert call_json("count", films) == {"count": 594}


@pytest.mark.medium
def test_items_that_match_are_changed(films: Path) -> None:
    where = json.dumps({"n": {"$lt": 30}})
    fields = json.dumps({"year": 1995, "n": None})
    assert call_json("update-metadata", films, "r1", "r2", "--set", fields) == {"updated": 2}
    assert call_json("get", films, "r2")["items"][0]["metadata"] == {"year": 1995}
    assert call("update-metadata", films, "--where", where, "--set", '{"old": true}')[1] == "28 items updated\n"
    assert call_json("count", films, "--where", '{"old": true, "n": {"$gte": 0}}') == {"count": 28}
    assert call_json("update-metadata", films, "r2", "--set", '{"a": 1}', "--replace") == {"updated": 1}
    assert call_json("get", films, "r2")["items"][0]["metadata"] == {"a": 1}
    result = call_json("relabel", films, "--where", where, "cat|new")
    assert result["labels"] == ["cat", "new"] and result["relabelled"] == 28
    assert call_json("count", films, "--where", '{"labels": "new"}') == {"count": 28}
    assert call_json("relabel", films, "r2", "sea")["id"] == "r2"
    assert call_json("get", films, "r2")["items"][0]["labels"] == ["sea"]
    assert call_json("delete", films, "--where", where) == {"deleted": 28, "absent": 0}
    for options in (("--where", "{}"), ("--where", where, "--all"), ("r1", "--all"), ("--where", "5")):
        for verb in ("delete", "update-metadata"):
            assert call(verb, films, *options)[0] == 2
    assert call("relabel", films, "--all", "r2", "sea")[0] == call("relabel", films, "sea")[0] == 2
    assert call_json("count", films) == {"count": 572}
    assert call("delete", films, "--all")[1] == "572 deleted\n"


def test_labels_are_added_and_removed(films: Path) -> None:
    own = {name: call_json("get", films, name)["items"][0]["labels"] for name in ("r1", "r2")}
    result = call_json("add-labels", films, "new|newer", "r1", "r2")
    assert {entry["id"]: entry["labels"] for entry in result["before"]} == own and result["version"] > 1
    assert call_json("get", films, "r2")["items"][0]["labels"] == sorted([*own["r2"], "new", "newer"])
    assert call("remove-labels", films, "new", stdin="r1\nr2\nr3\n")[1].startswith("2 items changed")
    assert call_json("get", films, "r1")["items"][0]["labels"] == sorted([*own["r1"], "newer"])
    assert call("add-labels", films, "", "r1")[0] == call("add-labels", films, "a", "nobody")[0] == 2


def test_delete_at_a_terminal_needs_ids(films: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("stillhash.cli.items.sys", type("Sys", (), {"stdin": Terminal()}))
    code, _, err = call("delete", films)
    assert code == 2 and "ids" in err


def test_get(films: Path) -> None:
    code, out, err = call("get", films, "r1", "nobody", "--json")
    assert code == 0 and "nobody" in err
    items = json.loads(out)["items"]
    assert items[0]["id"] == "r1" and items[0]["metadata"] == {"n": 1} and items[1] is None
    assert sorted(items[0]["labels"]) == NAMES[Y[1] > 0].tolist()
    assert "n=1" in call("get", films, "r1")[1]


def test_ids_that_are_numbers_and_ids_that_look_like_them(films: Path) -> None:
    rows = line(800, id=7, metadata={"is": "number"}) + line(801, id="7", metadata={"is": "text"})
    call_json("add", films, "-", stdin=rows)
    items = call_json("get", films, "7", '"7"')["items"]
    assert [item["metadata"]["is"] for item in items] == ["number", "text"]


# ---- search ----


def test_search_gives_the_answers_of_the_library(films: Path, tmp_path: Path) -> None:
    with stillhash.open(films, read_only=True) as collection:
        expected = [[hit.id for hit in one.hits] for one in collection.search(X[:2], 5)]
        version = collection.stats()["version"]
    np.save(tmp_path / "queries.npy", X[:2])
    answers = call_json("search", films, "--vector", tmp_path / "queries.npy", "-k", 5)["answers"]
    assert [[hit["id"] for hit in one["hits"]] for one in answers] == expected
    assert answers[0]["version"] == version and answers[0]["ranking"] == "learnt similarity"
    assert call_json("search", films, "--vector", "-", "-k", 5, stdin=vector(0))["answers"] == answers[:1]
    assert call_json("search", films, "--vector", vector(0), "-k", 5)["answers"] == answers[:1]
    out = call("search", films, "--vector", vector(0), "-k", 5)[1]
    assert all(word in out for word in ("rank", "score", f"version {version}", *expected[0]))
    assert "query 1" in call("search", films, "--vector", tmp_path / "queries.npy")[1]


def test_search_with_conditions_and_versions(films: Path) -> None:
    (answer,) = call_json("search", films, "--vector", vector(0), "--where", '{"n": {"$lt": 3}}')["answers"]
    assert sorted(hit["id"] for hit in answer["hits"]) == ["r0", "r1", "r2"]
    (answer,) = call_json("search", films, "--vector", vector(0), "--version", 1)["answers"]
    assert answer["version"] == 1
    assert "no hits" in call("search", films, "--vector", vector(0), "--where", '{"n": -1}')[1]
    assert call("search", films, "--vector", vector(0), "--version", 99)[0] == 2
    assert call("search", films, "--vector", vector(0), "--where", "n < 3")[0] == 2
    assert call("search", films, "--vector", "[1, 2]")[0] == 2
    assert call("search", films)[0] == 2


def test_range_search(films: Path) -> None:
    (best,) = call_json("search", films, "--vector", vector(0), "-k", 7)["answers"]
    least = min(hit["score"] for hit in best["hits"])
    (answer,) = call_json("range-search", films, "--vector", vector(0), "--threshold", least)["answers"]
    scores = [hit["score"] for hit in answer["hits"]]
    assert scores == sorted(scores, reverse=True) and scores[-1] >= least
    assert {hit["id"] for hit in best["hits"]} <= {hit["id"] for hit in answer["hits"]}


def test_tables_show_text_as_it_is(films: Path) -> None:
    call_json(
        "add", films, "-", stdin=line(0, id="odd", labels=["[red]", "a\x1b[31mb"], metadata={"m": "[/]", "x": "y" * 99})
    )
    out = call("get", films, "odd")[1]
    assert "[red]" in out and "m=[/]" in out and "\x1b" not in out and "…" in out


# ---- learning ----


def test_before_the_hash_functions(tmp_path: Path) -> None:
    path = tmp_path / "few"
    call_json("create", path, "--dim", 16)
    call_json("add", path, "-", stdin="".join(map(line, range(20))))
    assert "cosine" in call("search", path, "--vector", vector(0))[1]
    assert "no versions yet" in call("versions", path)[1]
    assert call("range-search", path, "--vector", vector(0), "--threshold", 0)[0] == 3
    assert call_json("flush", path) == {"version": 0}
    assert call("learn", path, "-", stdin=line(0))[0] == 3
    assert call_json("fit", path)["version"] >= 1
    assert call("fit", path)[0] == 4
    assert call_json("stats", path)["fitted"]


def test_fit_by_a_sample(tmp_path: Path) -> None:
    np.save(tmp_path / "sample.npy", X[:400])
    np.save(tmp_path / "labels.npy", Y[:400])
    call_json("create", tmp_path / "films", "--dim", 16)
    assert call("fit", tmp_path / "films", "--labels", tmp_path / "labels.npy")[0] == 2
    np.save(tmp_path / "none.npy", X[:0])
    assert call("fit", tmp_path / "films", tmp_path / "none.npy")[0] == 2
    sample = tmp_path / "sample.npy", "--labels", tmp_path / "labels.npy"
    assert "the hash functions are fitted" in call("fit", tmp_path / "films", *sample)[1]
    assert call_json("count", tmp_path / "films") == {"count": 0}


@pytest.mark.medium
def test_learn_flush_tag_and_rollback(films: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", X[600:])
    np.save(tmp_path / "labels.npy", Y[600:])
    call_json("flush", films)
    before = call_json("versions", films)["versions"][-1]["version"]
    (old,) = call_json("search", films, "--vector", vector(0))["answers"]
    code, _, err = call("learn", films, tmp_path / "rows.npy")
    assert code == 2 and "labels" in err
    learnt = call_json("learn", films, tmp_path / "rows.npy", "--labels", tmp_path / "labels.npy", "--chunk", 200)
    assert learnt == {"rows": 300, "version": before + 2, "versions": [before + 1, before + 2]}
    assert call_json("tag", films, before, "good") == {"version": before, "tag": "good"}
    assert call("tag", films, before + 1, "good")[0] == 4
    assert call_json("rollback", films, before) == {"version": before + 3, "rollback_to": before}
    (new,) = call_json("search", films, "--vector", vector(0))["answers"]
    assert [{**hit, "version": before} for hit in new["hits"]] == old["hits"] and new["version"] == before + 3
    versions = call_json("versions", films)["versions"]
    assert [one["version"] for one in versions if one["current"]] == [before + 3]
    table = call("versions", films)[1]
    assert all(text in table for text in ("good", "current", "P@10", "nDCG@10", "mAP"))
    quality = versions[-2]["quality"]
    assert f"{quality['precision']:.3f}" in table and f"{quality['ndcg']:.3f}" in table
    gain = quality["ndcg"] - quality["before"]["ndcg"]
    assert f"nDCG@10 {quality['ndcg']:.3f} ({gain:+.3f})" in call("stats", films)[1]
    assert call("rollback", films, 99)[0] == 2


def test_audit_lists_who_changed_what(films: Path) -> None:
    with stillhash.open(films) as collection, stillhash.acting_as("ann [b]&"):
        collection.delete(["r1", "r2"])
        collection.delete(["r3"])
        collection.rollback(1)
    call_json("delete", films, "r4")
    with stillhash.open(films, read_only=True) as collection:
        entries = [vars(entry) for entry in collection.audit(after=0, limit=1000)]
    assert call_json("audit", films) == {"entries": entries[-20:]}
    assert call_json("audit", films, "--after", 0, "--limit", 2) == {"entries": entries[:2]}
    assert call_json("audit", films, "--after", entries[-3]["number"]) == {"entries": entries[-2:]}
    assert call_json("audit", films, "--who", "ann [b]&") == {"entries": entries[-4:-1]}
    table = call("audit", films)[1].splitlines()
    assert len(table) == len(entries) + 1
    ann, user = table[-2], table[-1]
    assert "ann [b]&" in ann and "rollback to 1" in ann and "2 to 3" in ann
    assert getpass.getuser() in user and "delete" in user and "r4" in user and user.split()[-1] == "3"
    assert "r1, r2" in table[-4] and "…" in table[1]
    assert [call("audit", films, *option)[0] for option in (["--limit", 0], ["--after", -1], ["--who", ""])] == [2] * 3
    call_json("create", films.with_name("empty"), "--dim", 16)
    assert call("audit", films.with_name("empty"))[1] == "no entries\n"


def test_audit_cannot_control_the_terminal(films: Path) -> None:
    with stillhash.open(films) as collection, collection._store.transaction() as connection:
        connection.execute("UPDATE audit SET who = ?, what = ?", ["\x1b[31m red", "\x07"])
    assert "\\x1b[31m red" in call("audit", films)[1] and "\x1b" not in call("audit", films)[1]
    assert "\x1b" not in call("audit", films, "--json")[1]


@pytest.mark.medium
def test_suggest_labels_lists_items_to_label(tmp_path: Path) -> None:
    rows = noisy_rows(0.0)
    with create(tmp_path / "c", rows) as collection:
        collection.add(range(5000, 5100), rows.X[:100] + np.float32(0.1))
        expected = collection.suggest_labels(5, skip=[5000], seed=1)
    result = call_json("suggest-labels", tmp_path / "c", "--count", 5, "--skip", 5000, "--seed", 1)
    assert [one["id"] for one in result["suggestions"]] == [one.id for one in expected]
    table = call("suggest-labels", tmp_path / "c", "--count", 5, "--skip", 5000, "--seed", 1)[1]
    assert all(str(one.id) in table and one.reason in table for one in expected) and "label " in table
    assert call("suggest-labels", tmp_path / "c", "--count", 1001)[0] == 2
    with create(tmp_path / "labelled", rows):
        pass
    assert "all items have labels" in call("suggest-labels", tmp_path / "labelled")[1]


def test_doubtful_lists_the_least_plausible_labels(tmp_path: Path) -> None:
    with create(tmp_path / "c", noisy_rows(0.2, 800)) as collection:
        expected, share = collection.doubtful_labels(20), collection.stats()["wrong_label_share"]
    result = call_json("doubtful", tmp_path / "c")
    assert result == {"wrong_label_share": share, "items": [vars(item) for item in expected]}
    assert len(call_json("doubtful", tmp_path / "c", "--count", 3)["items"]) == 3
    table = call("doubtful", tmp_path / "c")[1]
    assert f"{share:.1%}" in table and f"{expected[0].chance:.0%}" in table
    assert all(f"{item.id}" in table and ", ".join(item.predicted) in table for item in expected)
    assert (
        call("doubtful", tmp_path / "c", "--count", 0)[0] == call("doubtful", tmp_path / "c", "--count", 1001)[0] == 2
    )
    call_json("create", tmp_path / "empty", "--dim", 16)
    assert "not enough is learnt" in call("doubtful", tmp_path / "empty")[1]


def test_versions_are_measured_and_compared(tmp_path: Path) -> None:
    with create(tmp_path / "c", noisy_rows(0.2, 800)) as collection:
        report, comparison = collection.probe(queries=30), collection.compare_versions(0, queries=30)
    result = call_json("probe", tmp_path / "c", "--queries", 30)
    assert result["gain"] == vars(report.gain) and result["labels"] == [vars(row) for row in report.labels]
    table = call("probe", tmp_path / "c", "--queries", 30)[1]
    assert f"{report.quality.ndcg:.3f}" in table and f"{report.gain.map:+.3f}" in table
    table = call("compare", tmp_path / "c", 0, "--queries", 30)[1]
    assert f"{comparison.differing:.1f} of the first ten hits differ" in table
    assert str(comparison.queries[0].id) in table and str(comparison.queries[-1].id) in table
    for wrong in (["probe", "--version", "x"], ["compare", "x"], ["compare", "0", "99"], ["compare"]):
        assert call(wrong[0], tmp_path / "c", *wrong[1:])[0] == 2


# ---- upkeep ----


def test_seal_compact_and_stats(films: Path) -> None:
    assert call_json("seal", films) == {"sealed": True} and call_json("seal", films) == {"sealed": False}
    call_json("delete", films, "r0", "r1")
    assert call_json("compact", films) == {"dropped": 2}
    stats = call_json("stats", films)
    assert stats["items"] == 598 and stats["deleted"] == 0 and stats["segments"] == 1
    assert "init_rows" in call("stats", films)[1]


@pytest.mark.medium
def test_build_rescoring(films: Path, tmp_path: Path) -> None:
    path, rows = tmp_path / "plain", (tmp_path / "rows.jsonl").read_text().splitlines(keepends=True)
    call_json("create", path, "--dim", 16, "--init-rows", 300, "--rescore-bits", 0)
    call_json("add", path, tmp_path / "rows.jsonl")
    (tmp_path / "some.jsonl").write_text("".join(rows[:250]))
    (tmp_path / "others.jsonl").write_text("".join(rows[240:]))
    assert call("build-rescoring", path)[0] == Conflict.exit_code
    expected = {"missing": 350, "rescore_bits": 0}
    assert call_json("build-rescoring", path, tmp_path / "some.jsonl", "--chunk", 100, "--rescore-bits", 2) == expected
    assert "350 items left" in call("build-rescoring", path, tmp_path / "some.jsonl")[1]
    assert call_json("build-rescoring", path, tmp_path / "others.jsonl") == {"missing": 0, "rescore_bits": 2}
    assert "2 bits" in call("build-rescoring", path)[1] and call_json("verify", path) == {"problems": []}
    assert call("build-rescoring", films, "--rescore-bits", 1)[0] == Conflict.exit_code


def test_compact_at_a_running_server(films: Path, tmp_path: Path) -> None:
    call_json("delete", films, "r0", "r1", "r2")
    with serve_command(tmp_path / "log", films) as server:
        assert call("compact", films)[0] == Conflict.exit_code  # the server has it open
        assert call_json("compact", "--url", server.url) == {"dropped": 3}
        assert call_json("compact", "--url", server.url, "--collection", films.name) == {"dropped": 0}
        assert call("compact", "--url", server.url, "--collection", "nosuch")[0] == NotFound.exit_code
    for wrong in ([], [films, "--url", "http://127.0.0.1:1"]):
        assert call("compact", *wrong)[0] == InvalidInput.exit_code
    assert call_json("stats", films)["deleted"] == 0


def test_verify(films: Path) -> None:
    assert call_json("verify", films) == {"problems": []}
    assert call("verify", films)[1] == "OK\n"
    call_json("seal", films)
    (segment,) = (films / "segments").glob("*.tiles")
    damaged = bytearray(segment.read_bytes())
    damaged[-1] ^= 1
    segment.write_bytes(damaged)
    code, out, _ = call("verify", films, "--json")
    assert code == 5 and segment.name in json.loads(out)["problems"][0]
    code, out, _ = call("verify", films)
    assert code == 5 and segment.name in out
    assert call("search", films, "--vector", vector(0))[0] == 5


def test_feedback(films: Path) -> None:
    before = call_json("search", films, "--vector", vector(0), "-k", 5)["answers"][0]
    down = [hit["id"] for hit in before["hits"][:2]]
    result = call_json("feedback", films, *down, "--vector", vector(0), "--down", "--source", "ann")
    assert result == {"votes": 2, "version": before["version"] + 1}
    after = call_json("search", films, "--vector", vector(0), "-k", 5)["answers"][0]
    assert after["hits"] != before["hits"] and after["version"] == result["version"]
    code, out, _ = call("feedback", films, "r1", "--vector", vector(0), "--vote", "0.5", "--position", "9")
    assert code == 0 and "1 vote; version" in out
    assert call("feedback", films, "nobody", "--vector", vector(0), "--up")[0] == 2
    assert call("feedback", films, "r1", "--vector", vector(0))[0] == 2  # up or down must be said
    assert call("feedback", films, "r1", "--vector", vector(0), "--up", "--vote", "1")[0] == 2
    two = json.dumps(X[:2].tolist())
    assert "--vector" in call("feedback", films, "r1", "--vector", two, "--up")[2]


def test_a_file_of_votes(films: Path, tmp_path: Path) -> None:
    file, query = tmp_path / "votes.ndjson", json.loads(vector(0))
    by_file = [{"query": query, "id": "r7", "vote": "up", "position": 9}, {"query_id": "r1", "id": "r8", "vote": -0.5}]
    file.write_text("\n\n".join(map(json.dumps, by_file)))
    assert call_json("feedback", films, file)["votes"] == 2
    assert call_json("search", films, "--vector", vector(0), "-k", 1)["answers"][0]["hits"][0]["id"] == "r7"
    before = call_json("stats", films)["version"]
    for text, part in (('{"id": "r1"', "line 1"), ('{"id": "r1", "vote": 1}', "vote 1"), ("[]", "vote 1")):
        file.write_text(text)
        code, _, err = call("feedback", films, file)
        assert code == 2 and part in err
    assert call("feedback", films, tmp_path / "nothing")[0] == 2
    assert call("feedback", films, file, "--up")[0] == 2
    assert call_json("stats", films)["version"] == before


def test_explanations(films: Path) -> None:
    (answer,) = call_json("search", films, "--vector", vector(0), "-k", 3, "--explain", "--against", 2)["answers"]
    for rank, hit in enumerate(answer["hits"], 1):
        why = hit["explanation"]
        assert why["rank"] == rank and why["other_version"] == 2
        assert sum(why["bits"]) == pytest.approx(hit["score"], rel=1e-5)
        labels = why["label_weight"] * (why["labels"] or 0)
        assert why["page_score"] == pytest.approx(labels + (1 - why["label_weight"]) * why["similarity"], abs=1e-5)
    _, out, _ = call("search", films, "--vector", vector(0), "-k", 3, "--explain")
    assert "by version 1" in out and "labels + similarity" in out and "bits that count most" in out
    assert "--against" in call("search", films, "--vector", vector(0), "--against", 2)[2]


@pytest.mark.medium
def test_snapshot_and_repair(films: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    result = call_json("snapshot", films, copy)
    assert result["path"] == str(copy) and result["bytes"] > 10_000
    assert call_json("count", copy) == call_json("count", films)
    assert call("snapshot", films, copy)[0] == 4
    assert call_json("repair", copy) == {"done": [], "lost": []}
    sound = (copy / "store.sums").read_bytes()
    (copy / "store.sums").write_bytes(sound[:-1])
    assert call("verify", copy)[0] == 5 and call("count", copy)[0] == 5
    code, out, _ = call("repair", copy)
    assert code == 0 and "store.sums" in out and "0 items lost" in out
    assert call_json("count", copy) == call_json("count", films)
    assert call("repair", copy)[1] == "OK\n"
    with (copy / "store.db").open("r+b") as file:
        file.seek(9000)
        file.write(b"\xff" * 100)
    code, _, err = call("repair", copy)
    assert code == 5 and "page 2" in err and "snapshot" in err
    assert call("repair", tmp_path / "nowhere")[0] == 2


def test_one_process_writes_and_others_read(films: Path) -> None:
    with stillhash.open(films):
        assert call_json("count", films) == {"count": 600}
        code, _, err = call("delete", films, "r1")
        assert code == 4 and err


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("create", "import")])
def test_a_missing_collection_is_refused(verb: str, tmp_path: Path) -> None:
    more = {"add": ["-"], "get": ["a"], "learn": ["-"], "tag": ["1", "a"], "rollback": ["1"]}
    more |= {"delete": ["a"], "update-metadata": ["a"], "relabel": ["a", "b"]}
    more |= {"compare": ["0"], "suggest": ["a"], "add-labels": ["a", "b"], "remove-labels": ["a", "b"]}
    more |= {"search": ["--vector", "[1]"], "range-search": ["--vector", "[1]", "--threshold", "0"]}
    more |= {"feedback": ["a", "--vector", "[1]", "--up"], "snapshot": [str(tmp_path / "copy")]}
    code, out, err = call(verb, tmp_path / "nothing", *more.get(verb, []))
    assert code == 2 and not out and "nothing" in err


def test_a_missing_collection_is_created_by_the_command_in_the_message(tmp_path: Path) -> None:
    path = tmp_path / "nothing yet"
    _, _, err = call("count", path)
    command = shlex.split(err.split("`")[1].replace("--dim N", "--dim 8"))
    assert command[0] == "stillhash" and call(*command[1:])[0] == 0 and call_json("count", path) == {"count": 0}


@pytest.mark.slow
def test_a_real_process_from_end_to_end(tmp_path: Path) -> None:
    def run(*args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "stillhash", *args]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, input=stdin)

    rows = "".join(map(line, range(350)))
    assert run("create", "films", "--dim", "16", "--init-rows", "300").returncode == 0
    done = run("add", "films", "-", "--json", stdin=rows)
    assert done.returncode == 0 and json.loads(done.stdout)["added"] == 350 and not done.stderr
    search = run("search", "films", "--vector", "-", "--json", stdin=vector(0))
    assert len(json.loads(search.stdout)["answers"][0]["hits"]) == 10
    done = run("add", "films", "-", stdin=line(400) + line(401, id="[/odd] " + "x" * 200, features=[]))
    assert done.returncode == 2 and not done.stdout and done.stderr.count("\n") == 1
    assert done.stderr.startswith("InvalidInput: -, line 2: features: ")
    assert run("delete", "films", stdin="r1\n").stdout == "1 deleted\n"
    assert run("delete", "films", "[/odd]", stdin="").stdout == "0 deleted, 1 not found\n"
    assert run("verify", "films").returncode == 0
