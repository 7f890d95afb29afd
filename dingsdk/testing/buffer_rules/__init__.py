"""The table of rules of the replay buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dingsdk.testing.buffer_rules import (
    closing,
    keeping,
    parts,
    priorities,
    pushing,
    sampling,
    sequences,
    threads,
)
from dingsdk.testing.rule import Rule, collect

BUFFER_CAPABILITIES: Final[Mapping[str, str]] = {
    "columns": "Rows are dicts of numbers and arrays, kept in columns, and sampled as SampleBatch.",
    "objects": "A row may be any object. Batches are lists.",
    "distinct": "Rows are drawn alike; one comes twice in a batch only with `replace=True`.",
    "ages": "`sample` takes `sample_range`, a slice over the rows by age.",
    "priorities": (
        "Rows are drawn by priority, which `update` changes; `alpha`, `beta`, `anneal_step`, "
        "`max_use` and `max_staleness` are settings."
    ),
    "proportional": "The priorities are proportional: a share is `priority ** alpha` of all.",
    "sequences": "`sample(size, sequence, ...)` gives stretches of rows that follow each other.",
    "episodes": "A row is an episode: a SampleBatch or a list of transitions, of any length.",
    "elastic": "Samples come from a window of the newest rows, which `update(envstep)` moves.",
    "parts": (
        "Made of parts as `ReplayBuffer` is: `limiter` is a setting, `timeout_s` an argument of "
        "`push` and `sample`, and there are `add_remove_listener` and `stats`."
    ),
    "durable": "Rows stay in a folder when the buffer is closed.",
    "saves": "`save_data` and `load_data` serve the rows of the kit.",
}
"""What a buffer may declare that it is or can do, and what follows."""

BUFFER_RULES: Final[tuple[Rule, ...]] = collect(
    (pushing, sampling, keeping, closing, parts, threads, sequences, priorities)
)
"""Every rule, by number. Numbers are never used again for another rule."""
