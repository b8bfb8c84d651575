"""How fast a chunk is learnt: ours against the two matrix products that no method can avoid, and against plain loops.

The chunk is 1,000 rows of 4,096 features with l = 3b target bits, in float32. First the result is compared with the
recursion as it is written, in float64, at feature norms for which different shares of the steps are clipped at C.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy.linalg import blas

from stillhash.bench.timing import (
    Progress,
    goal,
    interleaved,
    median_ms,
    one_blas_thread,
    print_frame,
    ratio,
    silent,
    spread,
)
from stillhash.experiments.machine import machine
from stillhash.experiments.tables import print_table
from stillhash.hashers import OHSL, Tally
from stillhash.numeric import reference
from stillhash.numeric.codes import sgn
from stillhash.numeric.learning import empty_projection, passive_aggressive
from stillhash.numeric.validation import Floats

BITS = (32, 64, 96)
NORMS = (1, 10, 30, 100)  # from every step clipped to none
NORM = 30  # of the timed chunk
C = 0.01
CLASSES = 80
EXACT = {"float64": 1e-12, "float32": 1e-5}  # largest difference, relative to the largest entry
APART = 1e-4  # the same between two float32 learners that have both been rounding for many rounds
FLOOR_GOALS = {32: "<= 1.8", 64: "<= 1.5", 96: "<= 1.5"}
SUMS_GOALS = {1280: ">= 0.3", 4096: ">= 0.15"}
GER_GOALS = {32: ">= 2", 64: ">= 2.5", 96: ">= 3"}

Array = NDArray[Any]
Targets = NDArray[np.int8]


def run(repeats: int = 15, quick: bool = False, progress: Progress = silent) -> dict[str, Any]:
    """Checks and times learning at each code length."""
    here = machine()
    rows, exactness = [], []
    for bits in BITS:
        X, G = chunk(*((300, 512) if quick else (1000, 4096)), length=3 * bits)
        progress(f"b = {bits}: comparing with the literal loop")
        with one_blas_thread():
            exactness += [{"bits": bits, **compared(X, G, norm)} for norm in NORMS]
        progress(f"b = {bits}: timing")
        rows.append({"bits": bits, **timed(X * np.float32(NORM), G, min(repeats, 3) if quick else repeats)})
    progress("Tally beside OHSL")
    methods = [beside(columns, min(repeats, 3) if quick else repeats) for columns in ((256,) if quick else SUMS_GOALS)]
    goals = [
        *(goal(f"difference, {name}", f"<= {most:g}", max(r[name] for r in exactness)) for name, most in EXACT.items()),
        *(goal(f"ours / floor, b = {r['bits']}", FLOOR_GOALS[r["bits"]], r["ours/floor"]["median"]) for r in rows),
        *(goal(f"ger / ours, b = {r['bits']}", GER_GOALS[r["bits"]], r["ger/ours"]["median"]) for r in rows),
        *(
            goal(f"speed of Tally / OHSL, D = {r['columns']}", SUMS_GOALS[r["columns"]], r["ohsl/tally"]["median"])
            for r in methods
            if r["columns"] in SUMS_GOALS
        ),
    ]
    found = {"rows": rows, "exactness": exactness, "methods": methods, "goals": goals}
    return {"machine": here, "quick": quick, **found}


def chunk(count: int, columns: int, length: int) -> tuple[Floats, Targets]:
    """Rows of several classes each, like features after a rectifier, of unit norm; and their target codes."""
    rng = np.random.default_rng(length)
    labels = rng.random((count, CLASSES)) < 0.03
    labels[np.arange(count), rng.integers(CLASSES, size=count)] = True
    centres = rng.standard_normal((CLASSES, columns), dtype=np.float32)
    noise = rng.standard_normal((count, columns), dtype=np.float32)
    X = np.maximum(labels.astype(np.float32) @ centres + 0.8 * noise - 0.5, 0)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, sgn(labels @ rng.standard_normal((CLASSES, length)))


# ---- exactness ----


def compared(X: Floats, G: Targets, norm: int) -> dict[str, Any]:
    """How far ours is from the literal loop in float64, and what became of the steps."""
    X = X * np.float32(norm)
    wanted, shares = literal(X.astype(np.float64), G)
    found: dict[str, Any] = {"norm": norm, **shares}
    for name in EXACT:
        U = empty_projection(G.shape[1], X.shape[1], name)
        passive_aggressive(U, X.astype(name), G, C)
        found[name] = difference(U.T, wanted)
    return {**found, "exact": all(found[name] <= most for name, most in EXACT.items())}


def literal(X: Array, G: Targets) -> tuple[Array, dict[str, float]]:
    """U^T (D, l) after the loop as it is written, and the shares of passive, unclipped and clipped steps."""
    Ut = np.zeros((X.shape[1], G.shape[1]))
    passive = clipped = 0
    for i, (x, g) in enumerate(zip(X, G, strict=True)):
        loss = 1 - g * (x @ Ut)
        passive += int(np.count_nonzero(loss <= 0))
        clipped += int(np.count_nonzero(loss >= C * (x @ x)))
        reference.passive_aggressive_literal(Ut, X[i : i + 1], G[i : i + 1], C, 2)
    shares = {"passive": passive / G.size, "clipped": clipped / G.size}
    return Ut, {**shares, "unclipped": 1 - sum(shares.values())}


def difference(found: Array, wanted: Array) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


# ---- speed ----


def per_sample(U: Floats, X: Floats, G: Targets) -> None:
    """The loop at its best without a compiler: one matrix-vector product and one rank-one update in place a row."""
    most = np.float32(C)
    norms = np.einsum("ij,ij->i", X, X)
    for x, g, norm in zip(X, G.astype(np.float32), norms, strict=True):
        tau = np.minimum(most, np.maximum(0, 1 - g * (U @ x)) / norm)
        blas.sger(1.0, x, tau * g, a=U.T, overwrite_x=1, overwrite_y=1, overwrite_a=1)


def timed(X: Floats, G: Targets, repeats: int) -> dict[str, Any]:
    """Times of all contenders on one chunk; each keeps learning on a projection of its own."""
    length, columns = G.shape[1], X.shape[1]
    ours = empty_projection(length, columns)
    block = np.zeros((columns, length), np.float32)
    loop = np.zeros((length, columns), np.float32)
    still = np.random.default_rng(0).standard_normal((length, columns), dtype=np.float32)
    product = np.empty_like(still)

    def floor(_: int) -> None:
        P = X @ still.T
        np.matmul(P.T, X, out=product)

    times = interleaved(
        {
            "ours": lambda _: passive_aggressive(ours, X, G, C),
            "floor": floor,
            "ger": lambda _: per_sample(loop, X, G),
            "numpy": lambda _: reference.passive_aggressive(block, X, G, C, 2),
        },
        repeats,
    )
    # Every learner has now seen the chunk equally often: a contender that does another job would stand out here.
    apart = max(difference(loop, ours), difference(block.T, ours))
    return {
        "rows": len(X),
        "columns": columns,
        "length": length,
        "ms": {name: median_ms(times, name) for name in times},
        "rows_per_second": len(X) / median_ms(times, "ours") * 1e3,
        "ours/floor": ratio(times, "ours", "floor"),
        "ger/ours": ratio(times, "ger", "ours"),
        "numpy/ours": ratio(times, "numpy", "ours"),
        "contenders_apart": apart,
        "exact": apart <= APART,
    }


def beside(columns: int, repeats: int) -> dict[str, Any]:
    """A chunk learnt by whole methods at 64 bits, pre-processing and encoding included; and what Tally's sums cost."""
    X, _ = chunk(1000, columns, length=64)
    Y = np.random.default_rng(0).random((len(X), CLASSES)) < 0.03
    Y[np.arange(len(X)), np.arange(len(X)) % CLASSES] = True
    hashers = {"tally": Tally(64).fit(X, Y), "ohsl": OHSL(64).fit(X)}
    times = interleaved({name: lambda _, h=h: h.partial_fit(X, Y) for name, h in hashers.items()}, repeats)  # type: ignore[misc]
    solves = interleaved({"solve": lambda _: hashers["tally"].partial_fit(X[:1], Y[:1]).weigh(X[:1])}, min(3, repeats))
    return {
        "columns": columns,
        "rows_per_second": {name: len(X) / median_ms(times, name) * 1e3 for name in times},
        "ohsl/tally": ratio(times, "ohsl", "tally"),
        "solve_ms": median_ms(solves, "solve"),
        "state_bytes": {name: len(h.state()) for name, h in hashers.items()},
    }


