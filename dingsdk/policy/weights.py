"""Loading network weights from outside: checked whole, then copied at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dingsdk.errors import SchemaMismatchError
from dingsdk.policy.networks import QNetwork


def load_weights(network: QNetwork, state: Mapping[str, Any], where: str) -> None:
    """Copy ``state`` into ``network``.

    Args:
        network: Keeps its weights when the state does not fit.
        state: Name -> array (read-only is fine) or tensor, on any device.
        where: What is loaded, for messages.

    Raises:
        SchemaMismatchError: names or shapes are not those of the network.
    """
    network.flat.copy_(flat_vector(network, state, where))


def flat_vector(network: QNetwork, state: Mapping[str, Any], where: str) -> Tensor:
    """Return the named arrays of ``state`` as one vector, laid out like ``network.flat``."""
    missing = sorted(network.shapes.keys() - state.keys())
    unexpected = sorted(state.keys() - network.shapes.keys())
    if missing or unexpected:
        raise SchemaMismatchError(
            f"{where} is not for this network: missing {missing or 'nothing'}, unexpected "
            f"{unexpected or 'nothing'}; is policy.model the same as where it was saved?",
            key=(missing + unexpected)[0],
            expected=list(network.shapes),
            found=list(state),
        )
    parts = []
    for name, shape in network.shapes.items():
        array = as_array(state[name])
        if array.shape != shape:
            raise SchemaMismatchError(
                f"{where}: {name} has shape {array.shape}, this network needs {shape}; is "
                "policy.model the same as where it was saved?",
                key=name,
                expected=shape,
                found=array.shape,
            )
        parts.append(array.ravel())
    return torch.from_numpy(np.concatenate(parts, dtype=np.float32, casting="same_kind"))


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
        value = value.detach().cpu().float().numpy()
    return np.asarray(value)
