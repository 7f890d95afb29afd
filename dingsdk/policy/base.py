"""The policy contract: four immutable bundles of callables, one per use.

A policy is built with the modes it is to serve (``enable_field``). Workers receive a
mode, never the policy, so that a collector cannot reach the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

FIELDS = ("learn", "collect", "eval", "command")


class LearnMode(NamedTuple):
    """What a learner may call. ``forward(data)`` trains on a SampleBatch or a list of dicts."""

    forward: Callable[..., dict[str, Any] | list[dict[str, Any]]]
    reset: Callable[..., None]
    info: Callable[[], str]
    monitor_vars: Callable[[], list[str]]
    get_attribute: Callable[[str], Any]
    set_attribute: Callable[[str, Any], None]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[Mapping[str, Any]], None]


class CollectMode(NamedTuple):
    """What a collector may call: the dict form, and where not None the batched form.

    Batched form:
        ``forward_batch(obs, env_ids, **kwargs) -> columns`` with at least ``action [n, ...]``;
            ``obs`` are the numpy columns of the env manager, the answer is numpy.
        ``make_transitions(obs, output, step) -> columns``: the columns to record for one
            step, from what the policy saw, what it answered and the manager's StepColumns.
        ``make_samples(columns, ends) -> SampleBatch``: train samples from whole trajectory
            pieces laid end to end; ``ends: int64[k]`` are their exclusive end offsets. A piece
            that does not end with ``done`` was cut while the episode went on.
    """

    forward: Callable[..., dict[int, dict[str, Any]]]
    process_transition: Callable[[Any, Any, Any], dict[str, Any]]
    get_train_sample: Callable[[list[dict[str, Any]]], list[Any]]
    reset: Callable[..., None]
    get_attribute: Callable[[str], Any]
    set_attribute: Callable[[str, Any], None]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[Mapping[str, Any]], None]
    forward_batch: Callable[..., dict[str, Any]] | None = None
    make_transitions: Callable[..., dict[str, Any]] | None = None
    make_samples: Callable[..., Any] | None = None

    @property
    def is_batched(self) -> bool:
        """Whether the policy offers the whole batched form."""
        return None not in (self.forward_batch, self.make_transitions, self.make_samples)


class EvalMode(NamedTuple):
    """What an evaluator may call; ``forward_batch`` as in CollectMode, without exploration."""

    forward: Callable[..., dict[int, dict[str, Any]]]
    reset: Callable[..., None]
    get_attribute: Callable[[str], Any]
    set_attribute: Callable[[str, Any], None]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[Mapping[str, Any]], None]
    forward_batch: Callable[..., dict[str, Any]] | None = None


class CommandMode(NamedTuple):
    """What a commander may call: schedules that depend on the progress of the run."""

    get_setting_learn: Callable[[Mapping[str, Any]], dict[str, Any]]
    get_setting_collect: Callable[[Mapping[str, Any]], dict[str, Any]]
    get_setting_eval: Callable[[Mapping[str, Any]], dict[str, Any]]


class Policy(Protocol):
    """A policy as the factories see it; see ``dingsdk.policy.dqn`` for a whole one."""

    @property
    def learn_mode(self) -> LearnMode: ...
    @property
    def collect_mode(self) -> CollectMode: ...
    @property
    def eval_mode(self) -> EvalMode: ...
    @property
    def command_mode(self) -> CommandMode: ...
