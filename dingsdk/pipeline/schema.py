"""Checks of config values against the defaults of the classes that read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from dingsdk.errors import ConfigError, ConfigTypeError

_Count = Annotated[int, msgspec.Meta(ge=1)]
# So many parts are held in memory at once.
_Held = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
_NotNegative = Annotated[int, msgspec.Meta(ge=0)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_NotBelowZero = Annotated[float, msgspec.Meta(ge=0)]

LARGEST_INT = 10**15
"""Whole numbers beyond this fit no count of anything, and break the arithmetic of numpy."""

RANGES: Mapping[str, Any] = {
    "env.collector_env_num": _Held,
    "env.evaluator_env_num": _Held,
    "system.collector_num": _Held,
    "system.learner_num": _Held,
    "policy.discount_factor": _Share,
    "policy.nstep": _Held,
    "policy.learn.batch_size": _Count,
    "policy.learn.update_per_collect": _Count,
    "policy.learn.learning_rate": _Positive,
    "policy.learn.target_update_freq": _Count,
    "policy.learn.learner.train_iterations": _Count,
    "policy.collect.n_sample": _Count,
    "policy.collect.n_episode": _Count,
    "policy.collect.unroll_len": _Count,
    "policy.collect.collector.seed": _NotNegative,
    "policy.collect.parallel_collector.print_freq": _Count,
    "policy.collect.parallel_collector.update_policy_second": _NotBelowZero,
    "policy.collect.parallel_collector.policy_timeout_s": _Positive,
    "policy.eval.evaluator.eval_freq": _Count,
    "policy.other.eps.start": _Share,
    "policy.other.eps.end": _Share,
    "policy.other.eps.decay": _Positive,
    "policy.other.replay_buffer.replay_buffer_size": _Count,
    "policy.other.replay_buffer.seed": _NotNegative,
    "policy.other.commander.collector_task_space": _Count,
    "policy.other.commander.learner_task_space": _Count,
}
"""Ranges that the type of a default does not tell, by dotted path; absent keys are skipped."""


def check_types(value: Any, default: Any, path: str, open_paths: frozenset[str]) -> Any:
    """Check ``value`` against the type of ``default`` and return it, numbers made to fit.

    A default of None accepts anything; a whole float is taken where an int belongs, as in
    ``1e6``.

    Raises:
        ConfigTypeError: with the dotted path, what belongs there and what was found.
    """
    if default is None or value is default or callable(default):
        return value
    if isinstance(default, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(path, "a section", value)
        if path in open_paths:
            return value
        return {
            key: check_types(item, default.get(key), _join(path, key), open_paths)
            for key, item in value.items()
        }
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise _wrong(path, "true or false", value)
        return value
    if isinstance(default, int):
        return _whole_number(value, path)
    if isinstance(default, float):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(path, "a number", value)
        if math.isnan(value):
            raise _wrong(path, "a number", value)
        return value
    if isinstance(default, str):
        if not isinstance(value, str):
            raise _wrong(path, "text", value)
        return value
    if isinstance(default, list | tuple):
        if not isinstance(value, list | tuple):
            raise _wrong(path, "a list", value)
        if default and type(default[0]) in (int, float, str):
            return [
                check_types(item, default[0], f"{path}[{index}]", open_paths)
                for index, item in enumerate(value)
            ]
    return value


def check_ranges(cfg: Mapping[str, Any]) -> None:
    """Check the values whose range is known to every part, see ``RANGES``.

    Raises:
        ConfigTypeError: a value out of range.
    """
    for path, kind in RANGES.items():
        section: Any = cfg
        *parents, last = path.split(".")
        for key in parents:
            section = section.get(key) if isinstance(section, Mapping) else None
        # None is a matter of the type check: it passes that where it is the default.
        if not isinstance(section, Mapping) or section.get(last) is None:
            continue
        try:
            msgspec.convert(section[last], kind)
        except msgspec.ValidationError as error:
            raise ConfigTypeError(
                f"{path}: {error} (found {section[last]!r})",
                path=path,
                expected=str(error),
                found=section[last],
            ) from error


def check_capacity(cfg: Mapping[str, Any]) -> None:
    """Check that the replay buffer can hold one batch, and what one collect gives.

    Raises:
        ConfigError: it cannot, so that the run would wait for ever, or drop what it collects.
    """
    policy, path = cfg["policy"], "policy.other.replay_buffer.replay_buffer_size"
    capacity = policy.get("other", {}).get("replay_buffer", {}).get("replay_buffer_size")
    for section, key, outcome in (
        ("learn", "batch_size", "no batch could ever be sampled"),
        ("collect", "n_sample", "part of each collect would be dropped at once"),
    ):
        needed = policy.get(section, {}).get(key)
        if needed is not None and capacity is not None and capacity < needed:
            raise ConfigError(
                f"{path} is {capacity}, less than policy.{section}.{key} {needed}: "
                f"{outcome}; raise the first or lower the second",
                path=path,
                capacity=capacity,
                needed=needed,
            )


def _whole_number(value: Any, path: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(path, "a whole number", value)
    if isinstance(value, float):
        if not value.is_integer():
            raise _wrong(path, "a whole number", value)
        value = int(value)
    if abs(value) > LARGEST_INT:
        raise _wrong(path, f"a whole number up to {LARGEST_INT:.0e}", value)
    return value


def _wrong(path: str, expected: str, found: Any) -> ConfigTypeError:
    kind = "null" if found is None else type(found).__name__
    return ConfigTypeError(
        f"{path}: expected {expected}, found {found!r} ({kind})",
        path=path,
        expected=expected,
        found=found,
    )


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