def show(result: dict[str, Any], console: Console) -> None:
    print_table(
        console,
        "Difference from the literal loop in float64, and the steps",
        ("b", "norm", *EXACT, "passive", "unclipped", "clipped"),
        [
            (
                f"{r['bits']}",
                f"{r['norm']}",
                *(f"{r[name]:.1e}" for name in EXACT),
                *(f"{r[share]:.0%}" for share in ("passive", "unclipped", "clipped")),
            )
            for r in result["exactness"]
        ],
    )
    first = result["rows"][0]
    print_table(
        console,
        "Whole methods, 64 bits, 80 labels: rows/s of partial_fit, one solve for new weights, size of state",
        ("D", "Tally", "OHSL", "Tally / OHSL", "solve", "Tally, MB", "OHSL, MB"),
        [
            (
                f"{r['columns']}",
                *(f"{r['rows_per_second'][name]:,.0f}" for name in ("tally", "ohsl")),
                spread(r["ohsl/tally"]),
                f"{r['solve_ms']:,.0f} ms",
                *(f"{r['state_bytes'][name] / 1e6:.1f}" for name in ("tally", "ohsl")),
            )
            for r in result["methods"]
        ],
    )
    print_table(
        console,
        f"Learning {first['rows']} x {first['columns']}, l = 3b, float32, one thread: ms, and ratios with quartiles",
        ("b", "ours", "floor", "ger", "NumPy", "rows/s", "ours / floor", "ger / ours", "NumPy / ours"),
        [
            (
                f"{r['bits']}",
                *(f"{r['ms'][name]:.1f}" for name in ("ours", "floor", "ger", "numpy")),
                f"{r['rows_per_second']:,.0f}",
                *(spread(r[pair]) for pair in ("ours/floor", "ger/ours", "numpy/ours")),
            )
            for r in result["rows"]
        ],
    )
    print_frame(result, console)
