"""The values that the bridge passes to a policy and returns, with a fake DI-engine package.

The package has the names that the bridge uses, and a policy that stores its arguments. The slow
tests of `test_policy.py` train with the real DI-engine.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dingsdk_di_engine.policy import DIEnginePolicy

from dingsdk import SampleBatch
from dingsdk.envs import Timestep
from dingsdk.errors import ConfigError
from dingsdk.pipeline.compile import compile_config

POLICIES = """
import random
from collections import namedtuple

import numpy as np
import torch
from easydict import EasyDict

from ding.utils import POLICY_REGISTRY

STATE = ("reset", "get_attribute", "set_attribute", "state_dict", "load_state_dict")
Learn = namedtuple("Learn", ("forward", "info", "monitor_vars", *STATE))
Collect = namedtuple("Collect", ("forward", "process_transition", "get_train_sample", *STATE))
Eval = namedtuple("Eval", ("forward", *STATE))
Command = namedtuple("Command", ("get_setting_learn", "get_setting_collect", "get_setting_eval"))


class Plain:
    total_field = {"learn", "collect", "eval"}
    on_policy = False

    @classmethod
    def default_config(cls):
        return EasyDict(
            on_policy=cls.on_policy, cuda=True, rate=0.1, discount_factor=0.97, nstep=1,
            learn={"batch_size": 64, "target": 7}, collect={"noise": 0.2}, model={"depth": 2},
        )

    def __init__(self, cfg, enable_field):
        if cfg.rate < 0:
            raise ValueError("rate is negative")
        self.cfg, self.enable_field = cfg, enable_field
        self.drawn = [torch.rand(()).item(), np.random.random(), random.random()]
        state = dict.fromkeys(STATE)
        self.learn_mode = Learn(lambda data, **kw: [data, kw], None, None, **state)
        self.collect_mode = Collect(
            self.act, lambda *step: step, lambda rows: [*rows, "sample"], **state
        )
        self.eval_mode = Eval(self.act, **state)

    def act(self, obs, **kw):
        return {env: {"action": torch.tensor([int(row)]), "kw": kw} for env, row in obs.items()}


class Scheduled(Plain):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.command_mode = Command(*(lambda info, n=n: {"asked": (n, info)} for n in "abc"))


class OnPolicy(Plain):
    on_policy = True


