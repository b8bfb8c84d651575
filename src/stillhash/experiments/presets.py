"""List the jobs of the paper's experiments, and of ours: drift, how many labels are known, pre-processing."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

from stillhash.experiments.drift import parse
from stillhash.experiments.job import Job
from stillhash.experiments.texts import FUSED, UNLEARNT
from stillhash.hashers import METHODS, check_fixed_codes

TABLE_LENGTHS = (16, 32, 64, 96)
DRIFT_LENGTHS = {"classes": (32, 64), "labels": (32,), "features": (32,), "recurring": (32,)}  # of each scenario
# Forms of a method beside it in the tables.
METHOD_VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {"hmoh": ({}, {"merge": "sum_lsh"})}
ABLATIONS: list[dict[str, Any]] = [  # of Tally: one thing at a time
    {},
    *({"sharpness": power} for power in (1, 2, 3)),
    *({"ridge": ridge} for ridge in (0.1, 10.0)),
    *({"share": share} for share in (0.5, 1.0)),
    {"init": "pca-itq"},
    *({"rarity": rarity} for rarity in (0.0, 0.3, 0.6)),
]
SWEEPS: list[tuple[str, dict[str, Any]]] = [
    *(("C", {"C": C}) for C in (0.0001, 0.001, 0.01, 0.1, 1.0)),
    *(("length", {"target_factor": factor}) for factor in (1, 2, 3, 4)),
]
NOT_IN_PAPER = ("tally", "lemon", "oesh")
PAPER_METHODS = tuple(method for method in METHODS if method not in NOT_IN_PAPER)
PREPROCESSING = [{"center": on, "unit_norm": on} for on in (True, False)]
# Methods of the experiments with missing, wrong or late labels, and forms of them.
LABEL_METHODS: dict[str, tuple[dict[str, Any], ...]] = {
    "tally": ({}, {"codes_see_labels": False}),
    **dict.fromkeys(("lemon", "oesh", "ohsl", "hmoh"), ({},)),
}
LABELLED_SHARES = (1.0, 0.5, 0.1, 0.01, 0.0)
NOISE_SHARES = (0.0, 0.1, 0.2, 0.4)
DELAYS = (0, 1, 5, 20)  # chunks
LARGE_INIT: dict[str, Any] = {"first": 3000, "labelled_init": True}  # ten times the paper's rows, and their labels

TEXT_INIT = 3000  # rows of the initial stage, as in a collection
NO_LABELS_IN_CODES: dict[str, Any] = {"codes_see_labels": False}
TEXT_METHODS: dict[str, list[tuple[str, int, dict[str, Any]]]] = {  # by experiment
    "text-insertion": [
        *(("tally", bits, {}) for bits in (32, 64, 128)),
        *(("tally", bits, NO_LABELS_IN_CODES) for bits in (64, 128)),
        ("tally+bm25", 64, {}),
        *(("lemon", bits, {}) for bits in (32, 64, 128)),
        *((method, 64, {}) for method in ("oesh", "ohsl", "hmoh")),
    ],
    "text-late": [
        *(("tally", bits, {}) for bits in (32, 64, 128)),
        ("tally+bm25", 64, {}),
        *((method, 64, {}) for method in ("ohsl", "hmoh", "pca-itq")),
    ],
}


def tables(data: str, seeds: int, methods: tuple[str, ...] = ()) -> list[Job]:
    """Tables 1 and 2, Figures 3, 4 and 8: every method at every length; quality along the stream at 32 bits."""
    return [
        Job("table", data, method, bits, seed, params, checkpoints=5 if bits == 32 else 1)
        for seed, bits, method in product(range(seeds), TABLE_LENGTHS, methods or METHODS)
        for params in METHOD_VARIANTS.get(method, ({},))
    ]


def labelled_init(data: str, seeds: int, methods: tuple[str, ...] = ()) -> list[Job]:
    """Every method at every length after an initial stage of 3,000 labelled rows, ten times the paper's."""
    return [replace(job, **LARGE_INIT, checkpoints=1) for job in tables(data, seeds, methods)]


def ablation(data: str, seeds: int, methods: tuple[str, ...] = ()) -> list[Job]:
    """What each part of Tally is worth: one parameter at a time away from its default, 32 and 64 bits."""
    return [
        Job("ablation", data, "tally", bits, seed, params, queries=1000, **LARGE_INIT)
        for seed, bits, params in product(range(seeds), (32, 64), ABLATIONS)
    ]


def sweeps(data: str, seeds: int, methods: tuple[str, ...] = ()) -> list[Job]:
    """Figures 6 and 7: OHSL's C, and the length of its target codes, at 32 bits."""
    return [Job(name, data, "ohsl", 32, seed, params, queries=1000) for seed in range(seeds) for name, params in SWEEPS]


