"""What is left of a run from which it can be resumed: a save, or a journal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs


class PlayerState(msgspec.Struct, kw_only=True):
    """The state of one player in a save."""

    parts: dict[str, Any]
    envs: dict[str, Any]
    policy: dict[str, Any]
    updates_left: int
    samples: dict[str, Any]


class RunState(PlayerState, kw_only=True):
    """The content of ``state.safetensors``: the first player, the other players, and the run."""

    run: str
    config: dict[str, Any]
    versions: dict[str, str]
    streams: dict[str, Any]
    turn: int = 0
    others: dict[str, PlayerState] = msgspec.field(default_factory=dict)
    evaluations: list[dict[str, Any]]
    training: list[tuple[int, dict[str, float]]] = msgspec.field(default_factory=list)
    elapsed_s: float

    def plain(self) -> dict[str, Any]:
        """Return the state as nested dicts, which can be written."""
        others = {name: structs.asdict(each) for name, each in self.others.items()}
        return structs.asdict(self) | {"others": others}


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run that can be resumed: its folder, and its compiled config.

    A run in parallel mode is resumed from its journal, which is in the folder.
    """

    run_dir: Path
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Save(SavedRun):
    """One save of a serial run: its folder, its number (1 for the first), and its state."""

    path: Path
    number: int
    state: RunState
