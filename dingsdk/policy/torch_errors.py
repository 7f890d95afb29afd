"""Explains errors of torch and missing columns by the config and the batch of a policy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from dingsdk.data.pytree import named_leaves
from dingsdk.errors import ConfigError, DingError, SchemaMismatchError, message_of

if TYPE_CHECKING:
    from dingsdk.policy.base import BasePolicy

# Words in torch's errors about lack of memory.
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
# Words in torch's errors about shapes, dtypes or indices that do not fit.
_MISFITS = (
    *("shape", "size", "out of bounds", "out of range", "scalar type"),
    *("must be Tensor", "invalid data type", "too many indices", "only integers"),
)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error says that memory could not be allocated."""
    return isinstance(error, MemoryError) or any(words in message_of(error) for words in _NO_MEMORY)


def no_room(policy: BasePolicy, what: str, path: str, error: Exception) -> ConfigError:
    """Return the error for what does not fit memory.

    Args:
        policy: The policy.
        what: What does not fit, and the verb ``does`` or ``do``.
        path: Config key to lower.
        error: The error of torch.
    """
    if policy.device.type == "cpu":
        where = "main memory"
        free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        where, free_bytes = "the GPU's memory", torch.cuda.mem_get_info()[0]
    text = message_of(error).partition("\n")[0]
    return ConfigError(
        f"{what} not fit memory ({text}; {free_bytes:,} bytes of {where} are free); lower it, "
        f"or the sizes of policy.model {policy.section.model}",
        path=path,
        expected=free_bytes,
        found=text,
    )


def misfit(policy: BasePolicy, what: str, given: Any, error: Exception) -> Exception:
    """Return a SchemaMismatchError for a torch error about shapes, dtypes or indices.

    Other errors are returned as they are; ``given`` is the nest of tensors that ``what`` names.
    """
    if isinstance(error, DingError) or not any(word in message_of(error) for word in _MISFITS):
        return error
    shapes = {key: tuple(getattr(leaf, "shape", ())) for key, leaf in named_leaves(given)}
    return SchemaMismatchError(
        f"the {what} not fit the networks of {type(policy).__name__}: found the shapes {shapes} "
        f"({str(error).splitlines()[0]}), where policy.model is {policy.section.model}; does it "
        "match the env?",
        key="obs",
        expected=str(policy.section.model),
        found=shapes,
    )


def missing_column(
    policy: BasePolicy, error: KeyError, columns: Mapping[str, Any]
) -> SchemaMismatchError:
    """Return the error for a column that ``samples`` or ``learn`` did not find."""
    return SchemaMismatchError(
        f"{type(policy).__name__} trains on a column {message_of(error)} that the batch does not "
        f"have; it has {', '.join(sorted(columns))}",
        key=str(error.args[0]),
        expected=str(error.args[0]),
        found=sorted(columns),
    )
