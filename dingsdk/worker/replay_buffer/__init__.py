"""Replay buffers, each a table of five parts.

The *storage* keeps rows at positions. The *remover* decides which positions new rows take, and so
which rows leave a full buffer. The *sampler* draws the rows of a batch. The *limiter* decides when
pushing and sampling are allowed. The *row metadata* of a prioritized buffer stores the id,
uses and age of each row. The first four are plugin kinds.

Names are imported when they are first used, so a buffer that needs no compiled code does not
import the compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dingsdk.lazy import lazy_names

if TYPE_CHECKING:
    from dingsdk.worker.replay_buffer.advanced import AdvancedReplayBuffer as AdvancedReplayBuffer
    from dingsdk.worker.replay_buffer.buffers import ElasticReplayBuffer as ElasticReplayBuffer
    from dingsdk.worker.replay_buffer.buffers import EpisodeReplayBuffer as EpisodeReplayBuffer
    from dingsdk.worker.replay_buffer.buffers import NaiveReplayBuffer as NaiveReplayBuffer
    from dingsdk.worker.replay_buffer.buffers import SequenceReplayBuffer as SequenceReplayBuffer
    from dingsdk.worker.replay_buffer.config import BufferSection as BufferSection
    from dingsdk.worker.replay_buffer.interface import BufferStats as BufferStats
    from dingsdk.worker.replay_buffer.interface import IBuffer as IBuffer
    from dingsdk.worker.replay_buffer.interface import RowListener as RowListener
    from dingsdk.worker.replay_buffer.limiter import Limiter as Limiter
    from dingsdk.worker.replay_buffer.remover import Remover as Remover
    from dingsdk.worker.replay_buffer.sampler import RowSampler as RowSampler
    from dingsdk.worker.replay_buffer.sampler import Sampler as Sampler
    from dingsdk.worker.replay_buffer.sampler.priority import PrioritySampler as PrioritySampler
    from dingsdk.worker.replay_buffer.sampler.sequence import SequenceSampler as SequenceSampler
    from dingsdk.worker.replay_buffer.storage import Rows as Rows
    from dingsdk.worker.replay_buffer.storage import Storage as Storage
    from dingsdk.worker.replay_buffer.storage import Where as Where
    from dingsdk.worker.replay_buffer.table import Table as Table
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__)
