"""The tools over real transports, called by the official client: a process over stdio, and HTTP on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stillhash
from tests.collection.fixtures import copied

pytest.importorskip("mcp", reason="mcp is an extra")
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

pytestmark = [pytest.mark.integrations, pytest.mark.slow]  # each test starts a process

COMMAND = [sys.executable, "-m", "stillhash", "mcp"]


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed collection of 320 films that has learnt two labels."""
    path, rng = tmp_path_factory.mktemp("films") / "films", np.random.default_rng(0)
    features = rng.normal(size=(320, 16))
    features[:160, 0] += 2
    labels = [["comedy"] if row < 160 else ["drama"] for row in range(320)]
    metadata = [{"text": f"film number {row}", "year": 1990 + row % 30} for row in range(320)]
    with stillhash.open(path, dim=16, init_rows=300) as collection:
        collection.add([*range(160), *(f"film-{row}" for row in range(160, 320))], features, labels, metadata)
        collection.flush()
    return path


@asynccontextmanager
async def connected(path: Path, *options: str) -> AsyncIterator[Client]:
    """Start the command, and connect to it over stdio."""
    arguments = [*COMMAND[1:], str(path), *options]
    server = StdioServerParameters(command=COMMAND[0], args=arguments, env=dict(os.environ))
    with Path(os.devnull).open("w", encoding="utf-8") as log:
        async with Client(stdio_client(server, errlog=log)) as client:
            yield client


def run_over_stdio(path: Path, calls: Callable[[Client], Awaitable[None]], *options: str) -> None:
    async def run() -> None:
        async with connected(path, *options) as client:
            await calls(client)

    asyncio.run(run())


