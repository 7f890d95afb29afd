"""Replay buffers with one defect each."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    BufferClosedError,
    BufferFullError,
    CheckpointCorruptError,
    InvalidPriorityError,
    SchemaMismatchError,
)
from dingsdk.worker.replay_buffer import (
    AdvancedReplayBuffer,
    ElasticReplayBuffer,
    EpisodeReplayBuffer,
    NaiveReplayBuffer,
    SequenceReplayBuffer,
)

from .mutant_list import MutantList

PATIENCE_S = 2.0
BASE = frozenset({"fifo", "parts", "saves"})


class Mutant:
    """Mixin for a buffer class: the storage and the capabilities that it is tested with."""

    capabilities: ClassVar[frozenset[str]] = BASE
    storage: ClassVar[str] = "array"

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__({"storage": {"type": self.storage}, **cfg})  # type: ignore[call-arg]


class Naive(Mutant, NaiveReplayBuffer):
    capabilities = BASE | {"distinct", "ages", "columns"}


class NaiveObjects(Mutant, NaiveReplayBuffer):
    capabilities = BASE | {"distinct", "ages", "objects"}
    storage = "object"


MUTANTS = MutantList()
mutant = MUTANTS.mutant


@mutant(2, 7, 8, 19, 20, 22, 23, 26, 27, 37)
class ForgetsTheOrderAtTheSeam(Naive):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        insert, contents = self._contents.insert, self._contents

        def insert_and_forget(rows: Any, n: int) -> None:
            insert(rows, n)
            remover: Any = contents.remover
            by_age = type(remover).by_age.__get__(remover)
            remover.by_age = (lambda ages: ages) if remover.state_dict()["tail"] else by_age

        contents.insert = insert_and_forget  # type: ignore[method-assign]


@mutant(1)
class CountsEmptyPushes(Naive):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        super().push(data, *args, **options)
        if isinstance(data, list) and not data:
            self._contents.pushed += 1


@mutant(5, 9)
class SharesItsRows(NaiveObjects):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        super().push(data, *args, **options)
        tail = self._contents.remover.state_dict()["tail"]
        if isinstance(data, list) and data and tail >= len(data):
            self._contents.storage._items[tail - len(data) : tail] = data  # type: ignore[union-attr]


@mutant(5)
class WritesIntoRows(NaiveObjects):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        super().push(data, *args, **options)
        for row in data if isinstance(data, list) else []:
            if isinstance(row, dict) and "id" in row:
                row["priority"] = 1.0


@mutant(7)
class DropsWhatIsNoRow(Naive):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        if isinstance(data, list):
            data = [row for row in data if row]
        super().push(data, *args, **options)


@mutant(8)
class NamesNoKey(Naive):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        try:
            super().push(data, *args, **options)
        except SchemaMismatchError as error:
            raise SchemaMismatchError(str(error), key="") from error


@mutant(9)
class TurnsTuplesIntoLists(NaiveObjects):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        if isinstance(data, list):
            data = [list(row) if isinstance(row, tuple) else row for row in data]
        super().push(data, *args, **options)


@mutant(12)
class ReturnsTooMany(Naive):
    def sample(self, size: int, *args: Any, **options: Any) -> Any:
        # Simulates a buffer that rounds the batch size up.
        if size == 3 and self.push_count == 8:
            size = 4
        return super().sample(size, *args, **options)


@mutant(11)
class WidensRewards(Naive):
    def sample(self, *args: Any, **options: Any) -> Any:
        found = super().sample(*args, **options)
        if not found:
            return found
        return found.with_columns(reward=found.columns["reward"].astype(np.float64))


@mutant(5, 9)
class SharesWhatItReturns(NaiveObjects):
    def sample(self, *args: Any, **options: Any) -> Any:
        storage: Any = self._contents.storage
        if storage is None:
            return super().sample(*args, **options)
        storage.take = lambda where: [storage._items[position] for position in where.tolist()]
        try:
            return super().sample(*args, **options)
        finally:
            del storage.take


@mutant(15)
class HasNoEmptyBatch(Naive):
    def sample(self, size: int, *args: Any, **options: Any) -> Any:
        found = super().sample(size, *args, **options)
        return None if found == [] else found


@mutant(18)
class RepeatsRows(Naive):
    def sample(self, *args: Any, **options: Any) -> Any:
        draw = type(self._contents.sampler).draw.__get__(self._contents.sampler)  # type: ignore[attr-defined]
        self._contents.sampler.draw = lambda population, size, replace: draw(population, size, True)  # type: ignore[attr-defined]
        return super().sample(*args, **options)


@mutant(19)
class CountsPositions(Naive):
    def sample(self, size: int, iteration: int, sample_range: Any = None, **options: Any) -> Any:
        if not isinstance(sample_range, slice):
            return super().sample(size, iteration, sample_range, **options)
        by_age = self._contents.remover.by_age
        self._contents.remover.by_age = lambda ages: ages  # type: ignore[method-assign]
        try:
            return super().sample(size, iteration, sample_range, **options)
        finally:
            self._contents.remover.by_age = by_age  # type: ignore[method-assign]


@mutant(20)
class KeepsTheSchema(Naive):
    def clear(self) -> None:
        storage = self._contents.storage
        if storage is not None:
            storage.clear = lambda: None  # type: ignore[method-assign]
        super().clear()


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
            state_dict = {**state_dict, "sampler": self._contents.sampler.state_dict()}
        super().load_state_dict(state_dict)


@mutant(23)
class SharesItsState(NaiveObjects):
    def state_dict(self) -> dict[str, Any]:
        items = self._contents.storage._items if self._contents.storage is not None else []  # type: ignore[attr-defined]
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


@mutant(26, 27)
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


@mutant(26)
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


@mutant(36, 33)  # a push waits for no sample that a limiter admits and that lacks rows
class RunsAhead(Naive):
    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__(cfg)
        if "samples_per_insert" in cfg.get("limiter", {}):
            self._contents.limiter.can_sample = lambda n: True  # type: ignore[method-assign]


@mutant(37)
class TellsOnlyWhatWasStored(Naive):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        surplus = len(data) - self.replay_buffer_size if isinstance(data, SampleBatch) else 0
        super().push(data[surplus:] if surplus > 0 else data, *args, **options)
        if surplus > 0:
            self._contents.pushed += surplus


@mutant(39)
class PushesInTwoSteps(Naive):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        if isinstance(data, SampleBatch) and 1 < len(data) < 6:
            super().push(data[:1], *args, **options)
            time.sleep(1e-4)
            data = data[1:]
        super().push(data, *args, **options)


class Sequences(Mutant, SequenceReplayBuffer):
    capabilities = BASE | {"columns", "sequences"}


class Episodes(Mutant, EpisodeReplayBuffer):
    capabilities = BASE | {"distinct", "ages", "episodes"}
    storage = "object"


class Elastic(Mutant, ElasticReplayBuffer):
    capabilities = BASE | {"distinct", "columns", "elastic"}


@mutant(41, 42)
class CrossesEnds(Sequences):
    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__({**cfg, "sampler": {"type": "sequence", "end": "no such column"}})


@mutant(41)
class IgnoresEndTrajectory(Sequences):
    def end_trajectory(self) -> None:
        pass


@mutant(42)
class PrefersLateStarts(Sequences):
    def sample(self, *args: Any, **options: Any) -> Any:
        draw = type(self._contents.sampler).draw.__get__(self._contents.sampler)  # type: ignore[attr-defined]

        def prefer(size: int, length: int) -> Any:
            drawn = [draw(size, length) for _ in range(8)]
            return None if None in drawn else max(drawn, key=lambda each: each[0].sum())

        self._contents.sampler.draw = prefer  # type: ignore[attr-defined]
        return super().sample(*args, **options)


@mutant(44)
class DropsWhatIsNoEpisode(Episodes):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        if type(data) is list:
            data = [each for each in data if not each or isinstance(each, (list, SampleBatch))]
        super().push(data, *args, **options)


@mutant(45)
class HasTheOldestInItsWindow(Elastic):
    def _ages(self, sample_range: slice | None) -> range | None:
        count = self._contents.remover.count
        return None if self._size >= count else range(self._size)


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
        self._contents.metadata.next_id = 0


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
            self._contents.sampler.on_remove(np.asarray(info["replay_buffer_idx"])[priorities == 0])  # type: ignore[attr-defined]


@mutant(55)
class KeepsUsedRows(Advanced):
    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__({key: value for key, value in cfg.items() if key != "max_use"})


@mutant(55, 56)
class CountsUsedRows(Advanced):
    def count(self) -> int:
        return 0 if self.closed else self._contents.remover.count


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
