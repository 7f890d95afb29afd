"""Sample functions for child processes, which import this module by its name."""

from __future__ import annotations

import os
from typing import Any


def sample(index: int) -> dict[str, Any]:
    return {"index": index, "pid": os.getpid()}


def tensor_sample(index: int) -> dict[str, Any]:
    import torch

    return {"index": torch.tensor(index), "pid": os.getpid()}


def end_of_process() -> dict[str, Any]:
    os._exit(1)


def broken() -> dict[str, Any]:
    raise ValueError("no sample here")
