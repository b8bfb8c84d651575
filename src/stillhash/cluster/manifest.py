"""The plan of a piece of work over a source, fixed on disk before the first task, and held against all that follow.

    manifest.json            the files of the source as they were, what is done to them, and the parts
    functions.safetensors    what makes the codes; a sealed file
    parts/00000000.tiles     the codes of part 0: a segment, as a collection has them
    parts/00000000.items     its ids, labels, metadata and pictures: a sealed file

What is done to a part depends on the plan alone, so its files have the same bytes whoever makes them and however
often. A run that ended anywhere is gone on with by starting it again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from stillhash.cluster.sources import Source, SourceFile, SourcePart
from stillhash.collection.storage.sealed_files import remove_unlisted, write_durably
from stillhash.errors import BadState, Conflict, InvalidInput, StoreFailed

FORMAT = 1
MANIFEST = "manifest.json"


class Plan(NamedTuple):
    about: dict[str, Any]  # what is done, and by what
    files: list[SourceFile]
    parts: list[tuple[int, int]]  # the first row of each, and the one past its last

    @property
    def rows(self) -> int:
        return self.parts[-1][1]

    def text(self) -> bytes:
        told = {"format": FORMAT, **self.about, "files": self.files, "parts": self.parts}
        return json.dumps(told, indent=0).encode()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text()).hexdigest()


def planned(source: Source, parts: list[SourcePart], about: dict[str, Any]) -> Plan:
    encoder = {} if source.encoder is None else {"encoder": source.encoder}
    return Plan({**about, **encoder}, source.files, [(part.first, part.end) for part in parts])


def fix(plan: Plan, out: Path) -> None:
    """Writes the plan down; if one is there already, it must be this."""
    try:
        (out / "parts").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreFailed(f"out is {str(out)!r}; it cannot be written to: {error.strerror or error}") from error
    if not (out / MANIFEST).exists():
        write_durably(out / MANIFEST, [plan.text()])
    if (there := read_plan(out)) != plan:
        raise Conflict(f"out is {str(out)!r}, which holds other work: {_difference(there, plan)}")


def read_plan(out: Path) -> Plan:
    try:
        told = json.loads((out / MANIFEST).read_bytes())
        found = told.pop("format")
        files = [SourceFile(*file) for file in told.pop("files")]
        parts = [(int(first), int(end)) for first, end in told.pop("parts")]
    except FileNotFoundError:
        raise InvalidInput(f"out is {str(out)!r}; there is no {MANIFEST}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadState(f"{out.name}/{MANIFEST} cannot be read: {error}") from error
    if found != FORMAT:
        raise BadState(f"{out.name}/{MANIFEST} has format version {found}; this release reads version {FORMAT}")
    return Plan(told, files, parts)


def tidy(plan: Plan, out: Path, endings: tuple[str, ...]) -> None:
    """Drops what tasks that died had begun."""
    remove_unlisted(out / "parts", {name(number, ending) for number in range(len(plan.parts)) for ending in endings})


def name(number: int, ending: str) -> str:
    return f"{number:08d}.{ending}"


def _difference(there: Plan, wanted: Plan) -> str:
    """The first thing that differs, in words."""
    for key in sorted(there.about.keys() | wanted.about.keys()):
        if (was := there.about.get(key)) != (now := wanted.about.get(key)):
            return f"its {key} is {was}, not {now}"
    before, after = ({file.name: file for file in plan.files} for plan in (there, wanted))
    for path in sorted(before.keys() | after.keys()):
        if path not in after or path not in before:
            return f"the source {'lacks' if path in before else 'has now'} {path}"
        if before[path] != after[path]:
            return f"{path} of the source has changed"
    return f"it has {len(there.parts)} parts, not {len(wanted.parts)}, or its files in another order"
