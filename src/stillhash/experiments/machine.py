"""Describe the machine that a figure was measured on."""

import os
import re
from pathlib import Path
from typing import Any

import stillhash


def machine() -> dict[str, Any]:
    """Return the CPU, kernels, versions and load that the numbers belong to."""
    here = stillhash.info()
    cpuinfo = Path("/proc/cpuinfo")
    cpu = re.search(
        r"^model name\s*: *(.*)", cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else "", re.MULTILINE
    )
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    known = {key: here[key] for key in ("cores", "lanes", "numpy", "stillhash")}
    return {"cpu": cpu[1].strip() if cpu else "unknown", **known, "load": load}
