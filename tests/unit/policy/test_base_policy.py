"""``BasePolicy``: the modes that it builds from the methods of a subclass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from dingsdk.config import Count
from dingsdk.data import SampleBatch
from dingsdk.errors import ConfigError, SchemaMismatchError
from dingsdk.policy import BasePolicy, DQNPolicy, PolicySection, create_policy
from tests.programs import python

MODEL = {"obs_shape": 3, "action_shape": 2}


class Own(BasePolicy):
    """Its action is the sum of the observation; learns by counting."""

    class Config(PolicySection, frozen=True, kw_only=True):
        """Attributes:
        width: Width of the network.
        """

        type: str = "own"
        width: Count = 2

    monitored: ClassVar[tuple[str, ...]] = ("rows",)

    def build(self) -> None:
        self.net = nn.Linear(self.section.width, 1)

    def act(
        self, obs: Any, env_ids: Any = None, *, explore: bool, **setting: Any
    ) -> dict[str, Any]:
        total = self.tensor(obs["pos"] if isinstance(obs, dict) else obs).sum(1).long().numpy()
        return {"action": total, "env": np.array(env_ids)}

    def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"rows": len(batch["action"]), "device": str(batch["action"].device)}

    def state(self) -> dict[str, Any]:
        return {"model": self.net}


def test_dict_form_stacks_observations_that_are_dicts_or_tensors() -> None:
    policy = Own({}, seed=0)
    rows = {1: {"pos": torch.tensor([1.0, 1.0])}, 2: {"pos": torch.tensor([2.0, 2.0])}}

    assert [each["action"] for each in policy.eval_mode.forward(rows).values()] == [2, 4]


def test_reset_of_a_mode_reaches_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, resets = Own({}, seed=0), list[Any]()
    monkeypatch.setattr(policy, "reset", resets.append)
    policy.collect_mode.reset([1, 2])
    policy.eval_mode.reset()
    assert resets == [[1, 2], None]


@pytest.mark.parametrize(("info", "terminated"), [({}, True), ({"terminated": False}, False)])
def test_dict_transition_tells_a_cut_episode_from_one_that_ended(
    info: dict[str, Any], terminated: bool
) -> None:
    obs, timestep = np.zeros(2), SimpleNamespace(obs=np.ones(2), reward=0.5, done=True, info=info)
    row = Own({}, seed=0).collect_mode.process_transition(obs, {"action": 3}, timestep)
    assert (row["terminated"], row["done"]) == (terminated, True)


def test_learning_accepts_columns_and_lists_of_rows() -> None:
    policy = Own({}, seed=0)
    columns = SampleBatch({"action": np.arange(4)})

    assert policy.learn_mode.forward(columns) == {"rows": 4, "device": "cpu"}
    assert policy.learn_mode.forward([{"action": 1}, {"action": 2}])["rows"] == 2
    assert policy.learn_mode.monitor_vars() == ["rows"]
    with pytest.raises(SchemaMismatchError, match="'action'"):
        policy.learn_mode.forward(SampleBatch({"obs": np.zeros(2)}))


def test_other_errors_of_a_network_are_not_changed() -> None:
    class Broken(Own):
        def build(self) -> None:
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match=r"^on purpose$"):
        Broken({}, seed=0)


@pytest.mark.parametrize("error", [None, MemoryError()])
def test_update_that_does_not_fit_memory_is_refused_with_its_size(error: Any) -> None:
    class Greedy(Own):
        def learn(self, batch: dict[str, Any]) -> dict[str, Any]:
            if error is not None:
                raise error
            return {"total_loss": float(torch.empty(1 << 50, dtype=torch.float64).sum())}

    mode = Greedy({}, enable_field=["learn"], seed=0).learn_mode
    batch = {name: np.zeros((5, 3), np.float32) for name in ("obs", "next_obs")}

    with pytest.raises(ConfigError, match=r"update on 5 samples .*batch_size.* not fit") as caught:
        mode.forward(SampleBatch(batch))

    assert caught.value.path == "policy.learn.batch_size"
    assert 1 << 20 < caught.value.facts["expected"] < 1 << 50  # free bytes
    if error is None:
        assert "allocate" in caught.value.facts["found"]


@pytest.mark.parametrize(
    ("shape", "obs"),
    [
        (3, {"pos": np.zeros((2, 3), np.float32)}),
        ({"pos": 3}, np.zeros((2, 3), np.float32)),
    ],
)
def test_dict_in_place_of_a_vector_and_the_reverse_are_refused(shape: Any, obs: Any) -> None:
    policy = DQNPolicy({"model": {"obs_shape": shape, "action_shape": 2}}, seed=0)
    batch = {"obs": obs, "next_obs": obs, "action": np.zeros(2, np.int64)}
    batch |= {"reward": np.zeros(2, np.float32), "discount": np.zeros(2, np.float32)}

    with pytest.raises(SchemaMismatchError, match="observations do not fit") as caught:
        policy.eval_mode.forward_batch(obs, range(2))
    assert "(2, 3)" in str(caught.value)
    assert "obs_shape" in str(caught.value)
    with pytest.raises(SchemaMismatchError, match="batch does not fit"):
        policy.learn_mode.forward(SampleBatch(batch))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("rows", [8, 40_000])
def test_policy_learns_the_same_on_gpu_and_cpu(rows: int) -> None:
    rng = np.random.default_rng(0)
    batch = {name: rng.normal(size=(rows, 3)).astype(np.float32) for name in ("obs", "next_obs")}
    batch |= {"action": rng.integers(0, 2, rows), "reward": np.ones(rows, np.float32)}
    batch["discount"] = np.full(rows, 0.9, np.float32)
    losses = []
    for cuda in (False, True):
        cfg = {"model": {"obs_shape": 3, "action_shape": 2}, "cuda": cuda}
        mode = DQNPolicy(cfg, enable_field=["learn"], seed=0).learn_mode
        losses.append([mode.forward(SampleBatch(batch))["total_loss"] for _ in range(3)])

    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_attributes_that_workers_read_come_from_the_config() -> None:
    policy = Own({"collect": {"n_sample": 32}, "learn": {"batch_size": 8}, "on_policy": True})
    mode = policy.collect_mode

    assert [mode.get_attribute(key) for key in ("n_sample", "n_episode", "unroll_len")] == [
        32,
        None,
        1,
    ]
    assert mode.get_attribute("on_policy") is True
    assert mode.get_attribute("cfg").learn.batch_size == 8
    assert policy.learn_mode.get_attribute("batch_size") == 8
    mode.set_attribute("n_sample", 16)
    assert mode.get_attribute("n_sample") == 16


def test_policies_without_a_seed_differ_and_keep_the_random_state_of_torch() -> None:
    weights = []
    for _ in range(2):
        torch.manual_seed(0)
        before = torch.get_rng_state()
        weights.append(Own({}).net.weight.detach())
        assert torch.equal(torch.get_rng_state(), before)

    assert not torch.equal(*weights)


def test_unsupported_attributes_are_refused() -> None:
    for mode, key in (
        (Own({}).learn_mode, "average_over_ranks"),
        (DQNPolicy({"model": MODEL}, ["learn"]).learn_mode, "colour"),
        (DQNPolicy({"model": MODEL}, ["collect"]).collect_mode, "learning_rate_factor"),
    ):
        with pytest.raises(NotImplementedError, match=f"'{key}' cannot be set"):
            mode.set_attribute(key, 1.0)
    with pytest.raises(NotImplementedError, match="no attribute 'norms'"):
        DQNPolicy({"model": MODEL}, ["collect"]).collect_mode.get_attribute("norms")


@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["array", "tensor"])
def test_only_images_of_bytes_keep_their_dtype(make: Any) -> None:
    policy = Own({}, seed=0)
    kinds = {np.zeros: (np.uint8, np.float64), torch.zeros: (torch.uint8, torch.float64)}
    byte, double = kinds[make]

    assert policy.tensor(make((2, 3, 3), dtype=byte)).dtype == torch.uint8
    for shape, dtype in (((2, 3), byte), ((2, 3, 3), double), ((2,), byte)):
        found = policy.tensor({"seen": make(shape, dtype=dtype)})["seen"]
        assert (found.dtype, tuple(found.shape)) == (torch.float32, shape)


@pytest.mark.parametrize("kind", ["dqn", "r2d2", "sac"])
def test_target_network_has_no_gradients(kind: str) -> None:
    bounds = {"action_low": [-1.0, -1.0], "action_high": [1.0, 1.0]} if kind == "sac" else {}
    policy: Any = create_policy({"type": kind, "model": {**MODEL, **bounds}}, ["learn"], seed=0)

    assert [each for each in policy._target.parameters() if each.requires_grad] == []
    trained = policy._critic if kind == "sac" else policy._network
    assert all(each.requires_grad for each in trained.parameters())


class WithOptimizer(Own):
    """Has an optimizer of torch."""

    def build(self) -> None:
        super().build()
        # Its constructor would import the compiler of torch.
        self.optimizer = torch.optim.SGD.__new__(torch.optim.SGD)
        self.optimizer.param_groups = [{"params": list(self.net.parameters()), "lr": 0.5}]

    def state(self) -> dict[str, Any]:
        return {"model": self.net, "optimizer": self.optimizer}


def test_torch_optimizer_without_gradients_has_a_norm_and_a_rate_that_can_be_scaled() -> None:
    policy = WithOptimizer({}, seed=0)
    assert policy.learn_mode.get_attribute("norms")["grad_norm/optimizer"] == 0.0
    policy.net.weight.grad = torch.tensor([[3.0, 4.0]])
    assert policy.learn_mode.get_attribute("norms")["grad_norm/optimizer"] == 5.0
    for factor in (0.5, 0.25):
        policy.learn_mode.set_attribute("learning_rate_factor", factor)
        assert policy.optimizer.param_groups[0]["lr"] == 0.5 * factor


def test_loading_without_target_and_optimizer_resets_them(batch: SampleBatch) -> None:
    policy = DQNPolicy({"model": MODEL}, seed=0)
    policy.learn_mode.forward(batch)
    assert policy._optimizer.updates == 1
    other = DQNPolicy({"model": MODEL}, seed=1).learn_mode.state_dict()

    policy.learn_mode.load_state_dict({"model": other["model"]})

    state = policy.learn_mode.state_dict()
    for name, tensor in other["model"].items():
        assert torch.equal(state["model"][name], tensor)
        assert torch.equal(state["target_model"][name], tensor)
    assert policy._optimizer.updates == 0
    fresh = DQNPolicy({"model": MODEL}, seed=2)
    fresh.learn_mode.load_state_dict({"model": other["model"]})
    for each in (policy, fresh):
        each.learn_mode.forward(batch)
    assert torch.equal(policy._optimizer.flat, fresh._optimizer.flat)
    with pytest.raises(SchemaMismatchError, match="unexpected"):
        policy.learn_mode.load_state_dict({"model": {**other["model"], "extra": torch.zeros(1)}})


def test_compiling_without_a_compiler_is_refused(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)

    with pytest.raises(ConfigError, match=r"policy\.compile is true.*neither g\+\+ nor"):
        Own({"compile": True})
    monkeypatch.setenv("CXX", "my-compiler")
    with pytest.raises(ConfigError, match="neither my-compiler nor clang"):
        Own({"compile": True})


def test_every_forward_method_of_the_networks_is_compiled(monkeypatch, tmp_path) -> None:
    compiler = tmp_path / "g++"
    compiler.touch(0o700)  # one of the two accepted names
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    compiled: list[tuple[Any, str]] = []
    monkeypatch.setattr(
        torch, "compile", lambda way: compiled.append((way.__self__, way.__name__)) or way
    )
    model = {"obs_shape": 3, "action_shape": 2}
    recurrent = {**model, "recurrent": "gru"}

    policy: Any = create_policy({"type": "ppo", "model": recurrent, "compile": True}, seed=0)

    ways = {(id(network), name) for network, name in compiled}
    networks = (policy._network, policy._acting_network)
    assert ways == {(id(each), name) for each in networks for name in ("forward", "unroll")}
    compiled.clear()
    create_policy({"type": "dqn", "model": model, "compile": False}, seed=0)
    assert compiled == []


COMPILED = """
import numpy as np
import torch
from dingsdk.data import SampleBatch
from dingsdk.policy import DQNPolicy

