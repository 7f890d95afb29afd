"""Each rule of the buffer contract notices the buffer that breaks it, and no other does.

A mutant is a buffer with one defect. It must break its own rule; the rules that the same defect
cannot but break as well are named with it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dingsdk import SampleBatch
from dingsdk.errors import (
    BufferClosedError,
    BufferFullError,
    CheckpointCorruptError,
    CheckpointVersionError,
    SchemaMismatchError,
)
from dingsdk.testing import BUFFER_RULES, ContractError, check_buffer
from dingsdk.worker.replay_buffer import NaiveReplayBuffer
from dingsdk.worker.replay_buffer.gate import Gate

PATIENCE_S = 0.5
BASE = frozenset({"parts", "saves"})


class Naive(NaiveReplayBuffer):
    """The buffer as it is, over arrays."""

    breaks: ClassVar[int] = 0
    also: ClassVar[frozenset[int]] = frozenset()
    capabilities: ClassVar[frozenset[str]] = BASE | {"distinct", "ages", "columns"}
    storage: ClassVar[str] = "array"

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__({"storage": {"type": self.storage}, **cfg})


class NaiveObjects(Naive):
    capabilities = BASE | {"distinct", "ages", "objects"}
    storage = "object"


MUTANTS: list[type[Naive]] = []
_ORDER = (3, 7, 8, 19, 20, 22, 23, 24, 26, 27, 37, 39, 40)
"""Rules that look at the order of rows."""


def mutant(breaks: int, *also: int) -> Callable[[type[Naive]], type[Naive]]:
    def mark(made: type[Naive]) -> type[Naive]:
        made.breaks, made.also = breaks, frozenset(also)
        MUTANTS.append(made)
        return made

    return mark


# --- pushing -------------------------------------------------------------------------------------


@mutant(1, 7, 8)
class DropsSingleRows(Naive):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        if isinstance(data, (list, SampleBatch)):
            super().push(data, *args, **options)


@mutant(2, *_ORDER)
class ForgetsTheOrderAtTheSeam(Naive):
    def _insert(self, rows: Any, n: int) -> None:
        super()._insert(rows, n)
        by_age = type(self._remover).by_age
        if self._remover.state_dict()["tail"]:
            self._remover.by_age = lambda ages: ages  # type: ignore[method-assign]
        else:
            self._remover.by_age = by_age.__get__(self._remover)  # type: ignore[method-assign]


@mutant(3, 20, 37)
class KeepsTheOldestOfMany(Naive):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        if isinstance(data, (list, SampleBatch)) and len(data) > self.replay_buffer_size:
            first = data[: self.replay_buffer_size]
            data = [*data[self.replay_buffer_size :], *first]
        super().push(data, *args, **options)


@mutant(4)
class CountsEmptyPushes(Naive):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        super().push(data, *args, **options)
        if isinstance(data, list) and not data:
            self._pushed += 1


@mutant(5, 9)
class SharesItsRows(NaiveObjects):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        super().push(data, *args, **options)
        if isinstance(data, list) and data and self._remover.state_dict()["tail"] >= len(data):
            tail = self._remover.state_dict()["tail"]
            self._storage._items[tail - len(data) : tail] = data  # type: ignore[union-attr]


@mutant(6)
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


@mutant(7, 8)
class PushesUpToTheBadRow(Naive):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        try:
            super().push(data, *args, **options)
        except SchemaMismatchError:
            for row in data if isinstance(data, list) else ():
                super().push(row, *args, **options)
            raise


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


# --- sampling ------------------------------------------------------------------------------------


@mutant(10)
class ReturnsTooMany(Naive):
    def sample(self, size: int, *args: Any, **options: Any) -> Any:
        # As if it rounded the batch up where it can.
        if size == 5 and self.push_count == 10:
            size = 6
        return super().sample(size, *args, **options)


@mutant(11)
class WidensRewards(Naive):
    def sample(self, *args: Any, **options: Any) -> Any:
        found = super().sample(*args, **options)
        if not found:
            return found
        return found.with_columns(reward=found.columns["reward"].astype(np.float64))


@mutant(11, 6, 13)
class ReturnsLists(Naive):
    def sample(self, *args: Any, **options: Any) -> Any:
        found = super().sample(*args, **options)
        return found if found is None else list(found)


@mutant(12, 17, 18, 19)
class NeverTheNewest(Naive):
    def _ages(self, sample_range: slice | None) -> range | None:
        count = self._remover.count
        whole = sample_range is None and count >= 3
        return range(count - 1) if whole else super()._ages(sample_range)

    def sample(self, size: int, *args: Any, **options: Any) -> Any:
        if isinstance(size, int) and size == self.count():
            return super().sample(size, 0, slice(None), **options)
        return super().sample(size, *args, **options)


@mutant(13, 39, 40)
class ReusesTheBatch(Naive):
    batches: dict[int, Any]

    def sample(self, size: int, *args: Any, **options: Any) -> Any:
        found = super().sample(size, *args, **options)
        if not isinstance(found, SampleBatch):
            return found
        kept = self.__dict__.setdefault("batches", {}).setdefault(size, found)
        for name, column in found.columns.items():
            for key, part in column.items() if isinstance(column, dict) else [(None, column)]:
                target = kept.columns[name] if key is None else kept.columns[name][key]
                target[...] = part
        return kept


@mutant(13, 9)
class SharesWhatItReturns(NaiveObjects):
    def _take(self, where: Any) -> Any:
        return [self._storage._items[position] for position in where.tolist()]  # type: ignore[union-attr]


@mutant(14)
class HasNoEmptyBatch(Naive):
    def sample(self, size: int, *args: Any, **options: Any) -> Any:
        found = super().sample(size, *args, **options)
        return None if found == [] else found


@mutant(15, 19, 32, 33)
class ReturnsWhatThereIs(Naive):
    def sample(self, size: int, *args: Any, **options: Any) -> Any:
        if isinstance(size, int) and size > self.count() > 0 and not options.get("replace"):
            size = self.count()
        return super().sample(size, *args, **options)


@mutant(15)
class Raises(Naive):
    def sample(self, size: int, *args: Any, **options: Any) -> Any:
        if isinstance(size, int) and size > self.replay_buffer_size and not options:
            raise BufferFullError("too many", rows=size, waited_s=0.0)
        return super().sample(size, *args, **options)


@mutant(16)
class RoundsSizes(Naive):
    def sample(self, size: int, *args: Any, **options: Any) -> Any:
        return super().sample(int(size) if isinstance(size, float) else size, *args, **options)


@mutant(17, 18)
class RepeatsRows(Naive):
    def sample(self, *args: Any, **options: Any) -> Any:
        draw = type(self._sampler).draw.__get__(self._sampler)  # type: ignore[attr-defined]
        self._sampler.draw = lambda population, size, replace: draw(population, size, True)  # type: ignore[attr-defined]
        return super().sample(*args, **options)


@mutant(18)
class PrefersTheNewest(Naive):
    def sample(self, *args: Any, **options: Any) -> Any:
        draw = type(self._sampler).draw.__get__(self._sampler)  # type: ignore[attr-defined]

        def prefer(population: int, size: int, replace: bool) -> Any:
            return max((draw(population, size, replace) for _ in range(2)), key=np.sum)

        self._sampler.draw = prefer  # type: ignore[attr-defined]
        return super().sample(*args, **options)


@mutant(19)
class CountsPositions(Naive):
    def sample(self, size: int, iteration: int, sample_range: Any = None, **options: Any) -> Any:
        if not isinstance(sample_range, slice):
            return super().sample(size, iteration, sample_range, **options)
        by_age = self._remover.by_age
        self._remover.by_age = lambda ages: ages  # type: ignore[method-assign]
        try:
            return super().sample(size, iteration, sample_range, **options)
        finally:
            self._remover.by_age = by_age  # type: ignore[method-assign]


@mutant(20)
class KeepsTheSchema(Naive):
    def clear(self) -> None:
        storage = self._storage
        if storage is not None:
            storage.clear = lambda: None  # type: ignore[method-assign]
        super().clear()


# --- keeping -------------------------------------------------------------------------------------


@mutant(21, 24)
class TakesNoSeed(Naive):
    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__({**cfg, "seed": None})


@mutant(21)
class HasOneSeed(Naive):
    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__({**cfg, "seed": 0})


@mutant(22)
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


@mutant(23)
class KeepsTheLoadedState(NaiveObjects):
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if state_dict.get("tail") == 0 and self.count():
            self._storage._items = state_dict["data"]  # type: ignore[union-attr]


@mutant(24)
class TakesOtherVersions(Naive):
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        try:
            super().load_state_dict(state_dict)
        except CheckpointVersionError:
            super().load_state_dict({"data": state_dict["data"]})


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


@mutant(26, 37)
class SavesTheRing(Naive):
    def _contents(self) -> Any:
        assert self._storage is not None
        return self._storage.take(np.arange(self._remover.count))


@mutant(27)
class LoadsNothingInSilence(Naive):
    def load_data(self, file: str) -> None:
        with contextlib.suppress(CheckpointCorruptError):
            super().load_data(file)


# --- closing -------------------------------------------------------------------------------------


@mutant(28)
class MakesAFolder(Naive):
    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__(cfg)
        tempfile.mkdtemp(dir=".")


@mutant(28)
class StartsAThread(Naive):
    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__(cfg)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.ended.wait, args=(20,))
        self.thread.start()

    def close(self) -> None:
        super().close()
        self.ended.set()
        self.thread.join()


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


# --- parts ---------------------------------------------------------------------------------------


@mutant(31, 34, 35, 36)
class ForgetsToWake(Naive):
    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__(cfg)
        buffer = self

        class Silent(Gate):
            def wake(self) -> None:
                if buffer.closed:
                    super().wake()

        self._gate = Silent()
        self._lock = self._gate.lock


@mutant(32)
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


@mutant(34)
class ServesBelowTheMinimum(Naive):
    def __init__(self, cfg: Mapping[str, Any]) -> None:
        super().__init__(cfg)
        if self._limiter.min_size > 1:
            self._limiter.can_sample = lambda n: self._limiter.size > 0  # type: ignore[method-assign]


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
            self._left["overwritten"] += surplus


@mutant(37)
class SaysTheWrongReason(Naive):
    def _empty(self) -> None:
        super()._empty()
        self._listeners._untold = [(rows, "overwritten") for rows, _ in self._listeners._untold]


@mutant(38)
class CountsClearedRowsTwice(Naive):
    def clear(self) -> None:
        held = self.count()
        super().clear()
        self._left["cleared"] += held
        self._left["overwritten"] -= held


# --- threads -------------------------------------------------------------------------------------


@mutant(39)
class CountsOutsideTheLock(Naive):
    def push(self, *args: Any, **options: Any) -> None:
        super().push(*args, **options)
        pushed = self._pushed
        time.sleep(1e-5)
        self._pushed = pushed


@mutant(40, 39)
class PushesInTwoSteps(Naive):
    def push(self, data: Any, *args: Any, **options: Any) -> None:
        if isinstance(data, SampleBatch) and 1 < len(data) < 6:
            super().push(data[:1], *args, **options)
            time.sleep(1e-4)
            data = data[1:]
        super().push(data, *args, **options)


# -------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    while LeavesAFile.left:  # type: ignore[attr-defined]
        os.close(LeavesAFile.left.pop())  # type: ignore[attr-defined]


@pytest.mark.parametrize("made", MUTANTS, ids=lambda made: f"{made.breaks:02d}-{made.__name__}")
def test_mutant_breaks_its_rule_alone(made: type[Naive]) -> None:
    with pytest.raises(ContractError) as caught:
        check_buffer(made, capabilities=made.capabilities, patience_s=PATIENCE_S)

    broken = set(caught.value.broken)
    assert made.breaks in broken
    assert broken <= {made.breaks, *made.also}, str(caught.value)


@pytest.mark.parametrize("unchanged", [Naive, NaiveObjects])
def test_unchanged_buffer_breaks_no_rule(unchanged: type[Naive]) -> None:
    report = check_buffer(unchanged, capabilities=unchanged.capabilities, patience_s=PATIENCE_S)
    assert report.broken == ()


def test_every_rule_has_a_mutant() -> None:
    assert {made.breaks for made in MUTANTS} == {rule.number for rule in BUFFER_RULES}
