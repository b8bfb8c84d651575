"""Copy from the host to a card through pinned memory: one part is filled while another is copied."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stillhash.numeric.threads import usable_cores

PARTS = 2
COPY_THREADS = min(8, usable_cores())
PARALLEL_BYTES = 1 << 20  # from this size on, several threads fill a part


class PinnedPart(NamedTuple):
    """Memory of the host, memory of the card, and the event after which both are free again."""

    host: NDArray[np.uint8]
    card: Any
    done: Any


class PinnedParts:
    """Parts of `size` bytes that take turns."""

    def __init__(self, cupy: Any, size: int) -> None:
        self._cupy, self.size = cupy, size
        self._parts: list[PinnedPart] = []
        self._turn = 0
        self._threads = ThreadPoolExecutor(COPY_THREADS, "copy to GPU") if COPY_THREADS > 1 else None

    def fill(self, content: NDArray[np.uint8]) -> PinnedPart:
        """Wait for the part whose turn it is, and fill it: the caller copies it, and records its event."""
        part = self._next()
        part.done.synchronize()
        target = part.host[: content.nbytes].reshape(content.shape)
        if self._threads is None or content.nbytes < PARALLEL_BYTES:
            target[...] = content
            return part
        step = -(-len(content) // COPY_THREADS)  # one thread alone is slower than the bus
        starts = range(0, len(content), step)
        list(self._threads.map(lambda s: np.copyto(target[s : s + step], content[s : s + step]), starts))
        return part

    def _next(self) -> PinnedPart:
        cuda = self._cupy.cuda
        if len(self._parts) < PARTS:
            host = np.frombuffer(cuda.alloc_pinned_memory(self.size), np.uint8)[: self.size]
            card = self._cupy.empty(self.size, np.uint8)
            self._parts.append(PinnedPart(host, card, cuda.Event(disable_timing=True)))
            return self._parts[-1]
        self._turn = (self._turn + 1) % PARTS
        return self._parts[self._turn]
