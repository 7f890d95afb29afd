"""Acts for the modes ``collect`` and ``eval`` of a policy, and makes samples of what it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dingsdk.data import SampleBatch
from dingsdk.data.collected import COLLECTED, with_collected
from dingsdk.data.columns import mismatch, rows_to_columns
from dingsdk.data.pytree import flatten, part_of
from dingsdk.errors import PolicyOutputError, PolicyOutputTypeError
from dingsdk.policy.memory import Memory
from dingsdk.policy.normalization import Normalizer
from dingsdk.policy.threads import isolated
from dingsdk.policy.torch_errors import misfit, missing_column

if TYPE_CHECKING:
    from dingsdk.policy.base import BasePolicy


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
