"""DI-engine's own policies, unchanged, with the four modes of dingsdk's policies."""

from __future__ import annotations

import difflib
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import msgspec
import numpy as np
import torch

from dingsdk.config import Configurable, Count, Share, deep_merge_dicts, to_easydict
from dingsdk.errors import ConfigError
from dingsdk.policy import CollectMode, CommandMode, EvalMode, LearnMode, PolicySection


class DIEnginePolicy(Configurable):
    """Type ``di_engine``: the policy of DI-engine that ``name`` names.

    Networks, losses and transitions are DI-engine's. The keys that dingsdk's workers read are
    in the same places as for other policies; all other keys of DI-engine's policy are under
    ``config``.

    Args:
        cfg: The config's ``policy`` section.
        enable_field: Modes to make; None for all.
        seed: Seed of the initial weights and of the exploration. DI-engine draws from the global
            random states of torch, numpy and Python, which this sets.

    Raises:
        ConfigError: DI-engine cannot be imported, has no such policy, or cannot build it.
    """

    class Config(PolicySection, frozen=True, kw_only=True):
        """Section ``policy``.

        Attributes:
            name: DI-engine's name of the policy, such as ``rainbow`` or ``td3``.
            discount_factor: As in every policy; None for DI-engine's default.
            nstep: As in every policy; None for DI-engine's default.
            random_collect_size: Only 0: DI-engine's policy acts from the first step.
            config: All other keys of DI-engine's policy, nested as in DI-engine; they are merged
                over its defaults.
        """

        name: str = "dqn"
        discount_factor: Share | None = None  # type: ignore[assignment]
        nstep: Count | None = None  # type: ignore[assignment]
        random_collect_size: Literal[0] = 0
        config: dict[str, Any] = msgspec.field(default_factory=dict)

    def __init__(
        self,
        cfg: Mapping[str, Any],
        enable_field: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> None:
        section = self.read(cfg, "policy")
        policy_class = find_policy(section.name)
        defaults = policy_class.default_config()
        if bool(defaults.on_policy) is not section.on_policy:
            raise ConfigError(
                f"policy.on_policy is {section.on_policy}, DI-engine's {section.name!r} is "
                f"{'' if defaults.on_policy else 'not '}on-policy; set it to {defaults.on_policy}",
                path="policy.on_policy",
                expected=bool(defaults.on_policy),
                found=section.on_policy,
            )
        own = deep_merge_dicts(deep_merge_dicts(defaults, section.config), _shared(section))
        fields = set(policy_class.total_field if enable_field is None else enable_field)
        if seed is not None:
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)
            random.seed(seed)
        try:
            self._policy = policy_class(
                to_easydict(own), enable_field=sorted(fields & policy_class.total_field)
            )
        except (AttributeError, KeyError, TypeError, ValueError, AssertionError) as error:
            raise ConfigError(
                f"policy.config: DI-engine's {section.name!r} cannot be built: "
                f"{type(error).__name__}: {error}",
                path="policy.config",
            ) from error

    @staticmethod
    def model_from_spaces(
        observation_space: gym.Space[Any], action_space: gym.Space[Any]
    ) -> dict[str, Any]:
        """Return ``obs_shape`` and ``action_shape`` as DI-engine's networks take them."""
        if not isinstance(observation_space, gym.spaces.Box):
            raise _unsupported("observation", observation_space, "a Box")
        if isinstance(action_space, gym.spaces.Discrete):
            actions: Any = int(action_space.n)
        elif isinstance(action_space, gym.spaces.Box) and len(action_space.shape) == 1:
            actions = int(action_space.shape[0])
        else:
            raise _unsupported("action", action_space, "Discrete, or a Box of one dimension")
        shape = [int(size) for size in observation_space.shape]
        return {"obs_shape": shape[0] if len(shape) == 1 else shape, "action_shape": actions}

    @property
    def learn_mode(self) -> LearnMode:
        """Functions for learners."""
        fields = self._policy.learn_mode._asdict()
        train = fields.pop("forward")
        # DI-engine collates lists of dicts of tensors itself.
        return LearnMode(forward=lambda data, **kw: train(as_tensor_rows(data), **kw), **fields)

    @property
    def collect_mode(self) -> CollectMode:
        """Functions for collectors."""
        fields = self._policy.collect_mode._asdict()
        act, record = fields.pop("forward"), fields.pop("process_transition")
        return CollectMode(
            forward=lambda obs, **kw: with_plain_actions(act(obs, **kw)),
            process_transition=lambda obs, output, step: record(obs, output, with_reward(step)),
            **fields,
        )

    @property
    def eval_mode(self) -> EvalMode:
        """Functions for evaluators."""
        fields = self._policy.eval_mode._asdict()
        act = fields.pop("forward")
        return EvalMode(forward=lambda obs, **kw: with_plain_actions(act(obs, **kw)), **fields)

    @property
    def command_mode(self) -> CommandMode:
        """Functions for commanders; they return no settings if DI-engine's policy has none."""
        if hasattr(self._policy, "command_mode"):
            return CommandMode(**self._policy.command_mode._asdict())
        return CommandMode(lambda info: {}, lambda info: {}, lambda info: {})


