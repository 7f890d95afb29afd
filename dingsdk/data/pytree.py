"""Functions for nested dicts, lists, tuples and namedtuples ("nests").

Every function returns a new nest of the same container types; inputs are never changed.
torch is imported only by the functions that need it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from dingsdk.data.columns import is_tensor
from dingsdk.data.sample_batch import SampleBatch

Path = tuple[Any, ...]
"""The keys and indices from the root to a leaf."""


def map_leaves(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Return the nest with ``fn`` applied to every leaf (every value that is not a container)."""
    if isinstance(tree, Mapping):
        return {key: map_leaves(fn, value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return _rebuild(tree, [map_leaves(fn, value) for value in tree])
    return fn(tree)


def part_of(columns: Any, index: Any) -> Any:
    """Index all arrays or tensors in nested dicts; ``index`` may be an array of indices."""
    if isinstance(columns, Mapping):
        return {key: part_of(value, index) for key, value in columns.items()}
    return columns[index]


def copy_containers(tree: Any) -> Any:
    """Return the same nest in new containers; the leaves are shared."""
    # A batch inside a nest (an episode) is a container of columns.
    return map_leaves(lambda x: copy.copy(x) if isinstance(x, SampleBatch) else x, tree)


def flatten(tree: Any) -> list[tuple[Path, Any]]:
    """Return ``(path, leaf)`` pairs, depth first; a leaf at the root has the path ``()``.

    Example:
        >>> flatten({"obs": {"pos": 1}, "act": [2, 3]})
        [(('obs', 'pos'), 1), (('act', 0), 2), (('act', 1), 3)]
    """
    pairs: list[tuple[Path, Any]] = []
    _flatten(tree, (), pairs)
    return pairs


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Return ``(name, leaf)`` pairs; a name is the path joined by dots, such as ``obs.pos``."""
    return [(_dotted(path), leaf) for path, leaf in flatten(tree)]


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))


def nest(pairs: Iterable[tuple[Path, Any]]) -> dict[Any, Any]:
    """Return nested dicts with each leaf at its path; reverses ``flatten`` for nested dicts.

    Raises:
        ValueError: a path occurs twice, or below a leaf.
    """
    tree: dict[Any, Any] = {}
    for path, leaf in pairs:
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                break
        if not isinstance(node, dict) or path[-1] in node:
            raise ValueError(f"{path!r:.80} comes twice, or a part of it is a leaf")
        node[path[-1]] = leaf
    return tree


def different_leaves(first: Mapping[Path, Any], second: Mapping[Path, Any]) -> list[str]:
    """Return the paths at which two nests differ, sorted, with dots between the keys.

    Arrays and tensors are compared bit by bit.

    Args:
        first: The leaves of one nest by path, as ``dict(flatten(nest))``.
        second: The leaves of the other nest by path.
    """
    return sorted(
        _dotted(path)
        for path in first.keys() | second.keys()
        if not _is_same(first.get(path), second.get(path))
    )


def to_tensor(
    tree: Any,
    dtype: Any = None,
    ignore_keys: Iterable[str] = (),
    transform_scalar: bool = True,
) -> Any:
    """Return the nest with arrays, numbers and lists of numbers converted to torch tensors.

    float64 arrays become float32; bools, strings and None are not converted; tensors are cast
    if ``dtype`` is given. A list of numbers becomes one tensor.

    Args:
        tree: The nest.
        dtype: A torch dtype for all tensors; None keeps the dtype of the data.
        ignore_keys: Dict keys whose values are not converted.
        transform_scalar: Whether single numbers become tensors.

    Raises:
        TypeError: a leaf is none of the above.
    """
    import torch

    ignored = frozenset(ignore_keys)

    def convert(item: Any) -> Any:
        if item is None or isinstance(item, (bool, str)):
            return item
        if isinstance(item, Mapping):
            return {k: v if k in ignored else convert(v) for k, v in item.items()}
        if isinstance(item, (list, tuple)):
            if _is_number_list(item):
                return torch.as_tensor(item, dtype=dtype)
            return _rebuild(item, [convert(value) for value in item])
        if isinstance(item, torch.Tensor):
            return item if dtype is None else item.to(dtype)
        if isinstance(item, np.generic):
            item = item.item()
            if isinstance(item, bool):
                return item
        if isinstance(item, np.ndarray):
            if item.dtype == np.float64:
                item = item.astype(np.float32)
            # torch does not support read-only arrays and negative strides.
            is_shareable = item.flags.writeable and min(item.strides, default=0) >= 0
            tensor = torch.from_numpy(item if is_shareable else item.copy())
            return tensor if dtype is None else tensor.to(dtype)
        if isinstance(item, (Integral, Real)):
            if not transform_scalar:
                return item
            return torch.as_tensor(item, dtype=dtype)
        raise _unsupported("to_tensor", item)

    return convert(tree)


def tensor_to_list(tree: Any) -> Any:
    """Return the nest with tensors and arrays converted to (nested) Python lists.

    Numbers, strings and None are not converted.

    Raises:
        TypeError: a leaf has any other type.
    """

    def convert(item: Any) -> Any:
        if item is None or isinstance(item, (bool, str, int, float)):
            return item
        if is_tensor(item) or isinstance(item, (np.ndarray, np.generic)):
            return item.tolist()
        raise _unsupported("tensor_to_list", item)

    return map_leaves(convert, tree)


def _is_same(first: Any, second: Any) -> bool:
    if any(isinstance(each, np.ndarray) or is_tensor(each) for each in (first, second)):
        one, other = np.asarray(first), np.asarray(second)
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return bool(first == second)


def _flatten(tree: Any, path: Path, pairs: list[tuple[Path, Any]]) -> None:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            _flatten(value, (*path, key), pairs)
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            _flatten(value, (*path, index), pairs)
    else:
        pairs.append((path, tree))


def _rebuild(container: list[Any] | tuple[Any, ...], values: list[Any]) -> Any:
    if hasattr(container, "_fields"):
        return type(container)(*values)
    return tuple(values) if isinstance(container, tuple) else values


def _is_number_list(items: Sequence[Any]) -> bool:
    return len(items) > 0 and all(
        isinstance(item, (int, float)) and not isinstance(item, bool) for item in items
    )


def _unsupported(what: str, item: Any) -> TypeError:
    return TypeError(f"{what} cannot convert {type(item).__name__}: {item!r:.80}")
