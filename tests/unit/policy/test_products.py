from __future__ import annotations

import pytest
import torch

from dingsdk.policy.sac import ReLULayer, linear, matmul

SHAPES = [(3, 5, 2), (250, 90, 130), (2, 2000, 1001)]
"""Rows, inputs and outputs; the last two are large."""


def operands(rows, size, width):
    generator = torch.Generator().manual_seed(7)
    shapes = (rows, size), (width, size), (width,)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def is_close(found, expected):
    return found.dtype is torch.float32 and torch.allclose(
        found.double(), expected, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_relu", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_multiplies_by_the_transposed_weight(shape, has_relu, has_bias):
    inputs, weight, bias = operands(*shape)
    expected = torch.einsum("nk,mk->nm", inputs.double(), weight.double())
    expected = expected + bias.double() if has_bias else expected
    expected = expected.clamp(min=0) if has_relu else expected

    assert is_close(linear(inputs, weight, bias if has_bias else None, has_relu=has_relu), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_matmul_accepts_transposed_operands(shape):
    inputs, weight, _ = operands(*shape)
    expected = torch.einsum("nk,mk->nm", inputs.double(), weight.double())

    assert is_close(matmul(inputs, weight.T), expected)
    assert is_close(matmul(weight, inputs.T), expected.T)
    assert is_close(matmul(inputs.T.contiguous().T, weight.T.contiguous()), expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("needs_input_gradient", [False, True])
def test_relu_layer_has_the_gradients_of_autograd(shape, needs_input_gradient):
    inputs, weight, bias = operands(*shape)
    parts = [inputs.requires_grad_(needs_input_gradient), weight.requires_grad_()]
    parts.append(bias.requires_grad_())
    plain = [part.detach().double().requires_grad_(part.requires_grad) for part in parts]
    expected = (plain[0] @ plain[1].T + plain[2]).relu()
    found = ReLULayer.apply(*parts)

    assert is_close(found.detach(), expected.detach())
    for loss in (torch.Tensor.sum, lambda values: (values[:, 1:] ** 2).sum()):
        trained = [index for index in range(3) if parts[index].requires_grad]
        wanted = torch.autograd.grad(loss(expected), [plain[i] for i in trained], retain_graph=True)
        gradients = torch.autograd.grad(loss(found), [parts[i] for i in trained], retain_graph=True)
        for one, other in zip(gradients, wanted, strict=True):
            scale = other.abs().max()
            assert is_close((one / scale.float()), other / scale)
