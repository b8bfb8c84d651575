"""What indexing did: the report of a folder of images, and of documents."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_BROKEN = 10_000  # that are listed


@dataclass
class IndexReport:
    """How many files or documents were indexed, skipped or unreadable."""

    added: int = 0
    updated: int = 0
    skipped: int = 0  # already indexed, and unchanged
    labelled: int = 0  # of those added or updated
    broken: dict[str, str] = field(default_factory=dict)  # what cannot be indexed, and why; 10,000 at most
    broken_count: int = 0
    progress: float = 0.0  # share of the source that is dealt with
    seconds: float = 0.0

    def add_broken(self, name: str, reason: str) -> None:
        """Count a file or a document that cannot be indexed."""
        self.broken_count += 1
        if len(self.broken) < MAX_BROKEN:
            self.broken[name] = reason

    def counts(self, folder: Path) -> dict[str, Any]:
        """Return the counts and what is broken, in messages that do not name the folder."""
        names = ("added", "updated", "skipped", "labelled", "broken_count")
        broken = {name: reason.replace(f"{folder}{os.sep}", "") for name, reason in self.broken.items()}
        return {**{name: getattr(self, name) for name in names}, "broken": broken}
