"""Loading weights from outside: checked whole, then copied at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dingsdk.errors import SchemaMismatchError

if TYPE_CHECKING:
    from dingsdk.policy.base import Stateful


def load_state(parts: Mapping[str, Stateful], state: Mapping[str, Any]) -> None:
    """Load the parts of a policy's state, all of them or none.

    Args:
        parts: Modules, optimizers and the like, by name.
        state: Their states by the same names; ``model`` is required, others may be absent.

    Raises:
        SchemaMismatchError: something does not fit; nothing is changed.
    """
    required(state, "model", "policy state")
    given = {name: required(state, name, "policy state") for name in parts if name in state}
    for name, section in given.items():
        part = parts[name]
        if isinstance(part, nn.Module):
            check_shapes({key: value.shape for key, value in _tensors(part)}, section, name)
        elif (check := getattr(part, "check_state", None)) is not None:
            check(section, name)
    for name, section in given.items():
        part = parts[name]
        if isinstance(part, nn.Module):
            with torch.no_grad():
                for key, tensor in _tensors(part):
                    tensor.copy_(as_tensor(section[key]))
        else:
            part.load_state_dict(section)


def check_shapes(
    shapes: Mapping[str, tuple[int, ...]], state: Mapping[str, Any], where: str
) -> None:
    """Check that a state has just these names and shapes.

    Raises:
        SchemaMismatchError: it does not.
    """
    missing = sorted(shapes.keys() - state.keys())
    unexpected = sorted(state.keys() - shapes.keys())
    if missing or unexpected:
        raise SchemaMismatchError(
            f"{where} is not for this network: missing {missing or 'nothing'}, unexpected "
            f"{unexpected or 'nothing'}; is policy.model the same as where it was saved?",
            key=(missing + unexpected)[0],
            expected=list(shapes),
            found=list(state),
        )
    for name, shape in shapes.items():
        found = np.shape(as_array(state[name]))
        if found != tuple(shape):
            raise SchemaMismatchError(
                f"{where}: {name} has shape {found}, this network needs {tuple(shape)}; is "
                "policy.model the same as where it was saved?",
                key=name,
                expected=tuple(shape),
                found=found,
            )


def required(state: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """Return the section ``state[key]``; raises SchemaMismatchError where it is none."""
    value = state.get(key)
    if not isinstance(value, Mapping):
        raise SchemaMismatchError(
            f"{where} has no section {key!r} (it has {sorted(state)}); it is no policy state",
            key=key,
            expected="mapping of weights",
            found=type(value).__name__,
        )
    return value


def as_array(value: Any) -> NDArray[Any]:
    """Return an array or tensor, of any device, as an array; memory may be shared."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return np.asarray(value)


def as_tensor(value: Any) -> Tensor:
    """Return an array or tensor as a tensor; memory may be shared."""
    if isinstance(value, Tensor):
        return value
    array = np.asarray(value)
    # torch warns about arrays that it may not write to.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return list(module.state_dict().items())
