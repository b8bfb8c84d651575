"""All targets, by name."""

from __future__ import annotations

from tests.fuzz.engine import Target
from tests.fuzz.file_targets import FILE_TARGETS
from tests.fuzz.input_targets import INPUT_TARGETS
from tests.fuzz.text_targets import TEXT_TARGETS

TARGETS: dict[str, Target] = {target.name: target for target in (*FILE_TARGETS, *INPUT_TARGETS, *TEXT_TARGETS)}
