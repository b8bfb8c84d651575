"""Compile the kernels for one card and one code length, at run time, and keep the result on disk."""

import hashlib
import os
import tempfile
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

from stillhash.errors import MissingExtra, Unsupported

TENSOR_CAPABILITY = 80  # from here on, mma.sync multiplies int8
WARPGROUP_CAPABILITY = 90  # wgmma, of this generation alone
REGISTERS = 65_536  # of a multiprocessor
SHARED_BYTES = 160 << 10  # of a multiprocessor, on the smallest one with tensor cores for int8
BATCH_THREADS = 128


def load_cupy() -> Any:
    """Return CuPy, or raise MissingExtra."""
    try:
        return import_module("cupy")
    except ImportError:
        message = "device: expected CuPy to be installed, got none. Run: pip install 'stillhash[gpu]'"
        raise MissingExtra(message) from None


def compile_scan(cupy: Any, words: int, capability: int) -> Any:
    """Return the module of the kernels that every search uses."""
    return _load(cupy, _source("layout.cu") + _source("scan.cu"), [f"-DWORDS={words}"], capability)


def compile_batch(cupy: Any, words: int, queries: int, capability: int) -> Any:
    """Return the module of the scan for so many queries at a time."""
    source, blocks = _source("layout.cu"), batch_blocks(words, queries)
    options = [f"-DWORDS={words}", f"-DQUERIES={queries}", f"-DBLOCKS={blocks}"]
    if capability == WARPGROUP_CAPABILITY:
        source, options = source + multiply_source(queries), [*options, "-DWARPGROUPS"]
    return _load(cupy, source + _source("batch.cu"), options, capability)


def batch_blocks(words: int, queries: int) -> int:
    """Return how many blocks fit a multiprocessor, by registers for codes and sums, and by shared memory."""
    registers = -(-(26 + 9 * words + 16 * queries // 25) // 8) * 8  # as the compiler needs
    return max(1, min(8, REGISTERS // (BATCH_THREADS * registers), SHARED_BYTES // (words * 32 * queries + 2048)))


def multiply_source(queries: int) -> str:
    """Return the functions that set or add the products of 64 codes and all queries, 32 bits of each: one wgmma."""
    sums = queries // 2
    registers = ", ".join(f"%{i}" for i in range(sums))
    a, b, c, d, weights = (f"%{sums + i}" for i in range(5))
    source = ""
    for name, access, adding in (("set_products", "=", 0), ("add_products", "+", 1)):
        outputs = ", ".join(f'"{access}r"(sums[{i}])' for i in range(sums))
        source += f"""
__device__ __forceinline__ void {name}(int (&sums)[{sums}], const u32 (&bits)[4], u64 weights) {{
  asm volatile("{{ .reg .pred adding; setp.ne.b32 adding, {adding}, 0; "
               "wgmma.mma_async.sync.aligned.m64n{queries}k32.s32.u8.s8 {{{registers}}}, "
               "{{{a}, {b}, {c}, {d}}}, {weights}, adding; }}"
               : {outputs}
               : "r"(bits[0]), "r"(bits[1]), "r"(bits[2]), "r"(bits[3]), "l"(weights));
}}
"""
    return source


def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _load(cupy: Any, source: str, options: list[str], capability: int) -> Any:
    architecture = f"sm_{capability}a" if capability == WARPGROUP_CAPABILITY else f"sm_{capability}"
    options = [*options, "-std=c++17", "-fmad=false", f"--gpu-architecture={architecture}"]
    module = cupy.cuda.function.Module()
    module.load(_cubin(cupy.cuda.nvrtc, source, options))
    return module


def _cubin(nvrtc: Any, source: str, options: list[str]) -> bytes:
    key = hashlib.sha256(repr((source, options, nvrtc.getVersion())).encode()).hexdigest()
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")
    place = folder / f"stillhash-{key}.cubin"
    try:
        return place.read_bytes()
    except OSError:
        pass
    program = nvrtc.createProgram(source, "stillhash.cu", [], [])
    try:
        nvrtc.compileProgram(program, options)
        compiled = bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise Unsupported(f"device: expected kernels to compile, got {error}: {log[:2000]}") from error
    finally:
        nvrtc.destroyProgram(program)
    _store(place, compiled)
    return compiled


def _store(place: Path, compiled: bytes) -> None:
    """Write the file whole or not at all; without a folder to write to, compile again the next time."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
            file.write(compiled)
        os.replace(file.name, place)  # noqa: PTH105
    except OSError:
        return
