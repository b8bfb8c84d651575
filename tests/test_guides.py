"""The guides of the server run, from top to bottom, as a reader would type them, beside a real server."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("guide", ["tutorial.md", "http.md"])
def test_the_guide_is_true(guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here, which the guides use")
    text = (DOCS / guide).read_text().replace("127.0.0.1:8000", f"127.0.0.1:{port}").replace("time.sleep(0.5)", "")
    blocks = re.findall(r"```(python|sh)\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 6
    namespace: dict[str, Any] = {}
    server: subprocess.Popen[str] | None = None
    try:
        for kind, block in blocks:
            if kind == "python":
                exec(compile(block, guide, "exec"), namespace)
                continue
            commands = [c for c in block.replace("\\\n", " ").splitlines() if not c.startswith("pip ")]
            for command in commands:
                if command.startswith("stillhash serve"):
                    words = [*shlex.split(command), "--port", port, "--log", "off"]
                    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
                    assert server.stdout and "The page is at" in server.stdout.readline()
                else:
                    subprocess.run(["bash", "-euc", command], check=True)
    finally:
        if server is not None:
            server.terminate()
            server.communicate()
