"""Products of large matrices, by the faster of torch's two libraries.

On a CPU torch multiplies float32 matrices by MKL, which on AMD processors takes twice as long as
oneDNN: 330 against 160 us for 256 rows and 256 units (2026-11). oneDNN takes 10 us more a call, so
small products stay with MKL.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that every torch user knows
from torch import Tensor

_LARGE = 2_000_000
"""Multiplications from which oneDNN is the faster one."""


def linear(
    inputs: Tensor, weight: Tensor, bias: Tensor | None = None, *, has_relu: bool = False
) -> Tensor:
    """Return ``inputs @ weight.T + bias``, without a record for gradients.

    Args:
        inputs: float32[n, k].
        weight: float32[m, k].
        bias: float32[m], or None.
        has_relu: Whether ReLU follows.
    """
    if _ONEDNN and inputs.is_cpu and inputs.numel() * len(weight) >= _LARGE:
        return _ONEDNN(inputs, weight, bias, "relu" if has_relu else "none", [], "")  # type: ignore[no-any-return]
    found = F.linear(inputs, weight, bias)
    return found.relu_() if has_relu else found


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right``, float32[n, k] and float32[k, m], without a record for gradients."""
    return linear(left, right.T)


class ReLULayer(torch.autograd.Function):
    """A linear layer and ReLU: ``apply(inputs, weight, bias)``, with gradients for all three."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        found = linear(inputs, weight, bias, has_relu=True)
        ctx.save_for_backward(inputs, weight, found)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        inputs, weight, found = ctx.saved_tensors
        below = torch.ops.aten.threshold_backward(gradient, found, 0)
        inputs_gradient = matmul(below, weight) if ctx.needs_input_grad[0] else None
        return inputs_gradient, matmul(below.T, inputs), below.sum(0)


def _onednn() -> Any:
    """Return the operator that torch's compiler calls for linear layers, where it is there."""
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return has_onednn and getattr(torch.ops.mkldnn, "_linear_pointwise", None)


_ONEDNN = _onednn()
