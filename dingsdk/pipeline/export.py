"""Exports a trained policy as a program that runs without dingsdk."""

from __future__ import annotations

import copy
import importlib.util
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dingsdk.data.action_mask import sample_obs
from dingsdk.data.pytree import map_leaves, named_leaves
from dingsdk.envs.spaces import ObservationSchema
from dingsdk.errors import ConfigError, DingError, PluginNotInstalledError, listing
from dingsdk.plugins.discovery import install_extra_command
from dingsdk.policy import BasePolicy
from dingsdk.policy.threads import own_settings
from dingsdk.runtime.files import folder_error

_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_CHECKED_ROWS = 16
"""Number of observations for which an exported program is compared with its policy."""
_TOLERANCE = 1e-4
"""Largest accepted difference of continuous actions and states, which comes from rounding."""

Run = Callable[[list[Any]], list[Any]]
"""Runs an exported program: takes arrays ``[n, ...]``, returns arrays."""


class _Acting(nn.Module):
    """A torch module that computes the actions of a policy."""

    def __init__(self, policy: BasePolicy) -> None:
        super().__init__()
        model: Any = policy.state()["model"]
        self.network = copy.deepcopy(model).requires_grad_(False)
        self._policy = policy

    def forward(self, obs: Any, state: Tensor | None = None) -> tuple[Tensor, ...]:
        states = () if state is None else (state,)
        return self._policy.greedy(self.network, self._policy.tensor(obs), *states)


def export_policy(policy: Any, observation_space: Any, path: str | Path) -> Path:
    """Export a policy, without exploration, as a program; see ``SavedPolicy.export``."""
    target = Path(path)
    if target.suffix not in _WRITERS:
        raise ConfigError(
            f"{target} has the ending {target.suffix!r}; known: {listing(_WRITERS)}",
            path=str(target),
            known=sorted(_WRITERS),
        )
    if not isinstance(policy, BasePolicy) or type(policy).greedy is BasePolicy.greedy:
        raise ConfigError(
            f"{type(policy).__name__} cannot be exported: it does not define greedy (see "
            "dingsdk.policy.BasePolicy)",
            path="policy.type",
        )
    if policy.device.type != "cpu":
        raise ConfigError(
            f"exports are made on the CPU, and the policy is on {policy.device}; load it in a "
            "process with CUDA_VISIBLE_DEVICES=''",
            path="policy.cuda",
        )
    inputs = _inputs(observation_space, policy.state_size)
    with tempfile.TemporaryDirectory() as folder, _quiet(), own_settings():
        made = Path(folder) / target.name
        _check(
            policy, inputs, _WRITERS[target.suffix](_Acting(policy).eval(), inputs, made), target
        )
        try:
            shutil.copyfile(made, target)
        except OSError as error:
            raise folder_error("write", target, error) from error
    return target


def _inputs(space: Any, state_size: int) -> list[Any]:
    """Return random observations as columns of tensors; for a recurrent policy, also states."""
    space.seed(0)
    columns = ObservationSchema(space).stack([sample_obs(space) for _ in range(_CHECKED_ROWS)])
    states = [torch.randn(_CHECKED_ROWS, state_size) * 0.1] if state_size else []
    return [map_leaves(torch.from_numpy, columns), *states]


def _write_program(acting: nn.Module, inputs: list[Any], target: Path) -> Run:
    program = torch.export.export(
        acting, tuple(inputs), dynamic_shapes=_dynamic(inputs), strict=False
    )
    torch.export.save(program, target)
    module = torch.export.load(target).module()
    return lambda given: list(module(*given))


def _write_onnx(acting: nn.Module, inputs: list[Any], target: Path) -> Run:
    missing = [name for name in _ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise PluginNotInstalledError(
            f"an export to ONNX needs {', '.join(missing)}: {install_extra_command('export')}; "
            "the ending .pt2 needs nothing",
            name=missing[0],
            install="export",
        )
    import onnxruntime

    outputs = ["action", "next_state"][: len(inputs)]
    names = ("obs", "state")[: len(inputs)]
    torch.onnx.export(
        acting,
        (),
        target,
        kwargs=dict(zip(names, inputs, strict=True)),
        dynamo=True,
        dynamic_shapes=dict(zip(names, _dynamic(inputs), strict=True)),
        input_names=[name for name, _ in _named(inputs)],
        output_names=outputs,
        external_data=False,
        verbose=False,
    )
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    return lambda given: session.run(outputs, {name: leaf.numpy() for name, leaf in _named(given)})


_WRITERS: Mapping[str, Callable[[nn.Module, list[Any], Path], Run]] = {
    ".onnx": _write_onnx,
    ".pt2": _write_program,
}


def _named(inputs: list[Any]) -> list[tuple[str, Tensor]]:
    """Return the inputs of a program with names: ``obs`` (``obs.<key>`` for a dict), ``state``."""
    names = dict(zip(("obs", "state"), inputs, strict=False))
    return named_leaves(names)


def _dynamic(inputs: list[Any]) -> tuple[Any, ...]:
    """Return the dynamic shapes for torch: the number of rows may vary."""
    batch = torch.export.Dim("batch")
    return tuple(map_leaves(lambda leaf: {0: batch}, each) for each in inputs)


def _check(policy: BasePolicy, inputs: list[Any], run: Run, target: Path) -> None:
    """Compare an exported program with the policy, for all rows and for a single one."""
    for rows in (slice(None), slice(1)):
        given = map_leaves(itemgetter(rows), inputs)
        obs, *states = map_leaves(torch.Tensor.numpy, given)
        recurrent = {"state": states[0]} if states else {}
        output = policy.act(obs, explore=False, **recurrent)
        expected = [output[name] for name in ("action", "next_state")[: len(given)]]
        for ours, theirs in zip(expected, run(given), strict=True):
            found = np.asarray(theirs)
            if found.shape != ours.shape or not np.allclose(found, ours, atol=_TOLERANCE):
                raise DingError(
                    f"{target} would not act as the policy does: it gives {found.tolist()} for "
                    f"{ours.tolist()}; nothing was written",
                    path=str(target),
                )


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide internal warnings of torch, and keep its progress bar from starting a thread."""
    logger = logging.getLogger("torch.onnx")
    bar: Any = vars(torch.hub)["tqdm"]
    level, interval = logger.level, getattr(bar, "monitor_interval", 0)
    logger.setLevel(logging.ERROR)
    bar.monitor_interval = 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        bar.monitor_interval = interval
