"""A policy's state as plain JSON plus named tensors, and back.

Nothing in either half can name code: the JSON holds containers and scalars, and refers to a
tensor by its name. What JSON cannot say itself is a one-entry object whose key starts with
``$``: ``{"$tensor": name}``, ``{"$ndarray": name}``, ``{"$tuple": [...]}``,
``{"$float": "nan"}`` and ``{"$items": [[key, value], ...]}`` for a dict with other keys than
text (the state of torch optimizers is keyed by int).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from dingsdk.errors import CheckpointError

_ARRAY_KINDS = "biuf"


def encode(state: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """Split ``state`` into a JSON tree and its tensors.

    Args:
        state: Nested dicts, lists and tuples of tensors, numeric arrays, numbers, text, None.

    Returns:
        The tree, and the tensors it names: contiguous, on the CPU, sharing no memory with
        each other (they may with ``state``). A name is the path of the leaf, joined by ``/``.

    Raises:
        CheckpointError: A leaf or key of another type. Facts: ``key`` (its path), ``found``.
    """
    encoder = _Encoder()
    return encoder.visit(state, ()), encoder.tensors


def decode(tree: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Put ``tree`` and ``tensors`` together again.

    Raises:
        ValueError: The tree is malformed, or does not name exactly ``tensors``.
    """
    decoder = _Decoder(tensors)
    state = decoder.visit(tree)
    if unused := sorted(set(tensors) - decoder.used):
        raise ValueError(f"tensors that the state does not name: {unused[:5]}")
    return state


class _Encoder:
    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._storages: set[int] = set()

    def visit(self, node: Any, path: tuple[str, ...]) -> Any:
        if node is None or isinstance(node, str | bool):
            return node
        if isinstance(node, torch.Tensor):
            return {"$tensor": self._add(node, path)}
        if isinstance(node, np.generic):
            node = node.item()
        if isinstance(node, int):
            return int(node)
        if isinstance(node, float):
            return float(node) if math.isfinite(node) else {"$float": repr(float(node))}
        if isinstance(node, np.ndarray) and node.dtype.kind in _ARRAY_KINDS:
            native = np.ascontiguousarray(node, dtype=node.dtype.newbyteorder("="))
            return {"$ndarray": self._add(torch.from_numpy(native.copy()), path)}
        if isinstance(node, Mapping):
            return self._mapping(node, path)
        if isinstance(node, list | tuple):
            items = [self.visit(child, (*path, str(i))) for i, child in enumerate(node)]
            return items if isinstance(node, list) else {"$tuple": items}
        raise _unsupported(node, path)

    def _mapping(self, node: Mapping[Any, Any], path: tuple[str, ...]) -> dict[str, Any]:
        if all(isinstance(key, str) and not key.startswith("$") for key in node):
            return {key: self.visit(child, (*path, key)) for key, child in node.items()}
        for key in node:
            if not isinstance(key, str | int):
                raise _unsupported(key, (*path, repr(key)))
        return {"$items": [[k, self.visit(child, (*path, str(k)))] for k, child in node.items()]}

    def _add(self, tensor: torch.Tensor, path: tuple[str, ...]) -> str:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise _unsupported(tensor, path)
        owned = tensor.detach().cpu().contiguous()
        storage = owned.untyped_storage()
        # safetensors refuses tensors that overlap (tied weights, views of one flat buffer)
        # and would write the whole storage of a view.
        if owned.numel() and (
            storage.data_ptr() in self._storages or storage.nbytes() != owned.nbytes
        ):
            owned = owned.clone()
        self._storages.add(owned.untyped_storage().data_ptr())
        name = "/".join(path) or "state"
        while name in self.tensors:
            name += "~"
        self.tensors[name] = owned
        return name


class _Decoder:
    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self.used: set[str] = set()
        self._marks: dict[str, Callable[[Any], Any]] = {
            "$tensor": self._tensor,
            "$ndarray": lambda name: self._tensor(name).numpy(),
            "$tuple": lambda items: tuple(self.visit(item) for item in items),
            "$float": _special_float,
            "$items": self._items,
        }

    def visit(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.visit(item) for item in node]
        if not isinstance(node, dict):
            return node
        mark = next((key for key in node if key.startswith("$")), None)
        if mark is None:
            return {key: self.visit(child) for key, child in node.items()}
        if len(node) != 1 or mark not in self._marks:
            raise ValueError(f"unknown mark {mark!r} in the state")
        return self._marks[mark](node[mark])

    def _tensor(self, name: Any) -> torch.Tensor:
        if name not in self._tensors:
            raise ValueError(f"the state names a tensor {name!r} that is not in the file")
        self.used.add(name)
        return self._tensors[name]

    def _items(self, items: Any) -> dict[Any, Any]:
        return {key: self.visit(child) for key, child in items}


def _special_float(text: Any) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise ValueError(f"not a special float: {text!r}")
    return float(text)


def _unsupported(node: Any, path: tuple[str, ...]) -> CheckpointError:
    key = "/".join(path)
    return CheckpointError(
        f"the state holds a {type(node).__name__} at {key!r}, which a checkpoint cannot keep. "
        "Return tensors, numeric arrays, numbers, text and containers of them from state_dict().",
        key=key,
        found=type(node).__name__,
    )
