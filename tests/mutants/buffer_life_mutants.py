"""Buffers with defects in saving, closing, waiting, listeners or locking."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dingsdk import SampleBatch
from dingsdk.errors import (
    BufferClosedError,
    BufferFullError,
    CheckpointCorruptError,
)

from .buffer_mutant import Naive, NaiveObjects, mutant


@mutant(21, 24)
class TakesNoSeed(Naive):
    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__({**cfg, "seed": None})


@mutant(21)
class HasOneSeed(Naive):
    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__({**cfg, "seed": 0})


@mutant(22, 24)
class ForgetsTheRandomState(Naive):
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        if "sampler" in state_dict:
            state_dict = {**state_dict, "sampler": self._sampler.state_dict()}
        super().load_state_dict(state_dict)


@mutant(23)
class SharesItsState(NaiveObjects):
    def state_dict(self) -> dict[str, Any]:
        items = self._storage._items if self._storage is not None else []  # type: ignore[attr-defined]
        state = super().state_dict()
        return {**state, "data": items} if state["tail"] == 0 and items else state


@mutant(24)
class EmptiesBeforeItLooks(Naive):
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        if len(state_dict) > 1:
            self.clear()
        super().load_state_dict(state_dict)


@mutant(25)
class ReplacesItsRowsByDemonstrations(Naive):
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        if len(state_dict) == 1:
            self.clear()
        super().load_state_dict(state_dict)


@mutant(26, 27, 59)
class SavesTheRing(Naive):
    def save_data(self, file: str) -> None:
        state = self.state_dict()
        if self.count() < self.replay_buffer_size:
            super().save_data(file)
            return
        with Naive({"replay_buffer_size": self.replay_buffer_size}) as other:
            # The oldest row of a full ring is at its tail.
            ring = np.roll(np.arange(self.replay_buffer_size), state["tail"])
            other.push(SampleBatch(state["data"]).take(ring), 0)
            other.save_data(file)


@mutant(27)
class LoadsNothingInSilence(Naive):
    def load_data(self, file: str) -> None:
        with contextlib.suppress(CheckpointCorruptError):
            super().load_data(file)


@mutant(59)
class LoadsRowsAlone(Naive):
    def restore(self, *args: Any, as_pushed: bool = False) -> bool:
        return not as_pushed and super().restore(*args)


@mutant(30)
class MakesAFolder(Naive):
    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__(cfg)
        tempfile.mkdtemp(dir=".")


@mutant(29)
class ServesOnWhenClosed(Naive):
    def sample(self, size: int, *args: Any, **options: Any) -> Any:
        return [] if size == 0 else super().sample(size, *args, **options)

    def clear(self) -> None:
        with contextlib.suppress(BufferClosedError):
            super().clear()


@mutant(30)
class LeavesAFile(Naive):
    left: ClassVar[list[int]] = []

    def close(self) -> None:
        if not self.closed:
            self.left.append(os.open(os.devnull, os.O_RDONLY))
        super().close()


@mutant(31)
class GivesUpEarly(Naive):
    def sample(self, *args: Any, timeout_s: float | None = None, **options: Any) -> Any:
        early_s = None if timeout_s is None else timeout_s / 4
        return super().sample(*args, **options, timeout_s=early_s)


@mutant(33)
class ReturnsNoneWhenClosed(Naive):
    def sample(self, *args: Any, timeout_s: float | None = None, **options: Any) -> Any:
        try:
            return super().sample(*args, **options, timeout_s=timeout_s)
        except BufferClosedError:
            if timeout_s is None:
                raise
            return None


@mutant(35)
class DropsRefusedPushes(Naive):
    def push(self, *args: Any, **options: Any) -> None:
        with contextlib.suppress(BufferFullError):
            super().push(*args, **options)


@mutant(36)
class RunsAhead(Naive):
    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__(cfg)
        if "samples_per_insert" in cfg.get("limiter", {}):
            self._limiter.can_sample = lambda n: True  # type: ignore[method-assign]


@mutant(37)
class TellsOnlyWhatWasStored(Naive):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        surplus = len(data) - self.replay_buffer_size if isinstance(data, SampleBatch) else 0
        super().push(data[surplus:] if surplus > 0 else data, *args, **options)
        if surplus > 0:
            self._pushed += surplus


@mutant(39)
class PushesInTwoSteps(Naive):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        if isinstance(data, SampleBatch) and 1 < len(data) < 6:
            super().push(data[:1], *args, **options)
            time.sleep(1e-4)
            data = data[1:]
        super().push(data, *args, **options)
