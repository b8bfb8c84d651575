"""Both clients, over a real server in a process of its own, keep the contract of a collection; none lacks a verb."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import stillhash
from stillhash import AsyncClient, Client, Collection
from tests.client.awaited_client import CLIENTS
from tests.collection.fixtures import BITS, DIM, INIT, LEARN
from tests.contracts.collections import *  # noqa: F403
from tests.contracts.collections import CLIENT_ONLY, LOCAL_ONLY, public_names
from tests.server.serve_command import ServeCommand, serve_command


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeCommand]:
    path = tmp_path_factory.mktemp("server")
    (path / "collections").mkdir()
    with serve_command(path / "log", "--collections-folder", path / "collections") as command:
        yield command


@pytest.fixture(params=CLIENTS, ids=["blocking", "async"])
def subject(request: pytest.FixtureRequest, server: ServeCommand) -> Iterator[Any]:
    with request.param(server.url, collection="subject") as client:
        client.create_collection("subject", DIM, BITS, init_rows=INIT, learn_rows=LEARN, lexical_field="text")
        yield client
        client.delete_collection("subject", confirm="subject")


def test_every_verb_of_a_collection_is_a_verb_of_clients_or_local_for_a_reason() -> None:
    verbs, served = public_names(Collection), public_names(Client)
    assert verbs - served == LOCAL_ONLY.keys(), "add a verb to stillhash.client, or to LOCAL_ONLY with a reason"
    assert served - verbs == CLIENT_ONLY.keys(), "add a verb to Collection, or to CLIENT_ONLY with a reason"


def test_both_clients_have_the_same_verbs() -> None:
    assert public_names(Client) == public_names(AsyncClient)
    for name in public_names(Client) - {"collection", "dim", "bits"}:
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (Client, AsyncClient))
        assert list(ours.parameters) == list(theirs.parameters), name
        is_async = inspect.isasyncgenfunction if name == "items" else inspect.iscoroutinefunction
        assert is_async(getattr(AsyncClient, name)), name
        assert not inspect.iscoroutinefunction(getattr(Client, name)), name


@pytest.mark.medium
def test_verbs_have_the_arguments_of_a_collection() -> None:
    for name in public_names(Client) - CLIENT_ONLY.keys() - {"snapshot"}:  # which has no path
        ours, theirs = (dict(inspect.signature(getattr(kind, name)).parameters) for kind in (Client, Collection))
        for other in ("max_bytes", "snapshots", "progress"):  # which the server sets, or has by tasks
            theirs.pop(other, None)
        ours.pop("progress", None)  # of a task, by its share
        for one, other in zip(ours.values(), theirs.values(), strict=True):
            assert (one.name, one.kind, one.default) == (other.name, other.kind, other.default), name


NOT_OVER_HTTP = {  # arguments of `open` that `create_collection` has not, and why
    "path": "the name takes its place",
    "init": "`fit` takes a sample",
    "read_only": "of a process, not of a collection",
    "searcher": "of a process, not of a collection",
    "device": "of a process, not of a collection",
    "wait": "of a process, not of a collection",
}


@pytest.mark.medium
def test_a_collection_is_created_by_the_arguments_of_open() -> None:
    ours = dict(inspect.signature(Client.create_collection).parameters)
    theirs = dict(inspect.signature(stillhash.open).parameters)
    assert theirs.keys() - ours.keys() == NOT_OVER_HTTP.keys()
    assert ours.keys() - theirs.keys() == {"self", "name"}
    for name in theirs.keys() & ours.keys():
        assert ours[name].default == theirs[name].default, name
