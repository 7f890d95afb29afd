"""Replay buffers, each composed of a storage, a sampler, a remover and a limiter.

The *storage* keeps rows at positions, the *remover* says which positions the next rows take
(and so what leaves a full buffer), the *sampler* draws which rows to return, and the
*limiter* says when pushing and sampling are allowed. Each is a plugin kind of its own.
"""

from dingsdk.worker.replay_buffer.interface import BufferStats, IBuffer
from dingsdk.worker.replay_buffer.naive import NaiveReplayBuffer

__all__ = ["BufferStats", "IBuffer", "NaiveReplayBuffer"]
