"""Makes the modes of a policy from the methods of ``BasePolicy``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from dingsdk.config import deep_merge_dicts, to_easydict
from dingsdk.data import SampleBatch, collate
from dingsdk.data.capture import Savable, capture
from dingsdk.data.collected import COLLECTED, DISCOUNTED_RETURN, with_collected
from dingsdk.data.columns import mismatch, rows_to_columns
from dingsdk.data.pytree import flatten, map_leaves, named_leaves, part_of
from dingsdk.data.seeding import derive_seed
from dingsdk.errors import (
    ConfigError,
    NonFiniteError,
    PolicyOutputError,
    PolicyOutputTypeError,
    message_of,
)
from dingsdk.policy.adam import Adam
from dingsdk.policy.modes import FIELDS, CollectMode, CommandMode, EvalMode, LearnMode, piece_with
from dingsdk.policy.normalization import Normalizer, scaled_in
from dingsdk.policy.scheduled import ScheduledNumbers
from dingsdk.policy.threads import isolated, own_settings
from dingsdk.policy.torch_errors import is_out_of_memory, misfit, missing_column, no_room
from dingsdk.policy.weights import load_state

if TYPE_CHECKING:
    from dingsdk.policy.base import BasePolicy

_LEAST_PINNED_BYTES = 64 << 10
"""Smaller columns are copied to the GPU without page-locked memory, which would be slower."""


class ModeAdapter:
    """Builds the networks of a policy, and serves its modes: batches, states and attributes.

    Args:
        policy: The policy, with section, device and random generator.
        cfg: As ``BasePolicy``, like ``enable_field`` and ``seed``.

    Raises:
        ConfigError: an unknown mode, or networks that do not fit memory.
    """

    def __init__(
        self,
        policy: BasePolicy,
        cfg: Mapping[str, Any],
        enable_field: Sequence[str] | None,
        seed: int | None,
    ) -> None:
        self._policy, section = policy, policy.section
        self._is_on_gpu = policy.device.type != "cpu"
        self._fields = frozenset(FIELDS if enable_field is None else enable_field)
        if unknown := self._fields - set(FIELDS):
            raise ConfigError(
                f"unknown policy modes {sorted(unknown)}; modes are {', '.join(FIELDS)}",
                path="policy",
                known=list(FIELDS),
            )
        self._scheduled = ScheduledNumbers(section)
        self._normalizer: Normalizer | None = None
        if policy.learns:
            # Until a block of this size was freed once, glibc returns memory to the system and
            # requests the same memory again in each update: for SAC 700 page faults, 1.3 of 11 ms.
            torch.empty(6 * 2**20, device="cpu")
        if self._fields - {"command"}:
            self._build(seed)
            if section.normalize.obs or section.normalize.reward:
                name = type(policy).__name__
                self._normalizer = Normalizer(name, section, policy.state(), policy.device)
            self._scheduled.bind(policy.state().values())
        if section.compile:
            _compile(policy)
        self._actors = {
            field: Actor(policy, self._normalizer, explore=field == "collect")
            for field in ("collect", "eval")
        }
        self._attributes = {
            "cfg": to_easydict(deep_merge_dicts(policy.config, cfg)),
            "device": str(policy.device),
            "on_policy": section.on_policy,
            "priority": section.priority,
            "batch_size": section.learn.batch_size,
            "n_sample": section.collect.n_sample,
            "n_episode": section.collect.n_episode,
            "unroll_len": section.collect.unroll_len,
            "piece": piece_with(policy.piece, section.traj_len_inf),
        }

    def _build(self, seed: int | None) -> None:
        try:
            with torch.random.fork_rng(devices=[]), own_settings():
                if seed is None:
                    torch.seed()
                else:
                    torch.manual_seed(derive_seed(seed, "policy", "network"))
                self._policy.build()
        except (RuntimeError, MemoryError) as error:
            # Sizes of 10**15 and more raise an error about an overflow.
            if not (is_out_of_memory(error) or "overflow" in message_of(error)):
                raise
            what = "the networks of policy.model do"
            raise no_room(self._policy, what, "policy.model", error) from error

    def learn_mode(self) -> LearnMode:
        """Return the functions for learners, or raise ConfigError if the mode was not asked for."""
        policy = self._policy
        return LearnMode(
            forward=self._train,
            reset=policy.reset,
            info=lambda: f"{type(policy).__name__}\n{policy.section}",
            monitor_vars=lambda: list(policy.monitored),
            state_dict=lambda: {name: part.state_dict() for name, part in policy.state().items()},
            load_state_dict=self._load_state_dict,
            observe=None if self._normalizer is None else self._observe,
            **self._attributes_of("learn"),
        )

    def collect_mode(self) -> CollectMode:
        """Return the functions for collectors; errors as ``learn_mode``."""
        actor = self._actors["collect"]
        return CollectMode(
            process_transition=actor.process_transition,
            get_train_sample=actor.get_train_sample,
            make_transitions=actor.make_transitions,
            make_samples=actor.make_samples,
            **self._acting("collect"),
        )

    def eval_mode(self) -> EvalMode:
        """Return the functions for evaluators; errors as ``learn_mode``."""
        return EvalMode(**self._acting("eval"))

    def command_mode(self) -> CommandMode:
        """Return the functions for commanders; errors as ``learn_mode``."""
        self._check_serves("command")
        return CommandMode(
            get_setting_learn=lambda info: {},
            get_setting_collect=self._setting,
            get_setting_eval=lambda info: {},
        )

    def _acting(self, field: str) -> dict[str, Any]:
        """Return the functions that both acting modes have."""
        actor, policy = self._actors[field], self._policy
        return {
            "forward": actor.forward,
            "forward_batch": actor.forward_batch,
            "reset": actor.reset,
            "state_dict": lambda: {"model": policy.state()["model"].state_dict()},
            "load_state_dict": lambda state: load_state({"model": policy.state()["model"]}, state),
            **self._attributes_of(field),
        }

    def _attributes_of(self, field: str) -> dict[str, Any]:
        self._check_serves(field)
        return {"get_attribute": self._get_attribute, "set_attribute": self._set_attribute}

    def _check_serves(self, field: str) -> None:
        if field not in self._fields:
            raise ConfigError(
                f"this policy was created without its {field} mode (it has "
                f"{', '.join(sorted(self._fields))}); add {field!r} to enable_field",
                path="policy",
            )

    def _setting(self, info: Mapping[str, Any]) -> dict[str, Any]:
        found = self._policy.setting(info)
        if size := self._policy.section.random_collect_size:
            found = {**found, "is_random": info.get("envstep", 0) < size}
        return found

    @isolated
    def _train(self, data: Any, **_: Any) -> dict[str, Any] | list[dict[str, Any]]:
        policy, batch = self._policy, collate(data)
        self._scheduled.check_known()
        try:
            if self._is_on_gpu:
                batch = map_leaves(self._staged, batch)
            if self._normalizer is not None:
                batch = self._normalizer.scale_batch(batch)
            return policy.learn(batch)
        except KeyError as error:
            raise missing_column(policy, error, batch) from error
        except NonFiniteError as error:
            bad = [key for key, column in named_leaves(batch) if not _is_finite(column)]
            if not bad:
                raise
            raise NonFiniteError(
                f"{error}; the batch's {', '.join(bad)} hold NaN or infinity: look at the env",
                **{**error.facts, "key": bad[0]},
            ) from error
        except (RuntimeError, TypeError, IndexError, MemoryError) as error:
            if is_out_of_memory(error):
                rows = len(flatten(batch)[0][1])
                what = f"an update on {rows} samples (policy.learn.batch_size) does"
                raise no_room(policy, what, "policy.learn.batch_size", error) from error
            raise misfit(policy, "batch does", batch, error) from error

    def _staged(self, leaf: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the GPU; it is copied while the host prepares the next one."""
        # CUDA copies in the background only from pinned memory; the driver stages small copies.
        if leaf.nbytes >= _LEAST_PINNED_BYTES:
            leaf = leaf.pin_memory()
        return leaf.to(self._policy.device, non_blocking=True)

    @isolated
    def _observe(self, samples: Any) -> None:
        """Update the statistics of ``policy.normalize``; see ``LearnMode``."""
        assert self._normalizer is not None
        names = ("obs", DISCOUNTED_RETURN, "mask")
        for batch in _batches(samples):
            columns = {name: batch.columns[name] for name in names if name in batch.columns}
            steps = SampleBatch.trusted(columns, len(batch)).tensors()
            self._normalizer.observe(self._policy.steps_of(steps))

    def _load_state_dict(self, state: Mapping[str, Any]) -> None:
        parts = self._policy.state()
        load_state(parts, state)
        self._scheduled.restore()
        missing = parts.keys() - state.keys()
        self._policy.on_loaded(missing)
        own = scaled_in(parts["model"])
        for name in missing:
            for target, source in zip(scaled_in(parts[name]), own, strict=False):
                target.load_state_dict(source.state_dict())

    def _get_attribute(self, key: str) -> Any:
        policy = self._policy
        if key == "acting_state":
            memories = {field: memory.state_dict() for field, memory in self._memories()}
            own = {name: part.state_dict() for name, part in policy.acting_parts.items()}
            return {"rng": capture(policy.rng), "memories": memories, **own}
        if key == "norms" and policy.learns:
            return dict(self._norms())
        if key == "statistics" and self._normalizer is not None:
            return self._normalizer.statistics
        if key == "scheduled" and policy.learns:
            return dict(self._scheduled.values)
        try:
            return self._attributes[key]
        except KeyError:
            raise NotImplementedError(
                f"{type(policy).__name__} has no attribute {key!r}; it has "
                f"{', '.join(sorted(self._attributes))}"
            ) from None

    def _set_attribute(self, key: str, value: Any) -> None:
        policy = self._policy
        if key == "average_over_ranks" and policy.is_data_parallel:
            for part in policy.state().values():
                if isinstance(part, Adam):
                    part.average = value
        elif key == "env_steps" and policy.learns:
            self._scheduled.advance(int(value))
        elif key == "learning_rate_factor" and policy.learns:
            self._scale_rates(float(value))
        elif key == "statistics" and self._normalizer is not None:
            self._normalizer.statistics = value
        elif key == "acting_state":
            for field, memory in self._memories():
                memory.load_state_dict(value["memories"][field])
            policy.rng = capture(value["rng"])
            for name, acting in policy.acting_parts.items():
                acting.load_state_dict(value[name])
        elif key in {"n_sample", "n_episode", "unroll_len", "batch_size"}:
            self._attributes[key] = value
        else:
            raise NotImplementedError(f"{type(policy).__name__}'s attribute {key!r} cannot be set")

    def _memories(self) -> Iterator[tuple[str, Memory]]:
        for field, actor in self._actors.items():
            if actor.memory is not None:
                yield field, actor.memory

    def _scale_rates(self, factor: float) -> None:
        """Set the learning rates to ``factor`` times those of the config."""
        if self._scheduled.sets_rates:
            raise ConfigError(
                "learning_rate_factor cannot be set: a learning rate of policy.learn is a "
                "schedule; change that",
                path="policy.learn",
            )
        for part in self._policy.state().values():
            if isinstance(part, Adam):
                part.scale_rate(factor)
            elif isinstance(part, torch.optim.Optimizer):
                for group in part.param_groups:
                    # torch's own schedulers use this key.
                    group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor

    def _norms(self) -> Iterator[tuple[str, float]]:
        """Yield the Euclidean norm of each module's parameters and each optimizer's gradient."""
        for name, part in self._policy.state().items():
            if isinstance(part, Adam):
                yield f"grad_norm/{name}", part.gradient_norm
            elif isinstance(part, torch.optim.Optimizer):
                held = [each.grad for group in part.param_groups for each in group["params"]]
                yield f"grad_norm/{name}", _norm([each for each in held if each is not None])
            elif isinstance(part, torch.nn.Module):
                yield f"param_norm/{name}", _norm([each.detach() for each in part.parameters()])


