"""The settings that torch computes with: its number of threads, dtype, gradients and autocast.

Torch starts one thread per CPU core. Small networks do not keep so many threads busy: on many cores
the threads spend most of the time waiting for each other. The caller's other settings, such as a
default dtype of float64 or ``torch.no_grad()`` around the call, are for the caller's own networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

_blocks = 0
"""Number of ``torch_threads`` blocks that are active."""


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` threads within the block, in float32 and with gradients.

    The caller's settings are restored afterwards. Outside of these blocks policies act and learn in
    one thread; use more for large networks.
    """
    global _blocks
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    _blocks += 1
    try:
        with own_settings():
            yield
    finally:
        _blocks -= 1
        torch.set_num_threads(before)


def policy_threads() -> int:
    """Return how many threads a policy computes with here."""
    return torch.get_num_threads() if _blocks else 1


@contextmanager
def own_settings() -> Iterator[None]:
    """Use float32 and the CPU by default, and gradients; no inference mode and no autocast."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    autocast = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    torch.set_default_dtype(torch.float32)
    # torch is slower while a default device is set, even the CPU.
    if device.type != "cpu":
        torch.set_default_device(None)
    for kind in autocast:
        torch.set_autocast_enabled(kind, False)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)
        if device.type != "cpu":
            torch.set_default_device(device)
        for kind in autocast:
            torch.set_autocast_enabled(kind, True)


def isolated(function: Callable[P, R], *, has_gradients: bool = True) -> Callable[P, R]:
    """Wrap a function so that torch computes in it with dingsdk's settings, not the caller's.

    The function uses one thread, unless ``torch_threads`` is active. Torch stores the number
    separately for each thread of the program.

    Args:
        function: The function.
        has_gradients: Whether it needs gradients. If not, they may be off: each setting that is
            read takes 0.6 us between two steps of envs (2026-11).
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        is_usual = (
            torch.get_default_dtype() is torch.float32
            and not torch.is_autocast_enabled("cpu")
            and not (
                has_gradients and (torch.is_inference_mode_enabled() or not torch.is_grad_enabled())
            )
        )
        if not is_usual:
            with own_settings():
                return call(*args, **kwargs)
        if _blocks or (before := torch.get_num_threads()) == 1:
            return function(*args, **kwargs)
        torch.set_num_threads(1)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_num_threads(before)

    return call