rng = np.random.default_rng(0)
batch = {
    "obs": rng.normal(size=(8, 3)).astype(np.float32),
    "next_obs": rng.normal(size=(8, 3)).astype(np.float32),
    "action": rng.integers(0, 2, 8),
    "reward": np.ones(8, np.float32),
    "discount": np.full(8, 0.9, np.float32),
}
for compiles in (False, True):
    policy = DQNPolicy(
        {"model": {"obs_shape": 3, "action_shape": 2}, "compile": compiles}, seed=0
    )
    losses = [policy.learn_mode.forward(SampleBatch(batch))["total_loss"] for _ in range(3)]
    policy.eval_mode.forward_batch(batch["obs"], range(8))
    print(*losses)
print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""


@pytest.mark.slow
def test_compiled_networks_compute_the_same() -> None:
    # In another process, because the compiler leaves threads behind.
    run = python("-c", COMPILED, timeout=170)

    assert run.returncode == 0, run.stderr
    plain, compiled, graphs = run.stdout.splitlines()
    assert [float(each) for each in compiled.split()] == pytest.approx(
        [float(each) for each in plain.split()], rel=1e-5
    )
    assert int(graphs) > 0


@pytest.mark.parametrize("kind", ["dqn", "r2d2", "ppo", "sac"])
def test_acting_continues_from_the_acting_state_of_another_policy(kind: str) -> None:
    bounds = {"action_low": [-1.0, -1.0], "action_high": [1.0, 1.0]} if kind == "sac" else {}
    cfg = {"type": kind, "model": {"obs_shape": 3, "action_shape": 2, **bounds}}
    first, second = (
        create_policy(cfg, enable_field=["collect"], seed=seed).collect_mode for seed in (1, 2)
    )
    second.load_state_dict(first.state_dict())
    obs = np.random.default_rng(0).normal(size=(20, 4, 3)).astype(np.float32)
    setting = {"eps": 0.5} if kind in ("dqn", "r2d2") else {}

    def act(mode: Any, times: range) -> list[Any]:
        outputs = [mode.forward_batch(obs[time], np.arange(4), **setting) for time in times]
        return [
            {key: np.asarray(value).tolist() for key, value in each.items()} for each in outputs
        ]

    act(first, range(10))
    saved = first.get_attribute("acting_state")
    went_on = act(first, range(10, 20))
    assert act(second, range(10, 20)) != went_on
    second.set_attribute("acting_state", saved)
    assert act(second, range(10, 20)) == went_on
