"""Exported programs compute the same actions as ``predict``, without dingsdk."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from dingsdk.data.pytree import map_leaves
from dingsdk.errors import ConfigError, DingError, PluginNotInstalledError, RunFolderError
from dingsdk.pipeline.export import _Acting, _quiet, export_policy
from dingsdk.policy import BasePolicy, create_policy
from dingsdk.policy.base import get_policy_cls

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (12, 12, 3), np.uint8)
PARTS = spaces.Dict({"image": IMAGE, "number": spaces.Discrete(4), "a": VECTOR})
MOVES = spaces.Discrete(3)
BOX = spaces.Box(np.array([-2, 0], np.float32), np.array([3, 1], np.float32))
CASES = {
    "dqn-vector": ("dqn", VECTOR, MOVES, {"dueling": True}),
    "dqn-image": ("dqn", IMAGE, MOVES, {}),
    "dqn-dict": ("dqn", PARTS, MOVES, {}),
    "dqn-number": ("dqn", spaces.Discrete(4), MOVES, {}),
    "ppo": ("ppo", VECTOR, MOVES, {}),
    "ppo-several": ("ppo", VECTOR, spaces.MultiDiscrete([2, 3]), {}),
    "ppo-box": ("ppo", VECTOR, BOX, {}),
    "ppo-lstm": ("ppo", VECTOR, MOVES, {"recurrent": "lstm"}),
    "r2d2": ("r2d2", VECTOR, MOVES, {}),
    "sac": ("sac", VECTOR, BOX, {}),
    "sac-dict": ("sac", PARTS, BOX, {}),
}


def make(kind: str, observation: Any, action: Any, model: dict[str, Any]) -> Any:
    read = get_policy_cls({"type": kind}).model_from_spaces  # type: ignore[attr-defined]
    cfg = {"type": kind, "model": {**read(observation, action), **model}}
    return create_policy(cfg, enable_field=["eval"], seed=0)


def inputs(policy: Any, observation: Any) -> list[Any]:
    """Return seven observations that differ from those that the export check uses."""
    observation.seed(7)
    rows = [observation.sample() for _ in range(7)]
    if isinstance(observation, spaces.Dict):
        obs: Any = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    else:
        obs = np.stack(rows)
    size = policy.state_size
    state = np.random.default_rng(0).normal(size=(7, size)).astype(np.float32)
    return [obs, state] if size else [obs]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == "ppo-lstm" else pytest.mark.slow) for name in CASES],
)
def test_exported_torch_program_acts_like_the_policy(name: str, tmp_path: Path) -> None:
    kind, observation, action, model = CASES[name]
    policy = make(kind, observation, action, model)
    path = export_policy(policy, observation, tmp_path / "policy.pt2")

    assert path == tmp_path / "policy.pt2"
    given = inputs(policy, observation)
    module = torch.export.load(path).module()
    found = module(*(map_leaves(torch.from_numpy, each) for each in given))

    compare(policy, given, [each.numpy() for each in found])


@pytest.mark.parametrize("name", CASES)
def test_module_for_export_acts_like_the_policy(name: str) -> None:
    kind, observation, action, model = CASES[name]
    policy = make(kind, observation, action, model)
    given = inputs(policy, observation)

    found = _Acting(policy).eval()(*(map_leaves(torch.from_numpy, each) for each in given))

    compare(policy, given, [each.numpy() for each in found])


def test_module_for_export_is_a_copy_without_gradients() -> None:
    policy = make(*CASES["dqn-vector"])
    exported = _Acting(policy)
    assert not any(each.requires_grad for each in exported.parameters())
    assert all(each.requires_grad for each in policy.state()["model"].parameters())


def test_torch_is_silent_only_during_an_export(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("torch.onnx")
    bar = vars(torch.hub)["tqdm"]
    monkeypatch.setattr(logger, "level", logging.INFO)
    monkeypatch.setattr(bar, "monitor_interval", 7)
    with _quiet():
        assert (logger.level, bar.monitor_interval) == (logging.ERROR, 0)
        warnings.warn("of a part of torch", stacklevel=1)
    assert (logger.level, bar.monitor_interval) == (logging.INFO, 7)
    with pytest.warns(UserWarning, match="of its own"):
        warnings.warn("of its own", stacklevel=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_exported_onnx_program_acts_like_the_policy(name: str, tmp_path: Path) -> None:
    import onnxruntime

    kind, observation, action, model = CASES[name]
    policy = make(kind, observation, action, model)
    path = export_policy(policy, observation, tmp_path / "policy.onnx")

    given = inputs(policy, observation)
    named = {"obs": given[0]}
    if isinstance(observation, spaces.Dict):
        named = {f"obs.{key}": column for key, column in given[0].items()}
    if len(given) > 1:
        named["state"] = given[1]
    found = onnxruntime.InferenceSession(path).run(None, named)

    compare(policy, given, found)
    assert list(tmp_path.iterdir()) == [path]


def compare(policy: Any, given: list[Any], found: list[Any]) -> None:
    state = {"state": given[1]} if len(given) > 1 else {}
    expected = policy.act(given[0], explore=False, **state)
    assert len(found) == len(given)
    assert found[0].shape == expected["action"].shape
    np.testing.assert_allclose(found[0], expected["action"], atol=1e-5)
    if state:
        np.testing.assert_allclose(found[1], expected["next_state"], atol=1e-5)


@pytest.mark.parametrize("path", ["policy.pt", "policy", "policy.tflite"])
def test_unknown_file_suffix_is_refused(path: str, tmp_path: Path) -> None:
    policy = make(*CASES["dqn-vector"])
    with pytest.raises(ConfigError, match=r"known: \.onnx, \.pt2"):
        export_policy(policy, VECTOR, tmp_path / path)


def test_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    policy = make(*CASES["dqn-vector"])
    with pytest.raises(
        PluginNotInstalledError, match=r"needs .*onnxscript.*: pip install .*\[export\]"
    ):
        export_policy(policy, VECTOR, tmp_path / "policy.onnx")


class Plain(BasePolicy):
    """A policy without ``greedy``."""

    def build(self) -> None:
        self.net = torch.nn.Linear(3, 3)

    def act(
        self, obs: Any, env_ids: Any = None, *, explore: bool, **setting: Any
    ) -> dict[str, Any]:
        return {"action": np.zeros(len(obs), np.int64)}

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {}

    def state(self) -> Any:
        return {"model": self.net}


class Other(Plain):
    """A policy whose ``greedy`` differs from its ``act``."""

    def greedy(self, network: Any, obs: Any, *state: Any) -> tuple[Any, ...]:
        return (network(obs).argmax(1) + 1,)


def test_policy_without_greedy_is_refused(tmp_path: Path) -> None:
    for policy in (Plain({}, seed=0), object()):
        with pytest.raises(ConfigError, match="cannot be exported: it does not define greedy"):
            export_policy(policy, VECTOR, tmp_path / "policy.pt2")


def test_program_that_acts_differently_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DingError, match="would not act as the policy does"):
        export_policy(Other({}, seed=0), VECTOR, tmp_path / "policy.pt2")
    assert list(tmp_path.iterdir()) == []


def test_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    policy = make(*CASES["dqn-vector"])
    with pytest.raises(RunFolderError, match="cannot write"):
        export_policy(policy, VECTOR, tmp_path / "absent" / "policy.pt2")
