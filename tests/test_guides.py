"""Run the guides from top to bottom, as a reader would type them, against a real server."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent / "docs"
GUIDE_ADDRESS = "127.0.0.1:8000"


@pytest.mark.slow
@pytest.mark.parametrize("guide", ["tutorial.md", "http.md", "codes.md"])
def test_guide_examples_run(guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed, and the guides use it")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    text = (DOCS / guide).read_text().replace("time.sleep(0.5)", "")
    blocks = re.findall(r"```(python|sh)\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 6
    namespace: dict[str, Any] = {}
    address = GUIDE_ADDRESS
    server: subprocess.Popen[str] | None = None
    try:
        for kind, block in blocks:
            if kind == "python":
                exec(compile(block.replace(GUIDE_ADDRESS, address), guide, "exec"), namespace)
                continue
            for command in block.replace("\\\n", " ").splitlines():
                if command.startswith("stillhash serve"):
                    words = [*shlex.split(command), "--port", "0", "--log", "off"]
                    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
                    assert server.stdout is not None
                    match = re.search(r"http://(127\.0\.0\.1:\d+)", server.stdout.readline())
                    assert match is not None
                    address = match[1]
                elif not command.startswith("pip "):
                    subprocess.run(["bash", "-euc", command.replace(GUIDE_ADDRESS, address)], check=True)
    finally:
        if server is not None:
            server.terminate()
            server.communicate()
