"""The config section ``policy``: what every policy has, and the sections of the workers in it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from dingsdk.config import Count, Held, Part, PartSection, Section, Share, preset


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
        collector: The collector of serial mode by ``type``, with its options.
        parallel_collector: The collector of parallel mode by ``type``, with its options.
    """

    n_sample: Count | None = None
    n_episode: Count | None = None
    unroll_len: Count = 1
    collector: Annotated[dict[str, Any], Part("collectors")] = preset("sample")
    parallel_collector: Annotated[dict[str, Any], Part("parallel_collectors")] = preset("zergling")


class EvalSection(Section, frozen=True, kw_only=True):
    """Section ``policy.eval``.

    Attributes:
        evaluator: The evaluator by ``type``, with its options.
    """

    evaluator: Annotated[dict[str, Any], Part("evaluators")] = preset("interaction")


class OtherSection(Section, frozen=True, kw_only=True):
    """Section ``policy.other``.

    Attributes:
        replay_buffer: The replay buffer by ``type``, with its options.
        commander: The commander of parallel mode by ``type``, with its options.
    """

    replay_buffer: Annotated[dict[str, Any], Part("buffers")] = preset("naive")
    commander: Annotated[dict[str, Any], Part("commanders")] = preset("solo")


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