def _compile(policy: BasePolicy) -> None:
    compilers = (os.environ.get("CXX", "g++"), "clang++")
    if policy.device.type == "cpu" and not any(map(shutil.which, compilers)):
        raise ConfigError(
            "policy.compile is true, but torch.compile needs a C++ compiler on the CPU, and "
            f"there is neither {compilers[0]} nor clang++; install one, or set it to false",
            path="policy.compile",
        )
    for part in vars(policy).values():
        if isinstance(part, torch.nn.Module):
            for name in ("forward", "unroll"):
                if hasattr(part, name):
                    setattr(part, name, torch.compile(getattr(part, name)))


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    norms = [torch.linalg.vector_norm(each) for each in tensors]
    return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0


def _batches(samples: Any) -> Iterator[SampleBatch]:
    """Yield samples in columns: a SampleBatch, a list of dicts, or a list of such episodes."""
    if isinstance(samples, SampleBatch):
        yield samples
    elif samples and isinstance(samples[0], Mapping):
        yield SampleBatch.from_rows(samples)
    else:
        for episode in samples:
            yield from _batches(episode)


def _is_finite(column: Any) -> bool:
    return not isinstance(column, torch.Tensor) or bool(torch.isfinite(column).all())


class Actor:
    """Serves one acting mode of a policy: dict form, recurrent states, checks of what is returned.

    The public methods are functions of ``CollectMode`` and ``EvalMode``, with their names.

    Args:
        policy: The policy, whose ``build`` was called.
        normalizer: Its running statistics; None if it has none.
        explore: Whether the mode is ``collect``.

    Attributes:
        memory: Recurrent states of the mode's envs; None if the policy has none. One per mode, as
            envs for collecting and envs for evaluating have the same ids.
        forward_batch: Function of the mode.
    """

    def __init__(self, policy: BasePolicy, normalizer: Normalizer | None, *, explore: bool) -> None:
        self._policy, self._normalizer, self._explore = policy, normalizer, explore
        self.memory = Memory(policy.state_size) if policy.state_size else None
        self.forward_batch = isolated(self._act, has_gradients=False)

    def _act(
        self,
        obs: Any,
        env_ids: Sequence[int] | None = None,
        is_random: bool = False,
        **setting: Any,
    ) -> dict[str, NDArray[Any]]:
        policy, explore, memory = self._policy, self._explore, self.memory
        if is_random and explore:
            for _, leaf in flatten(obs):
                policy.check_finite(np.asarray(leaf), obs, env_ids)
            return {"action": policy.random_actions(obs, env_ids)}
        try:
            if memory is None:
                return self._checked(policy.act(obs, env_ids, explore=explore, **setting))
            ids = range(len(flatten(obs)[0][1])) if env_ids is None else env_ids
            state = memory.read(ids)
            output = policy.act(obs, env_ids, explore=explore, state=state, **setting)
            found = self._checked(output)
        except (RuntimeError, TypeError, IndexError) as error:
            raise misfit(policy, "observations do", {"obs": obs}, error) from error
        memory.write(ids, self._next_state(found, state.shape))
        return {**found, "state": state} if explore else found

    def forward(self, obs: Mapping[int, Any], **setting: Any) -> dict[int, dict[str, Any]]:
        """The dict form of ``act``: ``{env_id: obs} -> {env_id: {"action": ...}}``."""
        if not isinstance(obs, Mapping):
            raise mismatch(
                f"{'collect' if self._explore else 'eval'}_mode.forward",
                "obs",
                "a dict {env_id: observation}",
                type(obs).__name__,
                "pass columns of observations to forward_batch",
            )
        if not obs:
            return {}
        env_ids = list(obs)
        stacked = rows_to_columns([{"obs": value} for value in obs.values()])["obs"]
        columns = self.forward_batch(stacked, env_ids, **setting)
        return {
            env_id: {key: column[row] for key, column in columns.items()}
            for row, env_id in enumerate(env_ids)
        }

    def reset(self, env_ids: Sequence[int] | None = None) -> None:
        """Clear what is stored for these envs (None: all), whose episodes ended."""
        if self.memory is not None:
            self.memory.reset(env_ids)
        self._policy.reset(env_ids)

    def make_transitions(self, obs: Any, output: Mapping[str, Any], step: Any) -> dict[str, Any]:
        """Call ``transitions``; random actions of a collector get zeros as recurrent state."""
        size = self._policy.state_size
        if size and "state" not in output:
            rows = np.shape(output["action"])[: np.ndim(step.reward)]
            output = {**output, "state": np.zeros((*rows, size), np.float32)}
        return self._policy.transitions(obs, output, step)

    def process_transition(
        self, obs: Any, output: Mapping[str, Any], timestep: Any
    ) -> dict[str, Any]:
        """The dict form of ``transitions``."""
        done = bool(timestep.done)
        terminated = bool(timestep.info.get("terminated", done))
        step = SimpleNamespace(
            final_obs=timestep.obs,
            reward=timestep.reward,
            terminated=terminated,
            truncated=done and not terminated,
        )
        return self.make_transitions(obs, output, step)

    def make_samples(self, columns: Mapping[str, Any], ends: NDArray[np.int64]) -> SampleBatch:
        """Call ``samples``, with scaled rewards if they are normalised."""
        # The caller adds the columns that collectors record, as samples may be of several steps.
        rest = {name: column for name, column in columns.items() if name not in COLLECTED}
        if self._normalizer is not None:
            self._normalizer.scale_collected(rest)
        try:
            return self._policy.samples(rest, ends)
        except KeyError as error:
            raise missing_column(self._policy, error, rest) from error

    def get_train_sample(self, piece: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The dict form of ``samples`` for one piece."""
        if not piece:
            return []
        columns, ends = rows_to_columns([dict(row) for row in piece]), np.array([len(piece)])
        made = self.make_samples(columns, ends)
        if isinstance(made, SampleBatch):
            own = {name: columns[name] for name in COLLECTED if name in columns}
            made = with_collected(made, own, ends)
        # Rows of tensors, as in transitions of the dict form; they are views of the columns.
        tensors = made.tensors()
        return [part_of(tensors, row) for row in range(len(made))]

    def _checked(self, output: Any) -> dict[str, Any]:
        if isinstance(output, dict):
            return output
        raise PolicyOutputTypeError(
            f"{type(self._policy).__name__}.act must return a dict with an 'action'; it returned a "
            f"{type(output).__name__}",
            key="action",
            expected="dict",
            found=type(output).__name__,
        )

    def _next_state(self, output: dict[str, Any], shape: tuple[int, ...]) -> NDArray[np.float32]:
        found = output.pop("next_state", None)
        if isinstance(found, np.ndarray) and found.shape == shape:
            return found
        shown = type(found).__name__ if not isinstance(found, np.ndarray) else found.shape
        raise PolicyOutputError(
            f"{type(self._policy).__name__} is recurrent, so act must return next_state as an "
            f"array of shape {shape}; found {shown}",
            key="next_state",
            expected=shape,
            found=shown,
        )


class Memory(Savable):
    """Recurrent states by env id; an env without one has a state of zeros.

    Not safe for concurrent callers.

    Args:
        size: Length of a state, >= 1.
    """

    saved = ("_rows", "_states")

    def __init__(self, size: int) -> None:
        self.size = size
        self._rows: dict[int, int] = {}
        self._states = np.zeros((8, size), np.float32)

    def read(self, env_ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the states of these envs as a new array ``float32[n, size]``."""
        rows = self._rows_of(env_ids)  # may replace the array
        return self._states[rows]

    def write(self, env_ids: Sequence[int], states: NDArray[np.float32]) -> None:
        """Set the states of these envs to ``float32[n, size]``."""
        rows = self._rows_of(env_ids)
        self._states[rows] = states

    def reset(self, env_ids: Sequence[int] | None = None) -> None:
        """Set the states of these envs, or of all (None), to zeros; unknown ids have no effect."""
        rows = self._rows.values() if env_ids is None else map(self._rows.get, env_ids)
        self._states[[row for row in rows if row is not None]] = 0

    def _rows_of(self, env_ids: Sequence[int]) -> list[int]:
        rows = self._rows
        try:
            return [rows[env_id] for env_id in env_ids]
        except KeyError:
            for env_id in env_ids:
                rows.setdefault(int(env_id), len(rows))
            if len(rows) > len(self._states):
                larger = np.zeros((2 * len(rows), self.size), np.float32)
                larger[: len(self._states)] = self._states
                self._states = larger
            return [rows[env_id] for env_id in env_ids]
