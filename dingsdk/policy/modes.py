"""The policy contract: four immutable bundles of callables, one per use.

A policy is built with the modes that are needed (``enable_field``). Workers receive a
mode, never the policy, so that a collector cannot reach the optimizer. ``BasePolicy`` makes the
modes from a few methods; any other object with the four properties of ``Policy`` works too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from dingsdk.config import to_easydict
from dingsdk.plugins import default_manager

FIELDS = ("learn", "collect", "eval", "command")

Piece = Literal["steps", "unroll", "episode"]
"""A piece of a trajectory that train samples are made of; see ``BasePolicy.piece``."""


class LearnMode(NamedTuple):
    """Functions for learners. ``forward(data)`` trains on a SampleBatch or a list of dicts.

    ``observe(samples)``, if it is not None, updates statistics of what was collected, such as those
    of ``policy.normalize``. It is called once with all samples: a SampleBatch, a list of dicts, or
    a list of episodes that are either. Off-policy before they are stored, on-policy after the
    training on them.
    """

    forward: Callable[..., dict[str, Any] | list[dict[str, Any]]]
    reset: Callable[..., None]
    info: Callable[[], str]
    monitor_vars: Callable[[], list[str]]
    get_attribute: Callable[[str], Any]
    set_attribute: Callable[[str, Any], None]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[Mapping[str, Any]], None]
    observe: Callable[[Any], None] | None = None


class CollectMode(NamedTuple):
    """Functions for collectors: the dict form, and the batched form if it is not None.

    Batched form:
        ``forward_batch(obs, env_ids, **kwargs) -> columns`` with at least ``action [n, ...]``;
            ``obs`` are the numpy columns of the env manager, the result is numpy too.
        ``make_transitions(obs, output, step) -> columns``: the columns to record for one
            step, from the observations, the policy's output and the manager's StepColumns.
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


class EvalMode(NamedTuple):
    """Functions for evaluators; ``forward_batch`` as in CollectMode, without exploration."""

    forward: Callable[..., dict[int, dict[str, Any]]]
    reset: Callable[..., None]
    get_attribute: Callable[[str], Any]
    set_attribute: Callable[[str, Any], None]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[Mapping[str, Any]], None]
    forward_batch: Callable[..., dict[str, Any]] | None = None


class CommandMode(NamedTuple):
    """Functions for commanders: schedules that depend on the progress of the run."""

    get_setting_learn: Callable[[Mapping[str, Any]], dict[str, Any]]
    get_setting_collect: Callable[[Mapping[str, Any]], dict[str, Any]]
    get_setting_eval: Callable[[Mapping[str, Any]], dict[str, Any]]


class Policy(Protocol):
    """The properties that every policy has."""

    @property
    def learn_mode(self) -> LearnMode:
        """Functions for learners."""

    @property
    def collect_mode(self) -> CollectMode:
        """Functions for collectors."""

    @property
    def eval_mode(self) -> EvalMode:
        """Functions for evaluators."""

    @property
    def command_mode(self) -> CommandMode:
        """Functions for commanders."""


def create_policy(
    cfg: Mapping[str, Any],
    enable_field: Sequence[str] | None = None,
    seed: int | None = None,
) -> Policy:
    """Build the policy that ``cfg["type"]`` names; arguments as ``BasePolicy``.

    Raises:
        UnknownPluginError: nothing provides that type.
        ConfigError: no type, or a value that the policy cannot work with.
    """
    policy: Policy = default_manager().create(
        "policies", to_easydict(cfg), enable_field=enable_field, seed=seed, config_path="policy"
    )
    return policy


def get_policy_cls(cfg: Mapping[str, Any]) -> type[Policy]:
    """Return the class of the policy that ``cfg["type"]`` names; errors as ``create_policy``."""
    cls: type[Policy] = default_manager().class_of("policies", cfg, config_path="policy")
    return cls


def piece_with(declared: Piece, traj_len_inf: bool) -> Piece:
    """Return the piece of a policy by what its class declares and ``policy.traj_len_inf``."""
    return "episode" if declared == "steps" and traj_len_inf else declared


def piece_of(mode: Any) -> Piece:
    """Return the ``piece`` of a collect mode; policies that do not declare one have steps."""
    found: Piece | None = attribute_of(mode, "piece")
    return found or piece_with("steps", mode.get_attribute("cfg").get("traj_len_inf", False))


def mixes_versions(policy_cfg: Mapping[str, Any]) -> bool:
    """Return whether one piece of a trajectory may have steps of several versions of a policy.

    True unless it is on-policy and ``other.commander.max_policy_lag`` limits the age of samples.
    """
    commander = (policy_cfg.get("other") or {}).get("commander") or {}
    return not policy_cfg.get("on_policy") or commander.get("max_policy_lag", 0) is None


def attribute_of(mode: Any, key: str) -> Any:
    """Return an attribute of a mode; None if the policy, of any class, does not have it."""
    try:
        return mode.get_attribute(key)
    except (NotImplementedError, KeyError, AttributeError):
        return None
