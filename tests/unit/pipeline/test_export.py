"""Exported programs compute the same actions as ``predict``, without dingsdk."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from dingsdk.data import SampleBatch
from dingsdk.data.pytree import map_leaves
from dingsdk.errors import ConfigError, DingError, PluginNotInstalledError
from dingsdk.pipeline.export import _Acting, export_policy
from dingsdk.policy import create_policy
from dingsdk.policy.modes import get_policy_cls
from tests.fakes import IdlePolicy

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
    "dqn-normalized": ("dqn", PARTS, MOVES, {}),
    "sac-normalized": ("sac", VECTOR, BOX, {}),
    "sac-dict": ("sac", PARTS, BOX, {}),
}
NORMALIZED = ("dqn-normalized", "sac-normalized")
"""Cases whose policies have the statistics of 64 observations."""


def make(name: str) -> Any:
    kind, observation, action, model = CASES[name]
    read = get_policy_cls({"type": kind}).model_from_spaces  # type: ignore[attr-defined]
    cfg = {"type": kind, "model": {**read(observation, action), **model}}
    if name not in NORMALIZED:
        return create_policy(cfg, enable_field=["eval"], seed=0)
    policy = create_policy({**cfg, "normalize": {"obs": True}}, enable_field=["learn"], seed=0)
    observe: Any = policy.learn_mode.observe
    observe(SampleBatch({"obs": observations(observation, 64)}))
    return policy


def observations(space: Any, count: int) -> Any:
    space.seed(7)
    rows = [space.sample() for _ in range(count)]
    if isinstance(space, spaces.Dict):
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return np.stack(rows)


def inputs(policy: Any, observation: Any) -> list[Any]:
    """Return seven observations that differ from those that the export check uses."""
    obs = observations(observation, 7)
    size = policy.state_size
    state = np.random.default_rng(0).normal(size=(7, size)).astype(np.float32)
    return [obs, state] if size else [obs]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == "ppo-lstm" else pytest.mark.slow) for name in CASES],
)
def test_exported_torch_program_acts_like_the_policy(name: str, tmp_path: Path) -> None:
    policy, observation = make(name), CASES[name][1]
    path = export_policy(policy, observation, tmp_path / "policy.pt2")

    assert path == tmp_path / "policy.pt2"
    given = inputs(policy, observation)
    module = torch.export.load(path).module()
    found = module(*(map_leaves(torch.from_numpy, each) for each in given))

    compare(policy, given, [each.numpy() for each in found])


@pytest.mark.parametrize("name", CASES)
def test_module_for_export_acts_like_the_policy(name: str) -> None:
    policy, observation = make(name), CASES[name][1]
    given = inputs(policy, observation)

    found = _Acting(policy).eval()(*(map_leaves(torch.from_numpy, each) for each in given))

    compare(policy, given, [each.numpy() for each in found])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_exported_onnx_program_acts_like_the_policy(name: str, tmp_path: Path) -> None:
    import onnxruntime

    policy, observation = make(name), CASES[name][1]
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
    policy = make("dqn-vector")
    with pytest.raises(ConfigError, match=r"known: \.onnx, \.pt2"):
        export_policy(policy, VECTOR, tmp_path / path)


def test_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    policy = make("dqn-vector")
    with pytest.raises(
        PluginNotInstalledError, match=r"needs .*onnxscript.*: pip install .*\[export\]"
    ):
        export_policy(policy, VECTOR, tmp_path / "policy.onnx")


class Other(IdlePolicy):
    """A policy whose ``greedy`` differs from its ``act``."""

    def build(self) -> None:
        self.net = torch.nn.Linear(3, 3)

    def greedy(self, network: Any, obs: Any, *state: Any) -> tuple[Any, ...]:
        return (network(obs).argmax(1) + 1,)


def test_policy_without_greedy_is_refused(tmp_path: Path) -> None:
    for policy in (IdlePolicy({}, seed=0), object()):
        with pytest.raises(ConfigError, match="cannot be exported: it does not define greedy"):
            export_policy(policy, VECTOR, tmp_path / "policy.pt2")


def test_program_that_acts_differently_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DingError, match="would not act as the policy does"):
        export_policy(Other({}, seed=0), VECTOR, tmp_path / "policy.pt2")
    assert list(tmp_path.iterdir()) == []
