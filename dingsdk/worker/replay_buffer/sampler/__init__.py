"""Samplers: which rows of a buffer a batch is made of."""

from dingsdk.worker.replay_buffer.sampler.contract import RowSampler, Sampler

__all__ = ["RowSampler", "Sampler"]
