"""Read a Dockerfile, as far as ours goes: stages, and the variables in their instructions."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

DOCKERFILE = Path(__file__).parent.parent / "Dockerfile"
INSTRUCTIONS = "ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK LABEL RUN STOPSIGNAL USER VOLUME WORKDIR"


@dataclass
class Stage:
    """One FROM and what follows, in order."""

    image: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)  # instruction, rest of the line
    arguments: dict[str, str] = field(default_factory=dict)

    def last(self, instruction: str) -> str:
        """Return the rest of the last such instruction."""
        return [rest for name, rest in self.steps if name == instruction][-1]

    def command(self, instruction: str) -> list[str]:
        """Return the words of a CMD, ENTRYPOINT or HEALTHCHECK, which are a JSON list."""
        words: list[str] = json.loads(self.last(instruction).partition("CMD ")[2] or self.last(instruction))
        return words

    def values(self, instruction: str) -> dict[str, str]:
        """Return the names and values of all ENV or LABEL, without the value that a variable had before."""
        rests = [rest for name, rest in self.steps if name == instruction]
        pairs = [word.partition("=") for rest in rests for word in shlex.split(rest)]
        return {name: self.expand(value) for name, _, value in pairs}

    def copies(self) -> list[tuple[str, list[str], str]]:
        """Return each COPY: the stage it copies from, or "", its sources and its destination."""
        copies = []
        for rest in (rest for name, rest in self.steps if name == "COPY"):
            match = re.fullmatch(r"(?:--from=(\w+) )?(.+) (\S+)", rest)
            assert match is not None, f"COPY {rest}"
            copies.append((match[1] or "", match[2].split(), match[3]))
        return copies

    def expand(self, text: str) -> str:
        """Replace ARG variables."""
        return re.sub(r"\$\{?(\w+)\}?", lambda match: self.arguments.get(match[1], match[0]), text)


def read_stages(file: Path = DOCKERFILE) -> list[Stage]:
    """Return the stages, the last one being the image."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE))
    stages: list[Stage] = []
    shared: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        instruction, _, rest = line.partition(" ")
        rest = " ".join(rest.split())
        if instruction not in INSTRUCTIONS.split():
            raise ValueError(f"{file}: expected one of {INSTRUCTIONS}, got {instruction}")
        if instruction == "FROM":
            image, _, name = rest.partition(" AS ")
            stages.append(Stage(Stage(image, "", arguments=shared).expand(image), name))
        elif instruction == "ARG":
            name, _, value = rest.partition("=")
            (stages[-1].arguments if stages else shared)[name] = value
        else:
            stages[-1].steps.append((instruction, rest))
    return stages
