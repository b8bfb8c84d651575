"""Time encoding: `encode` against the matrix product inside it, and against NumPy alone.

`encode` checks, centres and scales its rows to unit norm; the other contenders do not, so "bare" is `encode` with
pre-processing switched off, the same work as NumPy's project and pack. First the codes are compared with float64
arithmetic, and each row's code in a batch with its code alone.
"""

import numpy as np

from stillhash.bench.timing import CODE_LENGTHS, Contenders, Figures, Sections, compare_speed, one_library_thread
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.hashers import LSH, LinearHasher
from stillhash.numeric.validation import Floats

ENCODE_SHAPES = ((1000, 4096), (4000, 4096), (4000, 1280))
FIT_ROWS = 300  # rows that fix the hash functions
ROWS_ENCODED_ALONE = 200  # rows that are encoded again, one at a time
COMPARED_TIMES = ("encode/gemm", "bare/gemm", "numpy/bare")


def run(repeats: int, quick: bool, progress: ReportProgress) -> Figures:
    """Check and time encoding at each shape and code length."""
    rows = []
    for count, columns in ((400, 256),) if quick else ENCODE_SHAPES:
        X = np.random.default_rng(columns).standard_normal((count, columns), dtype=np.float32) + np.float32(0.5)
        for bits in CODE_LENGTHS:
            progress(f"{count} x {columns}, b = {bits}")
            hasher = LSH(bits).fit(X[:FIT_ROWS])
            with one_library_thread():
                differences = compare(hasher, X)
            rows.append({"bits": bits, **differences, **time_encoding(hasher, X, repeats)})
    goals = [
        ("bits that differ from float64 beyond rounding", "<= 0", sum(r["wrong_bits"] for r in rows)),
        ("rows that differ alone and in a batch", "<= 0", sum(r["rows_apart"] for r in rows)),
    ]
    return {"rows": rows, "goals": goals}


def compare(hasher: LinearHasher, X: Floats) -> Figures:
    """Count codes that differ from float64 arithmetic, and rows that differ alone and in a batch."""
    codes = hasher.encode(X)
    ones = np.unpackbits(codes, axis=1, count=hasher.bits, bitorder="little")
    centred = X.astype(np.float64) - hasher.mean_
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    W = hasher.W_.astype(np.float64)
    exact = centred @ W + hasher.t_
    # Rounding errors of a float32 sum of D terms grow like a random walk over the magnitudes of the terms.
    rounding = np.finfo(np.float32).eps * np.sqrt(X.shape[1]) * (np.abs(centred) @ np.abs(W))
    flipped = ones != (exact >= 0)
    wrong = int(np.count_nonzero(flipped & (np.abs(exact) > rounding)))
    alone = np.concatenate([hasher.encode(row[None]) for row in X[:ROWS_ENCODED_ALONE]])
    apart = int((alone != codes[: len(alone)]).any(axis=1).sum())
    flips = int(np.count_nonzero(flipped))
    return {"flipped_bits": flips, "wrong_bits": wrong, "rows_apart": apart, "exact": wrong == 0 and apart == 0}


def time_encoding(hasher: LinearHasher, X: Floats, repeats: int) -> Figures:
    W, t = hasher.W_, hasher.t_
    bare = LSH(hasher.bits, center=False, unit_norm=False).fit(X[:FIT_ROWS])
    product = np.empty((len(X), hasher.bits), np.float32)
    contenders: Contenders = {
        "encode": lambda _: hasher.encode(X),
        "bare": lambda _: bare.encode(X),
        "gemm": lambda _: np.matmul(X, W, out=product),
        "numpy": lambda _: np.packbits(X @ W + t >= 0, axis=1, bitorder="little"),
    }
    measured = compare_speed(contenders, repeats, *COMPARED_TIMES)
    speeds = {name: len(X) / ms * 1e3 for name, ms in measured["ms"].items()}
    return {"rows": len(X), "columns": X.shape[1], "vectors_per_second": speeds, **measured}


def tables(result: Figures) -> Sections:
    speeds = " | ".join(f"{name}: {{thousands[{name}]:.0f}}" for name in ("encode", "bare", "gemm", "numpy"))
    ratios = " | ".join(f"{pair}: {{{pair}}}" for pair in COMPARED_TIMES)
    rows = [r | {"thousands": {name: v / 1e3 for name, v in r["vectors_per_second"].items()}} for r in result["rows"]]
    title = "Encoding, one thread: thousand vectors a second, and ratios of times with quartiles"
    return [format_table(title, f"rows: {{rows}} | D: {{columns}} | b: {{bits}} | {speeds} | {ratios}", rows)]
