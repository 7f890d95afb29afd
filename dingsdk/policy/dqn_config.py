"""The config section of DQN, and how its model follows from an env's spaces."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dingsdk.config import Count, Positive, Section
from dingsdk.errors import ConfigError
from dingsdk.policy.epsilon import EpsilonSchedule
from dingsdk.policy.sections import CollectSection, LearnSection, OtherSection, PolicySection

Size = Count | Annotated[list[Count], Meta(min_length=1, max_length=1)]
"""A number, or a shape of one dimension."""


class DQNModelSection(Section, frozen=True, kw_only=True):
    """Section ``policy.model``: shape of the Q network.

    Attributes:
        obs_shape: Size of an observation; None: read from the env.
        action_shape: Number of actions; None: read from the env.
        encoder_hidden_size_list: Widths of the hidden layers.
        dueling: Whether state value and advantages have heads of their own.
    """

    obs_shape: Size | None = None
    action_shape: Size | None = None
    encoder_hidden_size_list: list[Count] = msgspec.field(default_factory=lambda: [64, 64])
    dueling: bool = False

    def size(self, key: Literal["obs_shape", "action_shape"]) -> int:
        """Return one of the two sizes.

        Raises:
            ConfigError: it was neither given nor read from an env.
        """
        value = getattr(self, key)
        if value is None:
            raise ConfigError(
                f"policy.model.{key} is not set; give it, or fill the section from the env's "
                "spaces with DQNPolicy.model_from_spaces",
                path=f"policy.model.{key}",
            )
        return int(value[0] if isinstance(value, list) else value)


class DQNLearnSection(LearnSection, frozen=True, kw_only=True):
    """Section ``policy.learn`` of DQN.

    Attributes:
        learning_rate: Step size of Adam.
        loss: Of the TD error.
        huber_delta: TD error at which the Huber loss turns linear.
        double: Whether the trained network chooses the action whose target value counts.
        grad_clip_norm: Largest norm of a gradient; None for no limit.
        target_update_freq: Iterations between two copies to the target network.
        target_theta: Share of the trained weights that the target takes over in each iteration,
            in place of copies; None for copies.
    """

    learning_rate: Positive = 1e-3
    loss: Literal["huber", "mse"] = "huber"
    huber_delta: Positive = 1.0
    double: bool = True
    grad_clip_norm: Positive | None = 10.0
    target_update_freq: Count = 100
    target_theta: Annotated[float, Meta(gt=0, le=1)] | None = None


class DQNCollectSection(CollectSection, frozen=True, kw_only=True):
    """Section ``policy.collect`` of DQN."""

    n_sample: Count | None = 64


class DQNOtherSection(OtherSection, frozen=True, kw_only=True):
    """Section ``policy.other`` of DQN.

    Attributes:
        eps: Chance of a random action, by env steps.
    """

    eps: EpsilonSchedule = EpsilonSchedule()


class DQNSection(PolicySection, frozen=True, kw_only=True):
    """Section ``policy`` of DQN."""

    type: str = "dqn"
    model: DQNModelSection = DQNModelSection()  # type: ignore[assignment]
    learn: DQNLearnSection = DQNLearnSection()
    collect: DQNCollectSection = DQNCollectSection()
    other: DQNOtherSection = DQNOtherSection()


def model_from_spaces(observation_space: Any, action_space: Any) -> dict[str, int]:
    """Return ``{obs_shape, action_shape}`` of an env, as ``policy.model`` wants them.

    Raises:
        ConfigError: DQN here takes a Box of one dimension and a Discrete that starts at 0.
    """
    from gymnasium import spaces

    if not (isinstance(observation_space, spaces.Box) and len(observation_space.shape) == 1):
        raise _unsupported("observation", observation_space, "a Box of one dimension")
    if not (isinstance(action_space, spaces.Discrete) and action_space.start == 0):
        raise _unsupported("action", action_space, "a Discrete that starts at 0")
    return {"obs_shape": int(observation_space.shape[0]), "action_shape": int(action_space.n)}


def _unsupported(which: str, space: Any, supported: str) -> ConfigError:
    return ConfigError(
        f"policy type dqn cannot use the {which} space {space}: it supports {supported}; "
        "flatten or discretize it with a wrapper (env.wrappers), or choose another policy",
        path="env.env_id",
        expected=supported,
        found=str(space),
    )