def as_tensor_rows(data: Any) -> Any:
    """Return samples as DI-engine collates them: dicts, or lists of dicts, of tensors."""
    if isinstance(data, Mapping):
        return {key: as_tensor_rows(value) for key, value in data.items()}
    if isinstance(data, Sequence):
        return [as_tensor_rows(row) for row in data]
    return torch.as_tensor(data)


def with_plain_actions(outputs: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the outputs of a policy with discrete actions of shape [] instead of [1]."""
    for output in outputs.values():
        action = output["action"]
        if action.shape == (1,) and not action.is_floating_point():
            output["action"] = action[0]
    return outputs


def with_reward(timestep: Any) -> Any:
    """Return a step with its reward as float32[1], as DI-engine's envs give it."""
    reward = torch.as_tensor(timestep.reward, dtype=torch.float32).reshape(-1)
    return timestep._replace(reward=reward)


def _shared(section: Any) -> dict[str, Any]:
    """Return the keys that dingsdk and DI-engine both read, nested as in DI-engine."""
    shared = {
        "cuda": section.cuda,
        "priority": section.priority,
        "model": section.model,
        "learn": {
            "update_per_collect": section.learn.update_per_collect,
            "batch_size": section.learn.batch_size,
        },
        "collect": {
            key: getattr(section.collect, key)
            for key in ("n_sample", "n_episode", "unroll_len")
            if getattr(section.collect, key) is not None
        },
    }
    optional = {key: getattr(section, key) for key in ("discount_factor", "nstep")}
    return {**shared, **{key: value for key, value in optional.items() if value is not None}}


def find_policy(name: str) -> Any:
    """Return DI-engine's class of a policy; the variant with schedules if there is one."""
    try:
        import ding.policy  # noqa: F401 - it registers the policies
        from ding.utils import POLICY_REGISTRY
    except ImportError as error:
        raise ConfigError(
            f"policy.type di_engine needs DI-engine, which cannot be imported: {error}; the "
            "README of dingsdk-rl-di-engine says how to install it",
            path="policy.type",
        ) from error
    if name not in POLICY_REGISTRY:
        near = difflib.get_close_matches(name, list(POLICY_REGISTRY), n=1)
        raise ConfigError(
            f"policy.name: DI-engine has no policy {name!r}"
            + (f"; did you mean {near[0]!r}?" if near else ""),
            path="policy.name",
            known=sorted(POLICY_REGISTRY),
        )
    return POLICY_REGISTRY.get(f"{name}_command" if f"{name}_command" in POLICY_REGISTRY else name)


def _unsupported(which: str, space: Any, needed: str) -> ConfigError:
    return ConfigError(
        f"policy di_engine: the {which} space {space} has no counterpart in DI-engine's policies; "
        f"they take {needed}",
        path="policy.model",
        found=str(space),
    )
