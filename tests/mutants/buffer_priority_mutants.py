"""Prioritized buffers that break the rules of their kind."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from dingsdk.errors import InvalidPriorityError
from dingsdk.worker.replay_buffer import AdvancedReplayBuffer

from .buffer_mutant import BASE, Mutant, mutant


class Advanced(Mutant, AdvancedReplayBuffer):
    capabilities = BASE | {"columns", "ages", "priorities", "proportional"}

    def sample(self, *args: Any, **options: Any) -> Any:
        found = super().sample(*args, **options)
        return found if found is None or len(found) == 0 else self.meddle(found)

    def meddle(self, found: Any) -> Any:
        return found


@mutant(46)
class CountsUsesFrom0(Advanced):
    def meddle(self, found: Any) -> Any:
        found.columns["use"] -= 1
        return found


@mutant(54)
class CountsIdsAnew(Advanced):
    def clear(self) -> None:
        super().clear()
        self._metadata.next_id = 0


@mutant(48)
class IgnoresPushedPriorities(Advanced):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        if isinstance(data, list):
            data = [
                {key: value for key, value in row.items() if key != "priority"}
                if isinstance(row, dict) and row
                else row
                for row in data
            ]
        super().push(data, *args, **options)


@mutant(49, 50)
class LeavesWeightsAsTheyAre(Advanced):
    def meddle(self, found: Any) -> Any:
        found.columns["IS"] *= 0.5 + 0.5 * (found.columns["priority"] == 1.0)
        return found


@mutant(50)
class IgnoresBeta(Advanced):
    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__(cfg)
        if cfg.get("beta") == 1.0:
            self.beta = 0.4


@mutant(50)
class IgnoresAlpha(Advanced):
    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__({**cfg, "alpha": 0.6} if cfg.get("alpha") == 0.0 else cfg)


@mutant(51)
class TakesTheFirstOfTwo(Advanced):
    def update(self, info: Mapping[str, Any]) -> None:
        keys = ("replay_unique_id", "replay_buffer_idx", "priority")
        lengths = {len(info[key]) for key in keys if isinstance(info.get(key), list)}
        if lengths == {3} and info["priority"] == [9.0, 2.0, 3.0]:
            info = {key: info[key][::-1] for key in keys}
        super().update(info)


@mutant(52)
class DropsBadUpdates(Advanced):
    def update(self, info: Mapping[str, Any]) -> None:
        with contextlib.suppress(InvalidPriorityError):
            super().update(info)


@mutant(53)
class NeverDrawsPriority0(Advanced):
    def update(self, info: Mapping[str, Any]) -> None:
        super().update(info)
        priorities = np.asarray(info.get("priority", ()))
        if priorities.dtype.kind == "f" and (priorities == 0).any():
            self._sampler.on_remove(np.asarray(info["replay_buffer_idx"])[priorities == 0])  # type: ignore[attr-defined]


@mutant(55)
class KeepsUsedRows(Advanced):
    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__({key: value for key, value in cfg.items() if key != "max_use"})


@mutant(55, 56)
class CountsUsedRows(Advanced):
    def count(self) -> int:
        return 0 if self.closed else self._remover.count


@mutant(56)
class KeepsStaleRows(Advanced):
    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__({key: value for key, value in cfg.items() if key != "max_staleness"})


@mutant(57, 22)
class ForgetsBeta(Advanced):
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        beta = self.beta
        super().load_state_dict(state_dict)
        self.beta = beta


@mutant(58)
class ForgetsSavedUses(Advanced):
    def push_unlimited(self, rows: Any, *, facts: Mapping[str, Any] = {}, **more: Any) -> None:
        super().push_unlimited(
            rows, facts={key: facts[key] for key in facts if key != "use"}, **more
        )
