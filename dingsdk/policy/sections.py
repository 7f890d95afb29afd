"""The config section ``policy``: the keys that every policy has, and the sections of workers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from msgspec import Meta

from dingsdk.config import (
    Count,
    Finite,
    Part,
    PartSection,
    Positive,
    Section,
    Share,
    SmallCount,
    Whole,
    preset,
)
from dingsdk.config.schedule import check_ends, scheduled_value
from dingsdk.config.section import LARGEST_INT
from dingsdk.errors import ConfigError
from dingsdk.policy.spaces import Normalized, check_shape

Shape = Count | str | Annotated[list[Count], Meta(min_length=1, max_length=4)] | dict[str, Any]
"""The shape of an observation, as ``make_encoder`` takes it."""
# No pattern for the text: collecting garbage after one is read crashes (msgspec 0.22).
Effective = Annotated[float, Meta(ge=1e-6)]
"""A number that is not rounded away where it is added to 1, or multiplied, in float32."""
Weight = Annotated[float, Meta(ge=0, le=LARGEST_INT)]
"""A finite number, not below 0."""


class ModelSection(Section, frozen=True, kw_only=True, dict=True):
    """Section ``policy.model``.

    Attributes:
        obs_shape: Shape of an observation: the length of a vector; an image as ``[h, w]``,
            ``[c, h, w]``, ``[h, w, c]`` or, in a stack, ``[k, h, w, c]``; ``Discrete(n)`` for one
            of n numbers, ``Discrete(n, start=s)`` if the first is not 0; a dict of shapes by
            name. None: read from the env.
        action_shape: Number of actions; None: read from the env.
        action_start: The first action, or a list of them; None: read from the env, or else 0.
        encoder_hidden_size_list: Widths of the hidden layers; for images they follow the
            convolutions.
    """

    clip: ClassVar[float | None] = None
    """Largest magnitude of normalised observations; None: they are not normalised."""

    obs_shape: Shape | None = None
    action_shape: Count | Annotated[list[Count], Meta(min_length=1, max_length=1)] | None = None
    action_start: int | Annotated[list[int], Meta(min_length=1)] | None = None
    encoder_hidden_size_list: list[Count] = msgspec.field(default_factory=lambda: [64, 64])

    def __post_init__(self) -> None:
        if self.obs_shape is not None:
            check_shape(self.obs_shape)

    @property
    def observation(self) -> Any:
        """``obs_shape``, as ``make_encoder`` takes it.

        Raises:
            ConfigError: it was neither given nor read from an env.
        """
        shape = self._given("obs_shape")
        return shape if self.clip is None else Normalized(shape, self.clip)

    def normalized(self, clip: float) -> Self:
        """Return the section whose ``observation`` is normalised, and clipped to ``clip``.

        For the policy, which reads ``policy.normalize``; a config cannot set it here.
        """
        found = msgspec.structs.replace(self)
        msgspec.structs.force_setattr(found, "clip", clip)
        return found

    @property
    def action_count(self) -> int:
        """``action_shape`` as a number.

        Raises:
            ConfigError: it was neither given nor read from an env.
        """
        found = self._given("action_shape")
        return int(found[0] if isinstance(found, list) else found)

    @property
    def first_actions(self) -> list[int]:
        """``action_start`` as a list with one entry for each number of an action."""
        found = 0 if self.action_start is None else self.action_start
        if isinstance(found, list):
            return found
        return [found] * (len(self.action_shape) if isinstance(self.action_shape, list) else 1)

    def _given(self, key: str) -> Any:
        value = getattr(self, key)
        if value is None:
            raise ConfigError(
                f"policy.model.{key} is not set; give it, or fill the section from the env's "
                "spaces with the policy's model_from_spaces",
                path=f"policy.model.{key}",
            )
        return value


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
        n_episode: Episodes of one collect; None for collectors that count samples. The updates of
            ``learn.update_per_collect`` are then for this many episodes, in both modes.
        unroll_len: Least number of env steps of a trajectory that becomes train samples; it may be
            shorter at the end of an episode. For policies whose samples have several steps;
            ``dqn``, ``ppo`` and ``sac`` always make one sample per step.
        added_columns: Columns that collectors add to samples: ``env_id``, and ``episode_return``,
            the return of the whole episode; with it, trajectories are only cut at episode ends.
            Columns that the replay buffer needs are added even if they are not listed here.
        collector: The serial collector by ``type``, with its options.
        parallel_collector: The collector of the workers in parallel mode by ``type``, with its
            options. If ``collector`` is not ``sample``, ``zergling`` is replaced by ``serial``,
            which runs ``collector``.
    """

    n_sample: Count | None = None
    n_episode: Count | None = None
    unroll_len: Count = 1
    added_columns: list[Literal["env_id", "episode_return"]] = msgspec.field(default_factory=list)
    collector: Annotated[dict[str, Any], Part("collectors")] = preset("sample")
    parallel_collector: Annotated[dict[str, Any], Part("parallel_collectors")] = preset("zergling")


