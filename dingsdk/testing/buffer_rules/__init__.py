"""The rules of the replay buffers, and functions that check them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dingsdk.testing.buffer_rules import kinds, lives, rows, threads
from dingsdk.testing.buffer_rules.bench import BufferBench
from dingsdk.testing.runner import Contract, RuleBook, collect
from dingsdk.worker.replay_buffer import IBuffer

BUFFER_CAPABILITIES: Final[Mapping[str, str]] = {
    "columns": "Rows are dicts of numbers and arrays, kept in columns, and sampled as SampleBatch.",
    "objects": "A row may be any object. Batches are lists.",
    "fifo": "The oldest rows leave first; without it any row may make room for a new one.",
    "distinct": "Rows are equally likely; a row repeats in a batch only with `replace=True`.",
    "ages": "`sample` takes `sample_range`, a slice over the rows by age.",
    "priorities": (
        "Rows are drawn by priority, which `update` changes; `alpha`, `beta`, `anneal_step`, "
        "`max_use` and `max_staleness` are settings."
    ),
    "proportional": "The priorities are proportional: a share is `priority ** alpha` of all.",
    "own_law": "The draws of its sampler follow a law of their own: not uniform, not by priority.",
    "sequences": "`sample(size, sequence, ...)` gives stretches of rows that follow each other.",
    "episodes": "A row is an episode: a SampleBatch or a list of transitions, of any length.",
    "elastic": "Samples come from a window of the newest rows, which `update(envstep)` moves.",
    "parts": (
        "Made of parts as `NaiveReplayBuffer` is: `limiter` is a setting, `timeout_s` an argument "
        "of `push` and `sample`, and there are `add_remove_listener` and `stats`."
    ),
    "durable": "Rows stay in a folder when the buffer is closed.",
    "saves": "`save_data` and `load_data` serve the rows of the kit.",
}
"""The capabilities that a buffer may declare, and what each promises."""

BUFFER_BOOK: Final = RuleBook(
    collect(rows, lives, threads, kinds), BUFFER_CAPABILITIES, BufferBench
)
BUFFER_RULES: Final = BUFFER_BOOK.rules
"""All rules, ordered by number. The number of a removed rule is never used again."""
check_buffer_rule = BUFFER_BOOK.check_rule
check_buffer = BUFFER_BOOK.check
"""Check a replay buffer, including its parts, against every rule, as ``RuleBook.check``.

``make(cfg)`` returns a new buffer. The settings in ``cfg`` override those that you choose,
e.g. ``lambda cfg: MyBuffer({"storage": {"type": "mine"}, **cfg})``. They are
``replay_buffer_size`` and ``seed``, and the settings that the declared capabilities have.
"""


class BufferContract(Contract):
    """Contract tests of a replay buffer and its parts; see ``BUFFER_CAPABILITIES``."""

    book = BUFFER_BOOK
    maker = "make_buffer"

    def make_buffer(self, cfg: Mapping[str, Any]) -> IBuffer:
        """Return a fresh buffer with these settings. Rules may call it more than once."""
        raise self._missing("make_buffer(cfg)")
