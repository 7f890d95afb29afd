"""The config section ``policy``: what every policy has, and the sections of the workers in it."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dingsdk.config import Count, Held, Part, PartSection, Positive, Section, Share, preset
from dingsdk.errors import ConfigError

Size = Count | Annotated[list[Count], Meta(min_length=1, max_length=1)]
"""A number, or a shape of one dimension."""


class FlatModelSection(Section, frozen=True, kw_only=True):
    """Section ``policy.model``: networks for a flat observation and one discrete action.

    Attributes:
        obs_shape: Size of an observation; None: read from the env.
        action_shape: Number of actions; None: read from the env.
        encoder_hidden_size_list: Widths of the hidden layers.
    """

    obs_shape: Size | None = None
    action_shape: Size | None = None
    encoder_hidden_size_list: list[Count] = msgspec.field(default_factory=lambda: [64, 64])

    def size(self, key: Literal["obs_shape", "action_shape"]) -> int:
        """Return one of the two sizes.

        Raises:
            ConfigError: it was neither given nor read from an env.
        """
        value = getattr(self, key)
        if value is None:
            raise ConfigError(
                f"policy.model.{key} is not set; give it, or fill the section from the env's "
                "spaces with the policy's model_from_spaces",
                path=f"policy.model.{key}",
            )
        return int(value[0] if isinstance(value, list) else value)


class LearnSection(Section, frozen=True, kw_only=True):
    """Section ``policy.learn``.

    Attributes:
        update_per_collect: Train iterations after each collect (serial mode).
        batch_size: Samples of one train iteration.
        learner: The learner by ``type``, with its options.
    """

    update_per_collect: Count = 1
    batch_size: Count = 64
    learner: Annotated[dict[str, Any], Part("learners")] = preset("base")


class CollectSection(Section, frozen=True, kw_only=True):
    """Section ``policy.collect``.

    Attributes:
        n_sample: Train samples of one collect; None for collectors that count episodes.
        n_episode: Episodes of one collect; None for collectors that count samples.
        unroll_len: Env steps of one train sample.
        collector: The serial collector by ``type``, with its options.
        parallel_collector: What runs in the workers of parallel mode by ``type``, with its
            options. ``zergling`` gives way to ``serial``, which runs ``collector``, where that
            is another one than ``sample``.
    """

    n_sample: Count | None = None
    n_episode: Count | None = None
    unroll_len: Count = 1
    collector: Annotated[dict[str, Any], Part("collectors")] = preset("sample")
    parallel_collector: Annotated[dict[str, Any], Part("parallel_collectors")] = preset("zergling")


class EvalSection(Section, frozen=True, kw_only=True):
    """Section ``policy.eval``.

    Attributes:
        evaluator: The evaluator of both modes by ``type``, with its options.
    """

    evaluator: Annotated[dict[str, Any], Part("evaluators")] = preset("interaction")


class OtherSection(Section, frozen=True, kw_only=True):
    """Section ``policy.other``.

    Attributes:
        replay_buffer: The replay buffer by ``type``, with its options.
        commander: The commander of parallel mode by ``type``, with its options.
        serial_commander: The commander of serial mode by ``type``, with its options.
        league: Who plays against whom in envs of several players, by ``type``.
    """

    replay_buffer: Annotated[dict[str, Any], Part("buffers")] = preset("naive")
    commander: Annotated[dict[str, Any], Part("commanders")] = preset("solo")
    serial_commander: Annotated[dict[str, Any], Part("serial_commanders")] = preset("base")
    league: Annotated[dict[str, Any], Part("leagues")] = preset("one_vs_one")


class EpsilonSchedule(Section, frozen=True, kw_only=True):
    """Epsilon over env steps; call it with the number of env steps collected so far.

    Attributes:
        type: ``linear`` goes from ``start`` to ``end`` in ``decay`` env steps and stays there;
            ``exp`` approaches ``end`` with the time constant ``decay``; ``constant`` is ``start``
            throughout.
        start: Epsilon at first.
        end: Epsilon in the end.
        decay: Env steps, see ``type``.
    """

    type: Literal["constant", "exp", "linear"] = "exp"
    start: Share = 1.0
    end: Share = 0.05
    decay: Positive = 10_000

    def __call__(self, envstep: float) -> float:
        """Return epsilon in [0, 1] after ``envstep`` env steps; negative counts as 0."""
        progress = max(0.0, float(envstep)) / self.decay
        if self.type == "linear":
            return self.start + (self.end - self.start) * min(1.0, progress)
        if self.type == "exp":
            return self.end + (self.start - self.end) * math.exp(-progress)
        return self.start


class PolicySection(PartSection, frozen=True, kw_only=True):
    """Section ``policy``; a policy class extends it with keys of its own.

    Attributes:
        cuda: Whether networks live on the GPU.
        on_policy: Whether training uses only what the newest policy collected.
        priority: Whether training gives the replay buffer a priority for each sample.
        discount_factor: Gamma, the weight of the next step's return.
        nstep: Env steps of real reward before the bootstrap.
        model: Shape of the networks; what is None is read from the env's spaces.
        learn: How the policy is trained.
        collect: How training data is collected.
        eval: How the policy is evaluated.
        other: Replay buffer, commander and schedules.
        unroll_len: Stands for ``collect.unroll_len`` where it is given.
        traj_len_inf: Whether trajectories are cut only where episodes end. A replay buffer that
            needs rows in order sets it.
    """

    cuda: bool = False
    on_policy: bool = False
    priority: bool = False
    discount_factor: Share = 0.99
    nstep: Held = 1
    model: dict[str, Any] = msgspec.field(default_factory=dict)
    learn: LearnSection = LearnSection()
    collect: CollectSection = CollectSection()
    eval: EvalSection = EvalSection()
    other: OtherSection = OtherSection()
    unroll_len: Count | None = None
    traj_len_inf: bool = False


def flat_model(policy: str, observation_space: Any, action_space: Any) -> dict[str, int]:
    """Return ``{obs_shape, action_shape}`` of an env, as ``FlatModelSection`` wants them.

    Args:
        policy: Type key of the policy, for messages.
        observation_space: A Box of one dimension.
        action_space: A Discrete that starts at 0.

    Raises:
        ConfigError: the spaces are others.
    """
    from gymnasium import spaces

    if not (isinstance(observation_space, spaces.Box) and len(observation_space.shape) == 1):
        raise _unsupported(policy, "observation", observation_space, "a Box of one dimension")
    if not (isinstance(action_space, spaces.Discrete) and action_space.start == 0):
        raise _unsupported(policy, "action", action_space, "a Discrete that starts at 0")
    return {"obs_shape": int(observation_space.shape[0]), "action_shape": int(action_space.n)}


def _unsupported(policy: str, which: str, space: Any, supported: str) -> ConfigError:
    return ConfigError(
        f"policy type {policy} cannot use the {which} space {space}: it supports {supported}; "
        "flatten or discretize it with a wrapper (env.wrappers), or choose another policy",
        path="env.env_id",
        expected=supported,
        found=str(space),
    )
