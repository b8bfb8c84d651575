"""Measure speed, as ratios between contenders in one run: python -m benchmarks NAME [OPTIONS].

The options of a benchmark are the parameters of its function.
"""

import argparse
import inspect
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from stillhash.cli.output import answer, print_error, status_line
from stillhash.errors import MissingExtra, StillhashError

BENCHES = {  # by name: what is measured; a module of this name, or a part of one
    "learn": "learn a chunk of 1000 x 4096, against the bare matrix products and against loops",
    "encode": "hash rows to codes, against the bare matrix product",
    "scan": "scan codes exactly, against a bare read of the same bytes and against FAISS",
    "miwq": "search multi-index tables, and the index that chooses, against the scan",
    "gpu": "search on a GPU, against a bare read of the same codes, the CPU's scan, and FAISS on the GPU",
    "gpu-orders": "search sorted codes on a GPU; 100 queries are compared with a product of matrices",
    "gpu-http": "search a server with its index on a GPU by 64 clients, beside ones that search on the CPU",
    "store": "write durably, against bare SQLite; open a large collection; compact",
    "filters": "search with filters, against the same search without, and against SQL",
    "ingest": "add labelled rows to a collection that learns them, against the hasher alone",
    "serve": "search over HTTP, against the library; with many clients beside learning; and kill the server",
    "serve-hostile": "search over HTTP by good clients alone, then beside hostile ones",
    "page": "request each page of a server over a large collection, one at a time",
    "peers": "add, search and filter the same rows as Chroma and LanceDB, each in a process of its own",
    "cluster": "search shards in processes of their own, against one index; by shards, and through aggregators",
    "cluster-faults": "kill actors, a node, Ray's head, a front and the writer of a cluster while clients search",
    "bulk-encode": "encode, learn and publish a dataset by several nodes, against one process; kill the driver",
}
PARTS = {  # of modules that have more than one benchmark
    "gpu-orders": ("gpu", "ORDERS_BENCH"),
    "gpu-http": ("gpu", "SERVED_BENCH"),
    "serve-hostile": ("serve", "HOSTILE_BENCH"),
}


def open_bench(name: str) -> Any:
    """Import the module of a benchmark, and return it or its part."""
    module, part = PARTS.get(name, (name.replace("-", "_"), ""))
    try:
        opened = import_module(f"benchmarks.{module}")
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{name} needs {error.name}: pip install -e '.[bench,experiments,cluster]'") from None
    return getattr(opened, part) if part else opened


def option_parser(name: str, function: Any) -> argparse.ArgumentParser:
    """Make a parser of the parameters of a benchmark's function, by their types."""
    about = inspect.getdoc(function)
    parser = argparse.ArgumentParser(f"python -m benchmarks {name}", description=f"{BENCHES[name]}.\n\n{about}")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="small sizes, a few seconds; ratios mean little")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    hints = get_type_hints(function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not inspect.Parameter.empty:
            kind, default = hints[parameter.name], parameter.default
            shown = f"{','.join(map(str, default))}, separated by commas" if kind == Sequence[int] else default
            read: Any = {Sequence[int]: whole_numbers, Path | None: Path, str | None: str}.get(kind, kind)
            parser.add_argument(f"--{parameter.name}", type=read, default=default, help=f"default: {shown}")
    return parser


def whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def run(name: str, words: Sequence[str]) -> None:
    """Run a benchmark; stdout has the result alone, and not what Ray prints when a node dies."""
    bench, timing = open_bench(name), import_module("benchmarks.timing")
    options = vars(option_parser(name, bench.run).parse_args(words))
    as_json = options.pop("json")
    with redirect_stdout(sys.stderr), status_line(name) as update:
        result = timing.run_bench(bench, progress=lambda now: update(f"{name}: {now}"), **options)
    answer(result, as_json, partial(timing.print_bench, bench))


def main(words: Sequence[str]) -> int:
    """Run the benchmark that is named first, or say which there are; an error of stillhash is one line."""
    if not words or words[0] not in BENCHES:
        lines = [f"  {name:<16}{about}" for name, about in BENCHES.items()]
        print("\n".join([str(__doc__), *lines]))
        return 0 if not words or words[0] in ("-h", "--help") else 2
    try:
        run(words[0], words[1:])
    except StillhashError as error:
        print_error(type(error).__name__, str(error), "--json" in words)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