class EvalSection(Section, frozen=True, kw_only=True):
    """Section ``policy.eval``.

    Attributes:
        evaluator: The evaluator of serial and parallel mode by ``type``, with its options.
    """

    evaluator: Annotated[dict[str, Any], Part("evaluators")] = preset("interaction")


class DemonstrationsSection(Section, frozen=True, kw_only=True):
    """Section ``policy.other.demonstrations``: recorded data for training beside collected data.

    Attributes:
        path: Data set with the demonstrations, as ``dingsdk.worker.read_dataset`` takes it. Empty
            for no demonstrations.
        share: Share of each batch that is drawn from the demonstrations: ``round(share *
            learn.batch_size)`` samples of every batch. They are in a table of their own, so
            collected samples never replace them.
        preload: Whether to push the demonstrations into the replay buffer before training instead,
            where they are rows as any others.
        digest: Digest of the data, set when the config is compiled; other data is then refused, for
            example when the run is resumed. None for any data.
    """

    path: str = ""
    share: Annotated[float, Meta(gt=0, lt=1)] | None = None
    preload: bool = False
    digest: str | None = None

    def __post_init__(self) -> None:
        if not self.path and (self.share is not None or self.preload):
            raise ValueError("path is empty, but share or preload is set; name the data set")
        if self.share is not None and self.preload:
            raise ValueError(
                f"share is {self.share:g}, but preload is true: demonstrations are either a share "
                "of each batch or rows of the buffer; leave one of them out"
            )
        if self.path and self.share is None and not self.preload:
            raise ValueError(
                f"share is not set, but path is {self.path!r}; give the share of the "
                "demonstrations in each batch, such as 0.25, or set preload to true"
            )


class OtherSection(Section, frozen=True, kw_only=True):
    """Section ``policy.other``.

    Attributes:
        replay_buffer: The replay buffer by ``type``, with its options.
        demonstrations: Recorded data for training beside the collected data.
        commander: The commander of parallel mode by ``type``, with its options.
        serial_commander: The commander of serial mode by ``type``, with its options.
        league: The league, which pairs opponents in envs of several players, by ``type``.
    """

    replay_buffer: Annotated[dict[str, Any], Part("buffers")] = preset("naive")
    demonstrations: DemonstrationsSection = DemonstrationsSection()
    commander: Annotated[dict[str, Any], Part("commanders")] = preset("solo")
    serial_commander: Annotated[dict[str, Any], Part("serial_commanders")] = preset("base")
    league: Annotated[dict[str, Any], Part("leagues")] = preset("one_vs_one")


EpsilonType = Literal["constant", "exp", "linear", "cosine", "exponential"]
"""How epsilon changes; see ``EpsilonSchedule``."""
_DECAY = 10_000


