"""Run the Python of the README from top to bottom, and follow the links of all guides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def test_readme_examples_run() -> None:
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 4
    namespace: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)


@pytest.mark.parametrize("guide", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda path: path.name)
def test_links_lead_to_files(guide: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", guide.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (guide.parent / link).exists()]
    assert missing == []
