"""Policies: what acts and learns. Workers see the modes of ``dingsdk.policy.base`` only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dingsdk.config import to_easydict
from dingsdk.lazy import lazy_names
from dingsdk.plugins import default_manager

if TYPE_CHECKING:
    from dingsdk.policy.adam import Adam
    from dingsdk.policy.base import (
        BasePolicy,
        CollectMode,
        CommandMode,
        EvalMode,
        LearnMode,
        Policy,
        Stateful,
    )
    from dingsdk.policy.dqn import DQNPolicy
    from dingsdk.policy.epsilon import EpsilonSchedule
    from dingsdk.policy.networks import MLP, ActorCritic, QNetwork, flatten_parameters
    from dingsdk.policy.ppo import PPOPolicy
    from dingsdk.policy.returns import gae, nstep_returns
    from dingsdk.policy.sections import (
        CollectSection,
        EvalSection,
        FlatModelSection,
        LearnSection,
        OtherSection,
        PolicySection,
    )

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, __file__)
__all__ = [
    "MLP",
    "ActorCritic",
    "Adam",
    "BasePolicy",
    "CollectMode",
    "CollectSection",
    "CommandMode",
    "DQNPolicy",
    "EpsilonSchedule",
    "EvalMode",
    "EvalSection",
    "FlatModelSection",
    "LearnMode",
    "LearnSection",
    "OtherSection",
    "PPOPolicy",
    "Policy",
    "PolicySection",
    "QNetwork",
    "Stateful",
    "create_policy",
    "flatten_parameters",
    "gae",
    "get_policy_cls",
    "nstep_returns",
]


def create_policy(
    cfg: Mapping[str, Any],
    enable_field: Sequence[str] | None = None,
    seed: int | None = None,
) -> Policy:
    """Build the policy that ``cfg["type"]`` names.

    Args:
        cfg: The config's ``policy`` section; absent keys take the policy's defaults.
        enable_field: Modes to serve, of ``learn``, ``collect``, ``eval``, ``command``; None
            for all. Modes built together share one set of weights.
        seed: Of the initial weights and of the exploration; None draws from the system.

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
