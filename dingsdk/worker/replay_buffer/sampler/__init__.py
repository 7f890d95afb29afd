"""Samplers: which rows of a buffer a batch is made of."""

from dingsdk.worker.replay_buffer.sampler.contract import (
    RowSampler,
    Sampler,
    load_rng_state,
    rng_state,
)

__all__ = ["RowSampler", "Sampler", "load_rng_state", "rng_state"]
