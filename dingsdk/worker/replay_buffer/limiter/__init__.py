"""Limiters: when rows may be pushed into a buffer, and when they may be sampled."""

from dingsdk.worker.replay_buffer.limiter.contract import (
    Limiter,
    MinSizeLimiter,
    SamplesPerInsertLimiter,
)

__all__ = ["Limiter", "MinSizeLimiter", "SamplesPerInsertLimiter"]
