"""Indexes on a GPU, or on its NumPy twin, for tests."""

from __future__ import annotations

from typing import Any

from stillhash.errors import StillhashError
from stillhash.search.gpu.card import Card, CardLimits
from stillhash.search.gpu.cuda_card import CudaCard, open_card
from stillhash.search.gpu.gpu_scan import GpuScan
from tests.search.gpu.numpy_card import NumpyCard

TWIN_LIMITS = CardLimits(
    candidates=4096, batch=16, samples=500, batch_samples=300, unsampled=1000, phases=8000, few=8, chunk_bytes=1 << 18
)


class TwinScan(GpuScan):
    """The index on a GPU, with the twin in place of the GPU."""

    def __init__(self, bits: int, *, threads: int | None = None, device: Any = None) -> None:
        super().__init__(bits, device=NumpyCard(TWIN_LIMITS), threads=threads)
        self.device = 0


def gpu_reason() -> str:
    """Return why there is no GPU to test with; empty if there is one."""
    try:
        open_card(0)
    except StillhashError as error:
        return f"no GPU: {error}"
    return ""


def small_card(kind: str, limits: CardLimits) -> Card:
    """Return a card with these limits."""
    return NumpyCard(limits) if kind == "twin" else CudaCard(0, limits)
