"""The state of a random generator as plain numbers and strings, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dingsdk.errors import CheckpointCorruptError


def new_rng(seed: int | None) -> np.random.Generator:
    """Return a PCG64 generator; None takes a seed from the operating system."""
    return np.random.Generator(np.random.PCG64(seed))


def rng_state(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a generator that :func:`new_rng` made."""
    state = rng.bit_generator.state
    # The generator's words have 128 bits, more than messages and checkpoints carry.
    return {
        "bit_generator": "PCG64",
        "state": hex(state["state"]["state"]),
        "inc": hex(state["state"]["inc"]),
        "has_uint32": int(state["has_uint32"]),
        "uinteger": int(state["uinteger"]),
    }


def load_rng_state(state: Mapping[str, Any]) -> np.random.Generator:
    """Return a generator that goes on where the one of the state stood.

    Raises:
        CheckpointCorruptError: the state is none of :func:`rng_state`.
    """
    generator = np.random.PCG64(0)
    try:
        if state["bit_generator"] != "PCG64":
            raise ValueError(f"bit generator {state['bit_generator']!r}")
        generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": int(state["state"], 16), "inc": int(state["inc"], 16)},
            "has_uint32": int(state["has_uint32"]),
            "uinteger": int(state["uinteger"]),
        }
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointCorruptError(f"the sampler's random state is wrong: {error}") from error
    return np.random.Generator(generator)
