"""Messages, payloads and policies that transports must carry."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dingsdk.data import SampleBatch


def plain_message() -> dict[str, Any]:
    """Return a message with every kind of plain data that must arrive unchanged."""
    return {
        "none": None,
        "flags": [True, False],
        "numbers": [0, -1, 2**63 - 1, -(2**63), 0.1, -0.0, 1e308, 5e-324],
        "special": [math.inf, -math.inf, math.nan],
        "text": 'naïve 訓練 \U0001f3b2 "quoted" \\ \n \x00',
        "nested": {"a": {"b": [{}, [], [[1]]]}, "": "empty key"},
        "array": np.arange(6, dtype=np.int64).reshape(2, 3),
        "arrays": [np.array([0.5, np.inf], np.float32), np.zeros((0, 4), np.uint8)],
    }


def batch(rows: int = 5, seed: int = 0) -> SampleBatch:
    """Return a payload with columns of several dtypes and ranks; some are nested."""
    random = np.random.default_rng(seed)
    return SampleBatch(
        {
            "obs": {
                "image": random.integers(0, 256, (rows, 3, 4), dtype=np.uint8),
                "state": random.normal(size=(rows, 2)).astype(np.float32),
            },
            "action": random.integers(0, 4, rows, dtype=np.int64),
            "reward": random.normal(size=rows),
            "done": random.integers(0, 2, rows).astype(np.bool_),
            # A column that is not contiguous in memory.
            "next": random.normal(size=(2, rows)).T,
        }
    )


def policy(value: float) -> dict[str, Any]:
    """Return the tensors of a policy; all their elements are ``value``."""
    import torch

    return {
        "layer.weight": torch.full((16, 8), float(value)).T,
        "layer.bias": torch.full((3,), value, dtype=torch.float64),
        "scale": torch.tensor(float(value), dtype=torch.bfloat16),
        "count": torch.tensor([int(value)], dtype=torch.int64),
        "empty": torch.zeros((0, 2)),
    }