def times(data: str, seeds: int, methods: tuple[str, ...] = ()) -> list[Job]:
    """Figure 5: accumulated time at 32 bits, codes refreshed after every chunk. Run it with one worker."""
    every = product(range(seeds), methods or METHODS)
    return [Job("time", data, method, 32, seed, checkpoints=20, measure=False) for seed, method in every]


def quick(data: str, seeds: int, methods: tuple[str, ...] = ()) -> list[Job]:
    """A look at all methods in a few minutes: two lengths, part of the stream."""
    return [
        Job("table", data, method, bits, seed, checkpoints=4, queries=300, rows=8000)
        for bits, seed, method in product((16, 32), range(seeds), methods or METHODS)
    ]


def drift(data: str, seeds: int, methods: tuple[str, ...] = ()) -> list[Job]:
    """Streams that change: new classes, other label frequencies, another sensor, recurring labels."""
    named, under = parse(data)  # data may name one scenario
    return [
        Job("drift", f"drift:{scenario}:{under}", method, bits, seed, checkpoints=6, queries=500, **LARGE_INIT)
        for scenario in ([named] if named else DRIFT_LENGTHS)
        for bits, seed, method in product(DRIFT_LENGTHS[scenario], range(seeds), methods or METHODS)
    ]


def few_labels(data: str, seeds: int, methods: tuple[str, ...] = ()) -> list[Job]:
    """Quality against the number of labelled rows, 0 to all, after 2,000 rows without labels: 64 and 256 bits."""
    chosen = [check_fixed_codes(method, "methods") for method in methods or ("tally",)]
    every = product(range(seeds), (64, 256), chosen)
    return [Job("few-labels", data, method, bits, seed, queries=1000, first=2000) for seed, bits, method in every]


def labelled_share(data: str, seeds: int, methods: tuple[str, ...] = ()) -> list[Job]:
    """Quality by the share of rows inserted with labels, 1 to 0: 32 and 64 bits, both initial stages."""
    return _label_axis("labelled_share", LABELLED_SHARES, (32, 64), data, seeds, methods)


def label_noise(data: str, seeds: int, methods: tuple[str, ...] = ()) -> list[Job]:
    """Quality by the share of rows with the labels of another row, 0 to 0.4: 64 bits, both initial stages."""
    return _label_axis("label_noise", NOISE_SHARES, (64,), data, seeds, methods)


def label_delay(data: str, seeds: int, methods: tuple[str, ...] = ()) -> list[Job]:
    """Quality by how many chunks after a row its labels arrive, 0 to 20: 64 bits, both initial stages."""
    return _label_axis("label_delay", DELAYS, (64,), data, seeds, methods)


def _label_axis(
    axis: str, values: tuple[float, ...], lengths: tuple[int, ...], data: str, seeds: int, methods: tuple[str, ...]
) -> list[Job]:
    """Vary one field of the job, after 3,000 labelled rows and after the paper's 300 rows without labels."""
    every = product(range(seeds), lengths, (LARGE_INIT, {}), methods or LABEL_METHODS, values)
    return [
        Job(axis.replace("_", "-"), data, method, bits, seed, params, queries=1000, **stage, **{axis: value})
        for seed, bits, stage, method, value in every
        for params in LABEL_METHODS.get(method, ({},))
    ]


def preprocessing(data: str, seeds: int, methods: tuple[str, ...] = ()) -> list[Job]:
    """Every method of the paper with and without centring and unit norm, 64 bits; half of the queries choose."""
    return [
        Job("preprocessing", data, method, 64, seed, params | chosen)
        for seed, method, chosen in product(range(seeds), methods or PAPER_METHODS, PREPROCESSING)
        for params in METHOD_VARIANTS.get(method, ({},))
    ]


def text(data: str, seeds: int, methods: tuple[str, ...] = ()) -> list[Job]:
    """Texts of a prepared corpus: labels known at insertion or late, beside float cosine and BM25."""
    jobs = [Job(kind, data, method, 0, 0, first=TEXT_INIT) for kind in TEXT_METHODS for method in UNLEARNT]
    for seed, (kind, lines) in product(range(seeds), TEXT_METHODS.items()):
        for method, bits, params in lines:
            if not methods or method.removesuffix(FUSED) in methods:
                jobs.append(Job(kind, data, method, bits, seed, params, first=TEXT_INIT))
    return jobs


def paper(data: str, seeds: int, methods: tuple[str, ...] = ()) -> list[Job]:
    """Tables, sweeps and times."""
    return [job for preset in (tables, sweeps, times) for job in preset(data, seeds, methods)]


OUR_PRESETS = (drift, few_labels, labelled_share, label_noise, label_delay, preprocessing, text)
PRESETS: dict[str, Callable[[str, int, tuple[str, ...]], list[Job]]] = {
    preset.__name__.replace("_", "-"): preset
    for preset in (paper, tables, labelled_init, ablation, sweeps, times, quick, *OUR_PRESETS)
}
# One for all other presets: which rows are labelled matters most where they are few.
DEFAULT_SEEDS = {"few-labels": 5, "text": 3}
