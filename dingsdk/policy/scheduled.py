"""Schedules in a policy's section: which numbers they set, and when.

``self.section`` always has plain numbers. At env step 0 each schedule in it is replaced by a
``ScheduledNumber``, which is a float that knows its path in the section. ``build`` hands some of
these floats to optimizers, where ``bind`` finds them by their class. From then on ``advance`` sets
the numbers in the section and in these optimizers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from msgspec import structs

from dingsdk.config import Schedule, Section, fields_of
from dingsdk.config.schedule import number_of
from dingsdk.errors import ConfigError
from dingsdk.policy.adam import Adam


class ScheduledNumber(float):
    """The value of a schedule at env step 0.

    Attributes:
        path: Path of the schedule in the section, without ``learn.``.
    """

    path: str


class OptimizerSetting(NamedTuple):
    """A number that an optimizer was made with.

    Attributes:
        value: The number.
        set: Changes it.
        is_rate: Whether it is a learning rate.
    """

    value: Any
    set: Callable[[float], object]
    is_rate: bool


class ScheduledNumbers:
    """Sets the numbers of a policy that are schedules, in its section and in its optimizers.

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
        self._schedules: dict[str, Schedule] = {}
        self._setters: list[tuple[str, Callable[[float], object]]] = []
        for holder, name, full_path in scheduled_fields(section):
            path, schedule = full_path.removeprefix("learn."), getattr(holder, name)
            if not isinstance(schedule, Schedule):
                continue
            number = ScheduledNumber(schedule(0))
            number.path = path
            self.values[path], self._schedules[path] = number, schedule
            # A section is immutable for everyone else: its readers find the number of today.
            setter = partial(structs.force_setattr, holder, name)
            setter(number)
            self._setters.append((path, setter))

    def bind(self, parts: Iterable[Any]) -> None:
        """Find the optimizers that were made with one of the numbers.

        Args:
            parts: The parts of the policy's state.
        """
        for part in parts:
            for setting in settings_of(part):
                if isinstance(setting.value, ScheduledNumber):
                    self._setters.append((setting.value.path, setting.set))
                    self.sets_rates |= setting.is_rate
        self._set(0)  # plain floats, which optimizers can save

    def advance(self, env_steps: int) -> None:
        """Set all numbers to their values after ``env_steps`` env steps, >= 0."""
        self._env_steps = env_steps
        self._set(env_steps)

    def restore(self) -> None:
        """Set all numbers again, after optimizers have loaded a state with others."""
        self._set(self._env_steps or 0)

    def check_known(self) -> None:
        """Raise ConfigError if there are schedules and ``advance`` was never called."""
        if self._schedules and self._env_steps is None:
            names = ", ".join(self.values)
            raise ConfigError(
                f"schedules over the env steps of a run set {names}, and this training does not "
                "say how many there were: give learner.train(data, envstep=...), or call "
                "learn_mode.set_attribute('env_steps', ...) before forward",
                path="policy",
            )

    def _set(self, env_steps: int) -> None:
        for path, schedule in self._schedules.items():
            self.values[path] = schedule(env_steps)
        for path, setter in self._setters:
            setter(self.values[path])


def scheduled_fields(section: Section, path: str = "") -> Iterator[tuple[Section, str, str]]:
    """Yield the section, name and path of each number that is declared as ``Scheduled``."""
    for name, field in fields_of(type(section)).items():
        value = getattr(section, name)
        if number_of(field.type) is not None:
            yield section, name, path + name
        elif isinstance(value, Section):
            yield from scheduled_fields(value, f"{path}{name}.")


def settings_of(part: Any) -> Iterator[OptimizerSetting]:
    """Yield the settings of a part of a policy's state that is an optimizer."""
    if isinstance(part, Adam):
        yield OptimizerSetting(part.learning_rate, part.set_rate, True)
        yield OptimizerSetting(part.max_norm, partial(setattr, part, "max_norm"), False)
    elif isinstance(part, torch.optim.Optimizer):
        for index, group in enumerate(part.param_groups):
            for key, value in group.items():
                setter = partial(_set_in_group, part, index, key)
                yield OptimizerSetting(value, setter, key == "lr")


def _set_in_group(optimizer: torch.optim.Optimizer, index: int, key: str, value: float) -> None:
    # The groups are other dicts after the optimizer has loaded a state.
    optimizer.param_groups[index][key] = value
