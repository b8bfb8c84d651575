"""How many threads to use: all usable cores for kernels, and one for BLAS.

Two BLAS threads were 13-28 times slower than one whenever the other core was busy.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

from stillhash.platform import SYSTEM

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")

_controller = functools.cache(ThreadpoolController)


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return SYSTEM.usable_cores()


def one_thread(function: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
    """Run the function with BLAS limited to one thread."""

    @functools.wraps(function)
    def limited(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        with _controller().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited
