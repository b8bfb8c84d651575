"""Time learning a chunk: ours against the two matrix products that no method can avoid, and against plain loops.

The chunk is 1,000 rows of 4,096 features with l = 3b target bits, in float32. First the result is compared with the
recursion as it is written, in float64, at feature norms for which different shares of the steps are clipped at C.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from benchmarks.timing import CODE_LENGTHS, Contenders, Figures, Sections, compare_speed, one_library_thread
from stillhash.experiments.tables import ReportProgress, format_table
from stillhash.hashers import OHSL, Tally
from stillhash.numeric import kernels, reference
from stillhash.numeric.codes import sgn
from stillhash.numeric.validation import Floats

FEATURE_NORMS = (1, 10, 30, 100)  # from every step clipped to none
TIMED_NORM = 30  # of the timed chunk
MAX_STEP = 0.01
LEARN_CLASSES = 80
MAX_DIFFERENCE = {"float64": 1e-12, "float32": 1e-5}  # largest difference, relative to the largest entry
MAX_CONTENDER_DIFFERENCE = 1e-4  # the same between two float32 learners that have both been rounding for many rounds
LEARN_GOALS = {  # by code length
    "ours/floor": {32: "<= 1.8", 64: "<= 1.5", 96: "<= 1.5"},
    "ger/ours": {32: ">= 2", 64: ">= 2.5", 96: ">= 3"},
}
TALLY_GOALS = {1280: ">= 0.3", 4096: ">= 0.15"}  # by dimensions

RealArray = NDArray[Any]
TargetSigns = NDArray[np.int8]


def run(quick: bool, progress: ReportProgress, repeats: int = 15) -> Figures:
    """Check and time learning at each code length."""
    rows, exactness = [], []
    for bits in CODE_LENGTHS:
        X, G = chunk(*((300, 512) if quick else (1000, 4096)), length=3 * bits)
        progress(f"b = {bits}: comparing with the literal loop")
        with one_library_thread():
            exactness += [{"bits": bits, **compare(X, G, norm)} for norm in FEATURE_NORMS]
        progress(f"b = {bits}: timing")
        rows.append({"bits": bits, **time_contenders(X * np.float32(TIMED_NORM), G, repeats)})
    progress("Tally beside OHSL")
    methods = [time_methods(columns, repeats) for columns in ((256,) if quick else TALLY_GOALS)]
    goals = [(f"difference, {n}", f"<= {most}", max(r[n] for r in exactness)) for n, most in MAX_DIFFERENCE.items()]
    for pair, bounds in LEARN_GOALS.items():
        name = pair.replace("/", " / ")
        goals += [(f"{name}, b = {r['bits']}", bounds[r["bits"]], r[pair]["median"]) for r in rows]
    for r in methods:
        if bound := TALLY_GOALS.get(r["columns"]):
            goals.append((f"speed of Tally / OHSL, D = {r['columns']}", bound, r["ohsl/tally"]["median"]))
    return {"rows": rows, "exactness": exactness, "methods": methods, "goals": goals}


def chunk(count: int, columns: int, length: int) -> tuple[Floats, TargetSigns]:
    """Make rows of several classes each, like features after a rectifier, of unit norm; and their target codes."""
    rng = np.random.default_rng(length)
    labels = rng.random((count, LEARN_CLASSES)) < 0.03
    labels[np.arange(count), rng.integers(LEARN_CLASSES, size=count)] = True
    centres = rng.standard_normal((LEARN_CLASSES, columns), dtype=np.float32)
    noise = rng.standard_normal((count, columns), dtype=np.float32)
    X = np.maximum(labels.astype(np.float32) @ centres + 0.8 * noise - 0.5, 0)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, sgn(labels @ rng.standard_normal((LEARN_CLASSES, length)))


def compare(X: Floats, G: TargetSigns, norm: int) -> Figures:
    """Measure how far ours is from the literal loop in float64, and the shares of the steps."""
    X = X * np.float32(norm)
    expected, shares = literal(X.astype(np.float64), G)
    row: Figures = {"norm": norm, **shares}
    for name in MAX_DIFFERENCE:
        U = np.zeros((G.shape[1], X.shape[1]), name, order="F")
        kernels.passive_aggressive(U, X.astype(name), G, MAX_STEP)
        row[name] = difference(U.T, expected)
    return {**row, "exact": all(row[name] <= most for name, most in MAX_DIFFERENCE.items())}


def literal(X: RealArray, G: TargetSigns) -> tuple[RealArray, dict[str, float]]:
    """Return U^T (D, l) after the loop as it is written, and the shares of passive, unclipped and clipped steps."""
    Ut = np.zeros((X.shape[1], G.shape[1]))
    passive = clipped = 0
    for i, (x, g) in enumerate(zip(X, G, strict=True)):
        loss = 1 - g * (x @ Ut)
        passive += int(np.count_nonzero(loss <= 0))
        clipped += int(np.count_nonzero(loss >= MAX_STEP * (x @ x)))
        reference.passive_aggressive_literal(Ut, X[i : i + 1], G[i : i + 1], MAX_STEP, 2)
    shares = {"passive": passive / G.size, "clipped": clipped / G.size}
    return Ut, {**shares, "unclipped": 1 - sum(shares.values())}


def difference(actual: RealArray, expected: RealArray) -> float:
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def per_sample(U: Floats, X: Floats, G: TargetSigns) -> None:
    """Run the loop at its best without a compiler: one matrix-vector product and one rank-one update a row."""
    norms = np.einsum("ij,ij->i", X, X)
    for x, g, norm in zip(X, G.astype(np.float32), norms, strict=True):
        tau = np.minimum(np.float32(MAX_STEP), np.maximum(0, 1 - g * (U @ x)) / norm)
        blas.sger(1.0, x, tau * g, a=U.T, overwrite_x=1, overwrite_y=1, overwrite_a=1)


def time_contenders(X: Floats, G: TargetSigns, repeats: int) -> Figures:
    """Time all contenders on one chunk; each keeps learning on a projection of its own."""
    length, columns = G.shape[1], X.shape[1]
    ours = np.zeros((length, columns), np.float32, order="F")
    block = np.zeros((columns, length), np.float32)
    loop = np.zeros((length, columns), np.float32)
    fixed = np.random.default_rng(0).standard_normal((length, columns), dtype=np.float32)
    product = np.empty_like(fixed)
    contenders: Contenders = {
        "ours": lambda _: kernels.passive_aggressive(ours, X, G, MAX_STEP),
        "floor": lambda _: np.matmul((X @ fixed.T).T, X, out=product),
        "ger": lambda _: per_sample(loop, X, G),
        "numpy": lambda _: reference.passive_aggressive(block, X, G, MAX_STEP, 2),
    }
    measured = compare_speed(contenders, repeats, "ours/floor", "ger/ours", "numpy/ours")
    # Every learner has now seen the chunk equally often: a contender that does another job would stand out here.
    apart = max(difference(loop, ours), difference(block.T, ours))
    speed = {"rows_per_second": len(X) / measured["ms"]["ours"] * 1e3, **measured}
    shape = {"rows": len(X), "columns": columns, "length": length}
    return {**shape, **speed, "contenders_apart": apart, "exact": apart <= MAX_CONTENDER_DIFFERENCE}


def time_methods(columns: int, repeats: int) -> Figures:
    """Time whole methods on a chunk at 64 bits, pre-processing and encoding included; and what a solve costs."""
    X, _ = chunk(1000, columns, length=64)
    Y = np.random.default_rng(0).random((len(X), LEARN_CLASSES)) < 0.03
    Y[np.arange(len(X)), np.arange(len(X)) % LEARN_CLASSES] = True
    tally, ohsl = Tally(64).fit(X, Y), OHSL(64).fit(X)
    contenders = {"tally": lambda _: tally.partial_fit(X, Y), "ohsl": lambda _: ohsl.partial_fit(X, Y)}
    times = compare_speed(contenders, repeats, "ohsl/tally")
    solves = compare_speed({"solve": lambda _: tally.partial_fit(X[:1], Y[:1]).weigh(X[:1])}, min(3, repeats))
    speeds = {name: len(X) / ms * 1e3 for name, ms in times["ms"].items()}
    sizes = {"tally": len(tally.state()), "ohsl": len(ohsl.state())}
    figures = {"rows_per_second": speeds, "ohsl/tally": times["ohsl/tally"], "solve_ms": solves["ms"]["solve"]}
    return {"columns": columns, **figures, "state_bytes": sizes}


def tables(result: Figures) -> Sections:
    exactness = """b: {bits} | norm: {norm} | float64: {float64:.1e} | float32: {float32:.1e} | passive: {passive:.0%} |
        unclipped: {unclipped:.0%} | clipped: {clipped:.0%}"""
    methods = """D: {columns} | Tally: {rows_per_second[tally]:,.0f} | OHSL: {rows_per_second[ohsl]:,.0f} |
        Tally / OHSL: {ohsl/tally} | solve, ms: {solve_ms:,.0f} | Tally, bytes: {state_bytes[tally]:,} |
        OHSL, bytes: {state_bytes[ohsl]:,}"""
    learning = """b: {bits} | ours: {ms[ours]:.1f} | floor: {ms[floor]:.1f} | ger: {ms[ger]:.1f} |
        NumPy: {ms[numpy]:.1f} | rows/s: {rows_per_second:,.0f} | ours / floor: {ours/floor} | ger / ours: {ger/ours} |
        NumPy / ours: {numpy/ours}"""
    first = result["rows"][0]
    title = f"Learning {first['rows']} x {first['columns']}, l = 3b, float32, one thread: ms, ratios with quartiles"
    methods_title = "Whole methods, 64 bits, 80 labels: rows/s of partial_fit, one solve for new weights, size of state"
    return [
        format_table("Difference from the literal loop in float64, and the steps", exactness, result["exactness"]),
        format_table(methods_title, methods, result["methods"]),
        format_table(title, learning, result["rows"]),
    ]
