"""Run the Python of the README from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def test_readme_examples_run() -> None:
    text = (Path(__file__).parent.parent / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 4
    namespace: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
