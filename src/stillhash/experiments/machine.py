"""Describe the machine that a figure was measured on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import stillhash


def machine() -> dict[str, Any]:
    """Return the CPU, kernels, versions and load that the numbers belong to."""
    here = stillhash.info()
    return {
        "cpu": _cpu(),
        **{key: here[key] for key in ("cores", "lanes", "numpy", "stillhash")},
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"
