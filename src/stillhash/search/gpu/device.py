"""Choose where an index searches: on the processor, or on a GPU."""

from collections.abc import Callable
from functools import partial
from typing import Any

from stillhash.errors import InvalidInput, StillhashError
from stillhash.search.code_index import CodeIndex
from stillhash.search.gpu.cuda_card import open_card
from stillhash.search.gpu.gpu_scan import GpuScan
from stillhash.search.index import Index
from stillhash.search.index_files import SavedIndex

CPU, CUDA, AUTO = "cpu", "cuda", "auto"


def index_for(bits: int, *, device: str = AUTO, threads: int | None = None) -> CodeIndex:
    """Return an empty exact index on a device: "cpu", "cuda", "cuda:1", or "auto", a GPU if there is one."""
    index: CodeIndex = searcher_for(device)(bits, threads=threads)
    return index


def searcher_for(device: str) -> Callable[..., Any]:
    """Return what makes an index for codes of so many bits on a device, as `stillhash.open` takes it.

    Raises MissingExtra or Unsupported if a GPU is named and there is none.
    """
    name, number = parse_device(device)
    if name == CPU:
        return Index
    try:
        open_card(number)
    except StillhashError:
        if name == AUTO:
            return Index
        raise
    return partial(GpuScan, device=number)


def parse_device(device: str) -> tuple[str, int]:
    """Return the kind of a device and the number of the GPU, whether there is one or not."""
    name, _, number = str(device).partition(":")
    if name not in (CPU, CUDA, AUTO) or (number and (name != CUDA or not number.isdigit())):
        raise InvalidInput(f"device: expected cpu, cuda, cuda:NUMBER or auto, got {device!r:.100}")
    return name, int(number or 0)


def restore_for(saved: SavedIndex, *, device: str = AUTO, threads: int | None = None) -> CodeIndex:
    """Return the index of `saved` on a device, without a copy of its codes on the host."""
    searcher = searcher_for(device)
    if isinstance(searcher, partial):
        return GpuScan.from_saved(saved, threads, **searcher.keywords)
    return Index.from_saved(saved, threads)
