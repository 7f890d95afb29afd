"""The same operations with peers on the small rows (W1), as each peer's documentation says.

Peers without the operation of a section are left out of it. A peer that is not installed or fails
is listed in the report.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from _buffers.measure import Entrant, Report
from _buffers.workloads import CHUNK, Columns, Workload

ALPHA, BETA = 0.6, 0.4


def entrants(section: str, load: Workload, report: Report) -> list[Entrant]:
    """Return the peers that take part in a section, set up and full."""
    found = []
    for name, sections in _PEERS.items():
        if section not in sections:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                entrant = sections[section](load)
                entrant.run(*entrant.arguments[0])
        # An error of one peer must not stop the others; it is reported.
        except Exception as error:
            # Only the first part of the message, which is the reason; some messages are long.
            reason = str(error).split("\n", 1)[0] or type(error).__name__
            report.lacks(f"{name} in {section}: {reason} (see benchmarks/requirements-peers.txt)")
            continue
        found.append(Entrant(name, entrant.run, entrant.arguments))
    return found


def _all_columns(load: Workload) -> Columns:
    columns = load.empty(load.capacity)
    chunk = next(load.stream())
    return {name: np.resize(chunk[name], column.shape) for name, column in columns.items()}


def _priorities(size: int = 256) -> list[Any]:
    return list(np.random.default_rng(1).random((64, size)).astype(np.float32))


# Stable-Baselines3 -----------------------------------------------------------------------


def _sb3(load: Workload, envs: int) -> tuple[Any, list[tuple[Any, ...]]]:
    import gymnasium as gym
    from stable_baselines3.common.buffers import ReplayBuffer

    buffer = ReplayBuffer(
        load.capacity,
        gym.spaces.Box(-np.inf, np.inf, load.obs_shape, np.float32),
        gym.spaces.Discrete(2),
        device="cpu",
        n_envs=envs,
        handle_timeout_termination=False,
    )
    chunks: list[tuple[Any, ...]] = [
        (
            chunk["obs"][:envs],
            chunk["next_obs"][:envs],
            chunk["action"][:envs, None],
            chunk["reward"][:envs],
            chunk["done"][:envs],
            [{}] * envs,
        )
        for chunk in load.chunks()
    ]
    for name in ("observations", "next_observations", "actions", "rewards", "dones"):
        getattr(buffer, name)[...] = 1
    buffer.full = True
    return buffer, chunks


def _sb3_push(load: Workload, envs: int = CHUNK) -> Entrant:
    buffer, chunks = _sb3(load, envs)
    return Entrant("", buffer.add, chunks)


def _sb3_uniform(load: Workload) -> Entrant:
    # All rows come from one env: with 64 envs sampling takes twice as long.
    buffer, _ = _sb3(load, 1)
    return Entrant("", lambda: buffer.sample(256))


# cpprb -----------------------------------------------------------------------------------


def _cpprb(load: Workload, kind: str, **kwargs: Any) -> Any:
    import cpprb

    form = {
        name: {"shape": column.shape[1:], "dtype": column.dtype}
        if column.ndim > 1
        else {"dtype": column.dtype}
        for name, column in load.empty(1).items()
    }
    buffer = getattr(cpprb, kind)(load.capacity, form, **kwargs)
    buffer.add(**_all_columns(load))
    return buffer


def _cpprb_push(load: Workload) -> Entrant:
    buffer = _cpprb(load, "ReplayBuffer")
    return Entrant("", lambda chunk: buffer.add(**chunk), [(chunk,) for chunk in load.chunks()])


def _cpprb_one(load: Workload) -> Entrant:
    buffer = _cpprb(load, "ReplayBuffer")
    return Entrant("", lambda row: buffer.add(**row), [(row,) for row in load.rows()])


def _numpy_to_torch(sample: dict[str, Any]) -> dict[str, torch.Tensor]:
    # Without cpprb's indices: they are uint64, which torch hardly supports, and not trained on.
    return {name: torch.from_numpy(x) for name, x in sample.items() if name != "indexes"}


def _cpprb_uniform(load: Workload) -> Entrant:
    buffer = _cpprb(load, "ReplayBuffer")
    return Entrant("", lambda: _numpy_to_torch(buffer.sample(256)))


def _cpprb_priority(load: Workload) -> Entrant:
    buffer = _cpprb(load, "PrioritizedReplayBuffer", alpha=ALPHA)

    def run(priorities: Any) -> object:
        sample = buffer.sample(256, beta=BETA)
        buffer.update_priorities(sample["indexes"], priorities)
        return _numpy_to_torch(sample)

    return Entrant("", run, [(each,) for each in _priorities()])


# Tianshou --------------------------------------------------------------------------------


def _tianshou_batch(columns: Columns) -> Any:
    from tianshou.data import Batch

    return Batch(
        obs=columns["obs"],
        obs_next=columns["next_obs"],
        act=columns["action"],
        rew=columns["reward"],
        terminated=columns["done"],
        truncated=np.zeros_like(columns["done"]),
        done=columns["done"],
    )


def _tianshou(load: Workload, kind: str, **kwargs: Any) -> Any:
    from tianshou import data

    buffer = getattr(data, kind)(load.capacity, **kwargs)
    # As its from_data does; a million calls of add() would take minutes.
    buffer.set_batch(_tianshou_batch(_all_columns(load)))
    buffer._size = load.capacity
    return buffer


def _tianshou_one(load: Workload) -> Entrant:
    buffer = _tianshou(load, "ReplayBuffer")
    return Entrant("", buffer.add, [(row,) for row in _tianshou_batch(next(load.stream()))])


def _tianshou_tensors(batch: Any) -> dict[str, torch.Tensor]:
    # Batch.to_torch() takes three times as long.
    names = ("obs", "obs_next", "act", "rew", "done")
    return {name: torch.from_numpy(getattr(batch, name)) for name in names}


def _tianshou_uniform(load: Workload) -> Entrant:
    buffer = _tianshou(load, "ReplayBuffer")
    return Entrant("", lambda: _tianshou_tensors(buffer.sample(256)[0]))


def _tianshou_priority(load: Workload) -> Entrant:
    buffer = _tianshou(load, "PrioritizedReplayBuffer", alpha=ALPHA, beta=BETA)
    buffer.init_weight(np.arange(load.capacity))

    def run(priorities: Any) -> object:
        batch, where = buffer.sample(256)
        buffer.update_weight(where, priorities)
        return _tianshou_tensors(batch), torch.from_numpy(batch.weight)

    return Entrant("", run, [(each,) for each in _priorities()])


def _tianshou_sequence(load: Workload) -> Entrant:
    buffer = _tianshou(load, "ReplayBuffer")

    def run() -> object:
        where = [buffer.sample_indices(32)]
        for _ in range(63):
            where.append(buffer.next(where[-1]))
        return _tianshou_tensors(buffer[np.stack(where, axis=1)])

    return Entrant("", run)


# TorchRL ---------------------------------------------------------------------------------


def _torchrl_chunk(columns: Columns) -> Any:
    from tensordict import TensorDict

    return TensorDict({k: torch.from_numpy(v) for k, v in columns.items()}, len(columns["done"]))


def _torchrl(load: Workload, kind: str, batch_size: int, **kwargs: Any) -> Any:
    from torchrl import data

    logging.getLogger("torchrl").setLevel(logging.ERROR)
    storage = data.LazyTensorStorage(load.capacity)
    buffer = getattr(data, kind)(storage=storage, batch_size=batch_size, **kwargs)
    buffer.extend(_torchrl_chunk(_all_columns(load)))
    return buffer


def _torchrl_push(load: Workload) -> Entrant:
    buffer = _torchrl(load, "ReplayBuffer", 256)
    return Entrant("", buffer.extend, [(_torchrl_chunk(chunk),) for chunk in load.chunks()])


def _torchrl_one(load: Workload) -> Entrant:
    buffer = _torchrl(load, "ReplayBuffer", 256)
    rows = _torchrl_chunk(next(load.stream()))
    return Entrant("", buffer.add, [(row,) for row in rows])


def _torchrl_uniform(load: Workload) -> Entrant:
    return Entrant("", _torchrl(load, "ReplayBuffer", 256).sample)


def _torchrl_priority(load: Workload) -> Entrant:
    buffer = _torchrl(
        load,
        "TensorDictPrioritizedReplayBuffer",
        256,
        alpha=ALPHA,
        beta=BETA,
        priority_key="found",
    )

    def run(priorities: Any) -> object:
        sample = buffer.sample()
        sample["found"] = priorities
        buffer.update_tensordict_priority(sample)
        return sample

    return Entrant("", run, [(torch.from_numpy(each),) for each in _priorities()])


def _torchrl_sequence(load: Workload) -> Entrant:
    from torchrl.data import SliceSampler

    # Without cached ends it searches the whole storage at every sample.
    sampler = SliceSampler(slice_len=64, end_key="done", cache_values=True)
    buffer = _torchrl(load, "ReplayBuffer", 32 * 64, sampler=sampler)
    return Entrant("", lambda: buffer.sample().reshape(32, 64))


_PEERS: dict[str, dict[str, Callable[[Workload], Entrant]]] = {
    "stable-baselines3": {
        "push": _sb3_push,
        "one": lambda load: _sb3_push(load, envs=1),
        "uniform": _sb3_uniform,
    },
    "cpprb": {
        "push": _cpprb_push,
        "one": _cpprb_one,
        "uniform": _cpprb_uniform,
        "priority": _cpprb_priority,
    },
    "tianshou": {
        "one": _tianshou_one,
        "uniform": _tianshou_uniform,
        "priority": _tianshou_priority,
        "sequence": _tianshou_sequence,
    },
    "torchrl": {
        "push": _torchrl_push,
        "one": _torchrl_one,
        "uniform": _torchrl_uniform,
        "priority": _torchrl_priority,
        "sequence": _torchrl_sequence,
    },
}
