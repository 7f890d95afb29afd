"""Load weights from outside: all are checked before any is copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dingsdk.data.columns import mismatch
from dingsdk.errors import SchemaMismatchError


class Stateful(Protocol):
    """A part of a policy that is saved: a torch module, or any object with these two methods."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and plain data."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """Restore a state that ``state_dict`` returned."""


def load_state(parts: Mapping[str, Stateful], state: Mapping[str, Any]) -> None:
    """Load the parts of a policy's state, all of them or none.

    Args:
        parts: Modules, optimizers and the like, by name.
        state: State of each part, by the part's name; ``model`` is required, others may be absent.

    Raises:
        SchemaMismatchError: something does not fit; nothing is changed.
    """
    if not isinstance(state, Mapping):
        raise mismatch("policy state", "state", "a mapping", type(state).__name__)
    given = {name: parts[name] for name in parts if name in state or name == "model"}
    for name, part in given.items():
        section = state.get(name)
        if not isinstance(section, Mapping):
            raise SchemaMismatchError(
                f"policy state has no section {name!r} (it has {sorted(state)}); it is no policy "
                "state",
                key=name,
                expected="mapping of weights",
                found=type(section).__name__,
            )
        if isinstance(part, nn.Module):
            shapes = {key: tensor.shape for key, tensor in part.state_dict().items()}
            check_shapes(shapes, section, name)
        elif (check := getattr(part, "check_state", None)) is not None:
            check(section, name)
    for name, part in given.items():
        if isinstance(part, nn.Module):
            with torch.no_grad():
                for key, tensor in part.state_dict().items():
                    tensor.copy_(as_tensor(state[name][key]))
        else:
            part.load_state_dict(state[name])


def check_shapes(
    shapes: Mapping[str, tuple[int, ...]], state: Mapping[str, Any], where: str
) -> None:
    """Check that a state has exactly these names and shapes.

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
        found = tuple(np.shape(state[name]))
        if found != tuple(shape):
            raise SchemaMismatchError(
                f"{where}: {name} has shape {found}, this network needs {tuple(shape)}; is "
                "policy.model the same as where it was saved?",
                key=name,
                expected=tuple(shape),
                found=found,
            )


def as_tensor(value: Any) -> Tensor:
    """Return an array or tensor as a tensor; memory may be shared."""
    if isinstance(value, Tensor):
        return value
    array = np.asarray(value)
    # torch warns about read-only arrays.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
