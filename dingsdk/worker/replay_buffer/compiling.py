"""How inner loops are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

_Kernel = TypeVar("_Kernel", bound=Callable[..., object])


def compiled(signature: str | None = None) -> Callable[[_Kernel], _Kernel]:
    """Compile a function that runs without the interpreter lock; its code is kept on disk."""

    def compile_kernel(function: _Kernel) -> _Kernel:
        try:
            kernel = njit(signature, nogil=True, cache=True)(function)
        except RuntimeError:
            # No folder for it can be written to, as in some containers: compiled at each start.
            kernel = njit(signature, nogil=True)(function)
        return cast(_Kernel, kernel)

    return compile_kernel