POLICY_REGISTRY |= {
    "plain": Plain, "eps": Plain, "eps_command": Scheduled, "on_policy": OnPolicy,
}
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "ding"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "utils.py").write_text("POLICY_REGISTRY = {}\n")
    (folder / "policy.py").write_text(POLICIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("ding", "ding.utils", "ding.policy"):
        sys.modules.pop(name, None)


def made(*args: Any, **section: Any) -> Any:
    """Return the fake DI-engine policy that the bridge has created."""
    return DIEnginePolicy(section.pop("cfg", {"name": "plain", **section}), *args)._policy


def test_plugin_itself_imports_neither_torch_nor_gymnasium() -> None:
    program = "import sys, dingsdk_di_engine.plugin; print({'torch', 'gymnasium'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"


def test_config_of_a_policy_that_dingsdk_lacks_becomes_one_of_the_bridge(
    caplog: pytest.LogCaptureFixture,
) -> None:
    main = {
        "env": {"env_id": "CartPole-v1"},
        "policy": {
            "model": {"obs_shape": 4, "depth": 3},
            "random_collect_size": 100,
            "learn": {"batch_size": 32, "target": 9, "value_norm": True, "learner": {}},
            "collect": {"n_sample": 8, "noise": 0.5, "env_num": 8},
            "other": {"eps": {"end": 0.1}},
        },
    }
    shape = {"main_config": main, "create_config": {"policy": {"type": "eps_command"}}}

    policy = compile_config(shape).policy
    own = made(cfg=policy).cfg

    assert (policy.type, policy.name, policy.on_policy) == ("di_engine", "eps", False)
    assert (own.learn.batch_size, own.learn.target, own.learn.value_norm) == (32, 9, True)
    assert (own.collect.n_sample, own.collect.noise, own.collect.env_num) == (8, 0.5, 8)
    assert own.model == {"depth": 3, "obs_shape": 4, "action_shape": 2}
    assert own.other.eps.end == 0.1
    assert "random_collect_size 100 is not used" in caplog.text
    shape["create_config"]["policy"]["type"] = "on_policy"
    assert compile_config(shape).policy.on_policy is True
    shape["create_config"]["policy"]["type"] = "plian"
    with pytest.raises(ConfigError, match="no policy 'plian'; did you mean 'plain'"):
        compile_config(shape)


def test_dingsdk_keys_override_config_keys_which_override_defaults() -> None:
    cfg = made(
        nstep=3,
        learn={"batch_size": 32},
        collect={"n_sample": 8},
        model={"width": 5},
        config={"rate": 0.5, "learn": {"target": 9, "batch_size": 1}},
    ).cfg

    assert (cfg.rate, cfg.nstep, cfg.discount_factor, cfg.cuda) == (0.5, 3, 0.97, False)
    assert (cfg.learn.batch_size, cfg.learn.target) == (32, 9)
    assert cfg.collect == {"noise": 0.2, "n_sample": 8, "unroll_len": 1}
    assert (cfg.model.depth, cfg.model.width) == (2, 5)


def test_seed_sets_every_global_random_state() -> None:
    first = made(None, 2**32 + 5).drawn
    assert made(None, 2**32 + 5).drawn == first
    assert not set(made(None, 7).drawn) & set(first)
    assert not set(made().drawn) & set(made(None, 7).drawn)


def test_learner_gives_rows_of_tensors() -> None:
    batch = SampleBatch({"obs": np.ones((2, 3), np.float32)})

    rows, options = DIEnginePolicy({"name": "plain"}).learn_mode.forward(batch, epochs=2)

    assert [row["obs"].tolist() for row in rows] == [[1.0] * 3] * 2
    assert options == {"epochs": 2}


@pytest.mark.parametrize("mode", ["collect_mode", "eval_mode"])
def test_discrete_actions_come_without_a_dimension(mode: str) -> None:
    policy = DIEnginePolicy({"name": "plain"})

    (output,) = getattr(policy, mode).forward({4: torch.tensor(2)}, eps=0.1).values()

    assert (output["action"].shape, output["action"].item(), output["kw"]) == ((), 2, {"eps": 0.1})


def test_transition_gets_observation_output_and_step_with_a_one_element_reward() -> None:
    collect = DIEnginePolicy({"name": "plain"}).collect_mode

    obs, output, step = collect.process_transition("obs", "output", Timestep(0, 1.5, False, {}))

    assert (obs, output, step.reward.tolist()) == ("obs", "output", [1.5])
    assert collect.get_train_sample(["row"]) == ["row", "sample"]


def test_class_with_schedules_is_used_if_there_is_one() -> None:
    scheduled = DIEnginePolicy({"name": "eps"}).command_mode
    without = DIEnginePolicy({"name": "plain"}).command_mode

    assert [ask({"step": 1}) for ask in scheduled] == [{"asked": (n, {"step": 1})} for n in "abc"]
    assert [ask({"step": 1}) for ask in without] == [{}, {}, {}]


@pytest.mark.parametrize(
    ("section", "path", "text"),
    [
        ({"name": "plian"}, "policy.name", "no policy 'plian'; did you mean 'plain'"),
        ({"name": "on_policy"}, "policy.on_policy", "'on_policy' is on-policy; set it to True"),
        ({"on_policy": True}, "policy.on_policy", "'plain' is not on-policy; set it to False"),
        ({"config": {"rate": -1}}, "policy.config", "cannot be built: ValueError: rate is neg"),
    ],
)
def test_policy_that_cannot_be_built_is_refused_with_its_config_path(
    section: dict[str, Any], path: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        made(**section)
    assert caught.value.path == path
