"""Time encoding: `encode` against the matrix product inside it, and against NumPy alone.

`encode` checks, centres and scales its rows to unit norm; the other contenders do not, so "bare" is `encode` with
pre-processing switched off, the same work as NumPy's project and pack. First the codes are compared with float64
arithmetic, and each row's code in a batch with its code alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stillhash.bench.timing import CODE_LENGTHS, goal, interleaved, median_ms, one_blas_thread, ratio
from stillhash.experiments.tables import ReportProgress, TableData, format_table, silent
from stillhash.hashers import LSH, LinearHasher
from stillhash.numeric.validation import Codes, Floats

ENCODE_SHAPES = ((1000, 4096), (4000, 4096), (4000, 1280))
FIT_ROWS = 300  # rows that fix the hash functions
ROWS_ENCODED_ALONE = 200  # rows that are encoded again, one at a time
COMPARED_TIMES = ("encode/gemm", "bare/gemm", "numpy/bare")


def run(repeats: int = 15, quick: bool = False, progress: ReportProgress = silent) -> dict[str, Any]:
    """Check and time encoding at each shape and code length."""
    rows = []
    for count, columns in ((400, 256),) if quick else ENCODE_SHAPES:
        X = np.random.default_rng(columns).standard_normal((count, columns), dtype=np.float32) + np.float32(0.5)
        for bits in CODE_LENGTHS:
            progress(f"{count} x {columns}, b = {bits}")
            hasher = LSH(bits).fit(X[:FIT_ROWS])
            with one_blas_thread():
                differences = compare(hasher, X)
            rows.append(
                {"bits": bits, **differences, **time_encoding(hasher, X, min(repeats, 3) if quick else repeats)}
            )
    goals = [
        goal("bits that differ from float64 beyond rounding", "<= 0", sum(r["wrong_bits"] for r in rows)),
        goal("rows that differ alone and in a batch", "<= 0", sum(r["rows_apart"] for r in rows)),
    ]
    return {"rows": rows, "goals": goals}


def compare(hasher: LinearHasher, X: Floats) -> dict[str, Any]:
    """Count codes that differ from float64 arithmetic, and rows that differ alone and in a batch."""
    bits, columns = hasher.bits, X.shape[1]
    codes = hasher.encode(X)
    ones = np.unpackbits(codes, axis=1, count=bits, bitorder="little")
    centred = X.astype(np.float64) - hasher.mean_
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    W = hasher.W_.astype(np.float64)
    exact = centred @ W + hasher.t_
    # Rounding errors of a float32 sum of D terms grow like a random walk over the magnitudes of the terms.
    rounding = np.finfo(np.float32).eps * np.sqrt(columns) * (np.abs(centred) @ np.abs(W))
    flipped = ones != (exact >= 0)
    wrong = int(np.count_nonzero(flipped & (np.abs(exact) > rounding)))
    apart = sum(
        not np.array_equal(hasher.encode(X[i : i + 1])[0], codes[i]) for i in range(min(ROWS_ENCODED_ALONE, len(X)))
    )
    return {
        "flipped_bits": int(np.count_nonzero(flipped)),
        "wrong_bits": wrong,
        "rows_apart": apart,
        "exact": wrong == 0 and apart == 0,
    }


def time_encoding(hasher: LinearHasher, X: Floats, repeats: int) -> dict[str, Any]:
    W, t = hasher.W_, hasher.t_
    bare = LSH(hasher.bits, center=False, unit_norm=False).fit(X[:FIT_ROWS])
    product = np.empty((len(X), hasher.bits), np.float32)

    def project_and_pack(_: int) -> Codes:
        return np.packbits(X @ W + t >= 0, axis=1, bitorder="little")

    times = interleaved(
        {
            "encode": lambda _: hasher.encode(X),
            "bare": lambda _: bare.encode(X),
            "gemm": lambda _: np.matmul(X, W, out=product),
            "numpy": project_and_pack,
        },
        repeats,
    )
    return {
        "rows": len(X),
        "columns": X.shape[1],
        "ms": {name: median_ms(times, name) for name in times},
        "vectors_per_second": {name: len(X) / median_ms(times, name) * 1e3 for name in times},
        **{pair: ratio(times, *pair.split("/")) for pair in COMPARED_TIMES},
    }


def tables(result: dict[str, Any]) -> list[TableData | str]:
    speeds = " | ".join(f"{name}: {{thousands[{name}]:.0f}}" for name in ("encode", "bare", "gemm", "numpy"))
    ratios = " | ".join(f"{pair}: {{{pair}}}" for pair in COMPARED_TIMES)
    rows = [
        r | {"thousands": {name: speed / 1e3 for name, speed in r["vectors_per_second"].items()}}
        for r in result["rows"]
    ]
    title = "Encoding, one thread: thousand vectors a second, and ratios of times with quartiles"
    return [format_table(title, f"rows: {{rows}} | D: {{columns}} | b: {{bits}} | {speeds} | {ratios}", rows)]
