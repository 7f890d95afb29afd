"""The numbers of a policy's section that are schedules, and where they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import torch
from msgspec import structs

from dingsdk.config import Schedule, Section, fields_of
from dingsdk.config.schedule import number_of
from dingsdk.errors import ConfigError
from dingsdk.policy.adam import Adam


class ScheduledNumbers:
    """Replaces the schedules in a policy's section by the numbers of today.

    Args:
        section: The policy's section. Its schedules are replaced in place, by their values at env
            step 0.

    Attributes:
        values: Today's numbers by their paths in the section, without ``learn.``.
        sets_rates: Whether a learning rate of an optimizer is one of them.
    """

    def __init__(self, section: Section) -> None:
        self.values: dict[str, float] = {}
        self.sets_rates = False
        self._env_steps: int | None = None
        self._uses: list[tuple[str, Schedule, list[Callable[[float], object]]]] = []
        for holder, name, path in _schedules_in(section, ""):
            schedule, path = getattr(holder, name), path.removeprefix("learn.")
            # A section is immutable for everyone else: its readers find the number of today.
            write = partial(structs.force_setattr, holder, name)
            self._uses.append((path, schedule, [write]))
            self.values[path] = schedule(0)
            write(_Marked(self.values[path], path))

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._uses)

    def bind(self, parts: Iterable[Any]) -> None:
        """Find the optimizers that were made with one of the numbers; then unmark all numbers.

        Args:
            parts: The parts of the policy's state.
        """
        writers = {path: found for path, _, found in self._uses}
        for value, write, is_rate in chain.from_iterable(map(settings_of, parts)):
            if isinstance(value, _Marked):
                writers[value.path].append(write)
                self.sets_rates |= is_rate
        self._write(0)

    def advance(self, env_steps: int) -> None:
        """Set all numbers to their values after ``env_steps`` env steps, >= 0."""
        self._env_steps = env_steps
        self._write(env_steps)

    def restore(self) -> None:
        """Set all numbers again, after optimizers have loaded a state with others."""
        self._write(self._env_steps or 0)

    def check_known(self) -> None:
        """Raise ConfigError if ``advance`` was never called."""
        if self._env_steps is None:
            names = ", ".join(self.values)
            raise ConfigError(
                f"schedules over the env steps of a run set {names}, and this training does not "
                "say how many there were: give learner.train(data, envstep=...), or call "
                "learn_mode.set_attribute('env_steps', ...) before forward",
                path="policy",
            )

    def _write(self, env_steps: int) -> None:
        for path, schedule, writers in self._uses:
            value = self.values[path] = schedule(env_steps)
            for write in writers:
                write(value)


class _Marked(float):
    """A scheduled number, by which the optimizers are found that are made with it."""

    def __new__(cls, value: float, path: str) -> _Marked:
        made = super().__new__(cls, value)
        made.path = path
        return made

    path: str


def _schedules_in(section: Section, path: str) -> Iterator[tuple[Section, str, str]]:
    """Yield the section, name and path of each field that holds a schedule."""
    for name in section.__struct_fields__:
        value = getattr(section, name)
        if isinstance(value, Schedule):
            yield section, name, path + name
        elif isinstance(value, Section):
            yield from _schedules_in(value, f"{path}{name}.")


def may_be_scheduled(section: Section, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each number that is declared as ``Scheduled``."""
    for name, field in fields_of(type(section)).items():
        value = getattr(section, name)
        if number_of(field.type) is not None:
            yield path + name, value
        elif isinstance(value, Section):
            yield from may_be_scheduled(value, f"{path}{name}.")


def settings_of(part: Any) -> Iterator[tuple[Any, Callable[[float], object], bool]]:
    """Yield each setting of an optimizer, a function that changes it, and whether it is a rate."""
    if isinstance(part, Adam):
        yield part.learning_rate, part.set_rate, True
        yield part.max_norm, partial(setattr, part, "max_norm"), False
    elif isinstance(part, torch.optim.Optimizer):
        for index, group in enumerate(part.param_groups):
            for key, value in group.items():
                yield value, partial(_set_in_group, part, index, key), key == "lr"


def _set_in_group(optimizer: torch.optim.Optimizer, index: int, key: str, value: float) -> None:
    # The groups are other dicts after the optimizer has loaded a state.
    optimizer.param_groups[index][key] = value
