"""Time encoding: `encode` against the bare matrix product of the same shape, and against its steps one by one.

`encode` checks, centres and scales its rows to unit norm, projects them and packs the signs, in one pass. "steps" does
the same with an array after each step; "gemm" is NumPy's product X @ W alone. All three run on one thread. Then
`encode` on all usable cores is timed against one, by the wall clock. First the codes are compared with float64
arithmetic and with those of the steps, and each row's code in a batch with its code alone.
"""

import numpy as np

from benchmarks.timing import (
    CODE_BITS,
    CODE_LENGTHS,
    Contenders,
    Figures,
    Sections,
    compare_speed,
    interleaved,
    one_library_thread,
    ratio,
)
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.hashers import LSH, LinearHasher
from stillhash.numeric.codes import pack
from stillhash.numeric.validation import Codes, Floats, check_features

ENCODE_SHAPES = ((1000, 1280), (1000, 4096), (10_000, 1280), (10_000, 4096))
STEP_ROWS = 128  # rows that the steps take at a time, so that they stay in the cache
FIT_ROWS = 300  # rows that fix the hash functions
ROWS_ENCODED_ALONE = 200  # rows that are encoded again, one at a time
COMPARED_TIMES = ("encode/gemm", "steps/gemm", "all/one")


def run(quick: bool, progress: ReportProgress, repeats: int = 15) -> Figures:
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
        ("rows that differ from the steps one by one", "<= 0", sum(r["rows_off_steps"] for r in rows)),
        *(
            (f"encode/gemm at {r['rows']:,} x {r['columns']:,}, {CODE_BITS} bits", "<= 1.5", r["encode/gemm"]["median"])
            for r in rows
            if r["bits"] == CODE_BITS
        ),
    ]
    return {"rows": rows, "goals": goals}


def compare(hasher: LinearHasher, X: Floats) -> Figures:
    """Count codes that differ from float64 arithmetic, and rows that differ alone and in a batch, or from the steps."""
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
    off = int((encode_by_steps(hasher, X) != codes).any(axis=1).sum())
    return {
        "flipped_bits": int(np.count_nonzero(flipped)),
        "wrong_bits": wrong,
        "rows_apart": apart,
        "rows_off_steps": off,
        "exact": wrong == apart == off == 0,
    }


def encode_by_steps(hasher: LinearHasher, X: Floats) -> Codes:
    """Encode as the steps of `encode` are described, a few rows at a time."""
    X = check_features(X)
    batches = [X[s : s + STEP_ROWS] for s in range(0, len(X), STEP_ROWS)]
    return np.concatenate([pack(hasher.project(hasher.prepare(rows))) for rows in batches])


def time_encoding(hasher: LinearHasher, X: Floats, repeats: int) -> Figures:
    product = np.empty((len(X), hasher.bits), np.float32)
    contenders: Contenders = {
        "encode": lambda _: hasher.encode(X, threads=1),
        "steps": lambda _: encode_by_steps(hasher, X),
        "gemm": lambda _: np.matmul(X, hasher.W_, out=product),
    }
    measured = compare_speed(contenders, repeats, "encode/gemm", "steps/gemm")
    speeds = {name: len(X) / ms * 1e3 for name, ms in measured["ms"].items()}
    by_threads: Contenders = {"all": lambda _: hasher.encode(X), "one": lambda _: hasher.encode(X, threads=1)}
    measured["all/one"] = ratio(interleaved(by_threads, repeats, wall=True), "all/one")
    return {"rows": len(X), "columns": X.shape[1], "vectors_per_second": speeds, **measured}


def tables(result: Figures) -> Sections:
    speeds = " | ".join(f"{name}: {{thousands[{name}]:.0f}}" for name in ("encode", "steps", "gemm"))
    ratios = " | ".join(f"{pair}: {{{pair}}}" for pair in COMPARED_TIMES)
    rows = [r | {"thousands": {name: v / 1e3 for name, v in r["vectors_per_second"].items()}} for r in result["rows"]]
    title = "Encoding: thousand vectors a second on one thread, and ratios of times with quartiles"
    return [format_table(title, f"rows: {{rows}} | D: {{columns}} | b: {{bits}} | {speeds} | {ratios}", rows)]