class EpsilonSchedule(Section, frozen=True, kw_only=True):
    """Epsilon over env steps; call it with the number of env steps collected so far.

    Attributes:
        type: ``linear``, ``cosine`` and ``exponential`` go from ``start`` to ``end`` in ``decay``
            env steps and stay there; ``exp`` approaches ``end`` with the time constant ``decay``;
            ``constant`` is ``start`` throughout.
        start: Epsilon before the first step.
        end: Final epsilon.
        decay: Env steps from ``start`` to ``end``, or the time constant; see ``type``.
        env_steps: Another name of ``decay``, which other schedules have; if set, it counts.
    """

    type: EpsilonType = "exp"
    start: Share = 1.0
    end: Share = 0.05
    decay: Positive = _DECAY
    env_steps: Count | None = None

    def __post_init__(self) -> None:
        check_ends(self.type, self.start, self.end)
        if self.env_steps is not None and self.decay not in (_DECAY, self.env_steps):
            raise ValueError(
                f"decay is {self.decay} and env_steps, its other name, {self.env_steps}; state one "
                "of them"
            )

    def __call__(self, envstep: float) -> float:
        """Return epsilon in [0, 1] after ``envstep`` env steps; negative counts as 0."""
        duration = self.decay if self.env_steps is None else self.env_steps
        return scheduled_value(self.type, self.start, self.end, duration, envstep)


class NormalizeSection(Section, frozen=True, kw_only=True):
    """Section ``policy.normalize``: what is scaled by running statistics of the collected steps.

    Attributes:
        obs: Whether networks subtract the mean from vectors of observations, and divide by the
            deviation. Images, and discrete observations, are not changed.
        reward: Whether the rewards that are trained on are divided by the deviation of the
            discounted return. Returns in logs and results are not changed.
        clip: Largest magnitude of a scaled number of an observation, and of a scaled reward.
    """

    obs: bool = False
    reward: bool = False
    clip: Finite = 10.0


class PolicySection(PartSection, frozen=True, kw_only=True):
    """Section ``policy``; policy classes add their own keys.

    Attributes:
        cuda: Whether the networks run on the GPU.
        compile: Whether ``torch.compile`` compiles the networks. The first use in each process
            then takes up to a minute longer. Small networks on the CPU become slower.
        on_policy: Whether training uses only data that the newest policy collected.
        priority: Whether training gives the replay buffer a priority for each sample; for buffers
            that draw samples by priority, such as ``advanced``.
        discount_factor: Gamma, the weight of the next step's return.
        nstep: Env steps whose rewards are summed before the bootstrap value; fewer near the end of
            a piece of a trajectory. Collectors cut trajectories after ``n_sample`` /
            ``collector_env_num`` steps.
        normalize: Observations and rewards that are scaled by running statistics.
        model: Shape of the networks; values of None are read from the env's spaces.
        learn: How the policy is trained.
        collect: How training data is collected.
        eval: How the policy is evaluated.
        other: Replay buffer, commander and schedules.
        unroll_len: Replaces ``collect.unroll_len`` if it is set.
        random_collect_size: Env steps at the start of a run whose actions are drawn uniformly from
            the action space. Only for off-policy algorithms.
        traj_len_inf: Whether trajectories are cut only at episode ends. A replay buffer that
            needs rows in order sets it.
    """

    cuda: bool = False
    compile: bool = False
    on_policy: bool = False
    priority: bool = False
    discount_factor: Share = 0.99
    nstep: SmallCount = 1
    normalize: NormalizeSection = NormalizeSection()
    model: dict[str, Any] = msgspec.field(default_factory=dict)
    learn: LearnSection = LearnSection()
    collect: CollectSection = CollectSection()
    eval: EvalSection = EvalSection()
    other: OtherSection = OtherSection()
    unroll_len: Count | None = None
    random_collect_size: Whole = 0
    traj_len_inf: bool = False

    def __post_init__(self) -> None:
        if not self.random_collect_size:
            return
        if self.on_policy:
            raise ValueError(
                f"random_collect_size is {self.random_collect_size}, but policy type {self.type!r} "
                "trains only on its own actions; set it to 0"
            )
        if not isinstance(self.model, ModelSection):
            raise ValueError(
                f"random_collect_size is {self.random_collect_size}, but policy type {self.type!r} "
                "declares no ModelSection with its action space; set it to 0"
            )