async def result_of(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool that succeeds; its text and its structured content say the same."""
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    assert json.loads(answer.content[0].text) == answer.structured_content
    return dict(answer.structured_content)


async def error_of(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    return str(answer.content[0].text)


def plain_hits(answer: stillhash.Answer) -> list[dict[str, Any]]:
    names = ("id", "score", "labels", "metadata", "placed")
    return [{name: getattr(hit, name) for name in names} for hit in answer.hits]


def test_tools_answer_as_the_collection(films: Path) -> None:
    async def calls(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"search", "explain", "stats"}
        assert all(tool.description and tool.output_schema for tool in tools.values())
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools.values())
        k = tools["search"].input_schema["properties"]["k"]
        assert (k["minimum"], k["maximum"]) == (1, 100)
        with stillhash.open(films, read_only=True) as collection:
            for name in (7, "film-200"):
                (like,) = collection.reconstruct([name])
                result = await result_of(client, "search", like=name, k=5)
                assert result["hits"] == plain_hits(collection.search(like, 5))
                vector = [float(number) for number in like]
                assert await result_of(client, "search", vector=vector, k=5) == result
            where = {"year": {"$lt": 1995}, "labels": "drama"}
            result = await result_of(client, "search", like=7, k=9, where=where, balance=0)
            (like,) = collection.reconstruct([7])
            assert result["hits"] == plain_hits(collection.search(like, 9, where=where, balance=0))
            explained = await result_of(client, "explain", like=7, k=3)
            hits = collection.search(like, 3, explain=True).hits
            assert [(hit["id"], hit["rank"], hit["rank_before"]) for hit in explained["hits"]] == [
                (hit.id, hit.explanation.rank, hit.explanation.other_rank) for hit in hits if hit.explanation
            ]
        stats = await result_of(client, "stats")
        assert (stats["name"], stats["items"], stats["dim"]) == ("films", 320, 16)
        assert (stats["text_search"], stats["feedback"], stats["fitted"]) == ("none", False, True)

    run_over_stdio(films, calls)


def test_errors_are_those_of_tools_and_the_server_goes_on(films: Path) -> None:
    async def calls(client: Client) -> None:
        for arguments, expected in [
            ({}, "InvalidInput: query"),
            ({"like": 7, "vector": [0.0] * 16}, "InvalidInput: query"),
            ({"text": "comedy"}, "InvalidInput: text"),
            ({"like": "no such film"}, "no such film"),
            ({"vector": [1.0, 2.0]}, "16"),
            ({"vector": [1e400] * 16}, "vector"),
            ({"vector": ["a"]}, "vector"),
            ({"like": 7, "k": 0}, "k"),
            ({"like": 7, "k": 101}, "k"),
            ({"like": "a" * 1001}, "like"),
            ({"text": "a" * 10_001}, "text"),
            ({"like": 7, "where": {"year": {"$near": 1}}}, "InvalidInput: where"),
            ({"like": 7, "balance": 2}, "balance"),
        ]:
            assert expected in await error_of(client, "search", **arguments), arguments
        assert "InvalidInput: query" in await error_of(client, "explain")
        assert "unknown" in (await error_of(client, "feedback", id=7, vote="up", like=7)).lower()
        many = await asyncio.gather(*(result_of(client, "search", like=row, k=1) for row in range(40)))
        assert [result["hits"][0]["id"] for result in many] == list(range(40))

    run_over_stdio(films, calls)


def test_votes_need_permission_and_are_stored(films: Path, tmp_path: Path) -> None:
    path = copied(films, tmp_path / "films")

    async def calls(client: Client) -> None:
        last = (await result_of(client, "search", like=7, k=100))["hits"][-1]["id"]
        version = (await result_of(client, "stats"))["version"]
        vote = {"id": last, "vote": "up", "like": 7}
        assert (await result_of(client, "feedback", **vote))["version"] == version + 1
        first = (await result_of(client, "search", like=7, k=1))["hits"][0]
        assert (first["id"], first["placed"]) == (last, "liked")
        for wrong in ({"vote": 2}, {"vote": "sideways"}, {"id": "no such film"}, {"source": "a" * 101}):
            await error_of(client, "feedback", **vote | wrong)
        assert (await result_of(client, "stats"))["version"] == version + 1

    run_over_stdio(path, calls, "--allow-feedback")
    with stillhash.open(path) as collection:  # the server has closed it
        assert collection.audit(limit=1)[0].what == "feedback" and collection.verify() == []


def test_a_small_collection_is_ranked_by_cosine(tmp_path: Path) -> None:
    with stillhash.open(tmp_path / "few", dim=4) as collection:
        collection.add(["a", "b"], np.eye(2, 4), metadata=[None, {"text": "second"}])

    async def calls(client: Client) -> None:
        hits = (await result_of(client, "search", vector=[0.1, 1, 0, 0]))["hits"]
        assert [(hit["id"], hit["metadata"]) for hit in hits] == [("b", {"text": "second"}), ("a", None)]
        assert "NotFitted" in await error_of(client, "explain", like="a")

    run_over_stdio(tmp_path / "few", calls)


@pytest.fixture
def address(films: Path) -> Iterator[str]:
    """Serve the films by HTTP on a free port."""
    command = [*COMMAND, str(films), "--http", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield json.loads(server.stdout.readline())["url"]
        finally:
            server.terminate()


def test_tools_are_served_by_http_to_this_machine_only(address: str, films: Path) -> None:
    async def calls() -> None:
        async with Client(address) as client, Client(address) as other:
            result = await result_of(client, "search", like=7, k=3)
            assert result == await result_of(other, "search", like=7, k=3)
            assert "InvalidInput: query" in await error_of(other, "search")
            async with connected(films) as third:
                assert await result_of(third, "search", like=7, k=3) == result

    asyncio.run(calls())
    assert address.startswith("http://127.0.0.1:")
    for header in ({"Host": "attacker.example"}, {"Origin": "http://attacker.example"}):
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **header}
        body = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(address, body, headers))
        with refused.value as answer:
            assert 400 <= answer.status < 500
    port = address.rpartition(":")[2].partition("/")[0]
    second = [*COMMAND, str(films), "--http", "--port", port, "--json"]
    taken = subprocess.run(second, capture_output=True, text=True)
    assert (taken.returncode, json.loads(taken.stderr)["error"]) == (4, "Conflict")
