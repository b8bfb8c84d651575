"""Forgetting over HTTP and on the command line: as the library does."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stillhash
from stillhash.cli.main import app
from stillhash.errors import Denied, InvalidInput
from stillhash.server import Keys, Settings
from tests.client.awaited_client import CLIENTS
from tests.collection.fixtures import BITS, DIM, INIT, LEARN, some_rows
from tests.server.live_server import live_server

KEYS = {"write": "a key that may write", "admin": "a key of an administrator"}


def create(path: Path) -> stillhash.Collection:
    collection = stillhash.open(path, DIM, BITS, init_rows=INIT, learn_rows=LEARN, keep_features=True)
    X, labels, metadata = some_rows(INIT + LEARN, seed=1)
    collection.add(range(len(X)), X, labels, metadata)
    collection.feedback(X[3], 5, "up", source="ann")
    return collection


@pytest.mark.parametrize("new_client", CLIENTS)
def test_an_admin_forgets_items_and_sources(tmp_path: Path, new_client: type[stillhash.Client]) -> None:
    (tmp_path / "snapshots").mkdir(0o700)
    settings = Settings(keys=Keys(**{role: [key] for role, key in KEYS.items()}), snapshots=tmp_path / "snapshots")
    with live_server({"c": create(tmp_path / "c")}, settings) as server:
        with new_client(server.url, KEYS["write"]) as client, pytest.raises(Denied):
            client.forget([1])
        with new_client(server.url, KEYS["admin"]) as client:
            name = client.snapshot()["name"]
            before = client.count()
            report = client.forget([1, 2, "absent"])
            assert (report.items, report.snapshots) == (2, {name: 2})
            assert client.count() == before - 2 and client.get([1, 3])[0] is None
            assert client.forget(source="ann").votes == 1
            assert client.forget(where={"labels": "nobody"}).items == 0
            for arguments in ({}, {"ids": [1], "source": "x"}):
                with pytest.raises(InvalidInput, match="expected one of ids, where and source"):
                    client.forget(**arguments)
            assert not client.verify()


def test_the_command_forgets(tmp_path: Path) -> None:
    path = tmp_path / "c"
    create(path).close()
    run = CliRunner().invoke
    result = run(app, ["forget", str(path), "1", "2", "--json"])
    assert result.exit_code == 0 and json.loads(result.stdout)["items"] == 2, result.output
    shown = run(app, ["forget", str(path), "--source", "ann"]).stdout
    assert "0 items and 1 vote forgotten" in shown and "1 version of the model dropped" in shown
    assert isinstance(run(app, ["forget", str(path)]).exception, InvalidInput)
    with closing(stillhash.open(path, read_only=True)) as collection:
        assert collection.get([1]) == [None] and collection.stats()["feedback"] == 0
