"""An inference server acts for several collectors; without an answer, a collector acts itself."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dingsdk_in_memory.stores import MemoryPolicyStore

from dingsdk.config import to_easydict
from dingsdk.data import derive_seed
from dingsdk.errors import NonFiniteError
from dingsdk.plugins import default_manager
from dingsdk.policy import DQNPolicy, R2D2Policy
from dingsdk.runtime.connections import parse_address
from dingsdk.testing import open_files
from dingsdk.worker.collector.env_pool import EnvPool
from dingsdk.worker.collector.zergling import ZerglingParallelCollector
from dingsdk.worker.comm import Master
from dingsdk.worker.inference import InferenceClient, InferenceServer, client, role
from dingsdk.worker.inference import server as server_module
from dingsdk.worker.inference.client import FOLDER
from tests.unit.collector.conftest import make_task as make_task

PATIENCE_S = 60.0

CFG: dict[str, Any] = {
    "type": "dqn",
    "model": {"obs_shape": 3, "action_shape": 50, "encoder_hidden_size_list": [32]},
}
OBS = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def _answers_may_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a long timeout, so that collectors do not act by themselves on a busy machine."""
    monkeypatch.setattr(client, "ANSWER_S", PATIENCE_S)


def policy_of(seed: int, cls: Any = DQNPolicy, **cfg: Any) -> Any:
    return cls({**CFG, **cfg}, enable_field=["collect"], seed=seed)


def publish(store: MemoryPolicyStore, policy: Any, version: int) -> None:
    store.publish("p", policy.collect_mode.state_dict()["model"], version)


@contextmanager
def serving(
    run_dir: Path, store: MemoryPolicyStore, cfg: dict[str, Any] = CFG, seed: int | None = 1
) -> Iterator[InferenceServer]:
    with closing(InferenceServer(cfg, store, run_dir, "inference-0", seed)) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join(PATIENCE_S)


class Collector:
    """A policy whose actions come from a server through a client."""

    def __init__(self, run_dir: Path, policy: Any, version: int, is_exact: bool = False) -> None:
        self.client = InferenceClient(run_dir, "collector-0")
        self.policy, self.asked = policy, ("p", version, is_exact)
        policy.act = self.client.acting(policy.act, lambda: self.asked)
        self.mode = policy.collect_mode

    def act(self, obs: Any = OBS, **setting: Any) -> list[int]:
        output = self.mode.forward_batch(obs, range(len(obs)), **{"eps": 0.0, **setting})
        return [int(each) for each in output["action"]]

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()


def best(policy: Any, obs: Any = OBS) -> list[int]:
    return [int(each) for each in policy.collect_mode.forward_batch(obs, eps=0.0)["action"]]


def test_actions_come_from_the_newest_version_and_the_client_knows_its_number(
    tmp_path: Path,
) -> None:
    store, mine, newest = MemoryPolicyStore(), policy_of(1), policy_of(2)
    assert best(mine) != best(newest)
    expected = best(newest)
    publish(store, newest, 7)
    with serving(tmp_path, store) as server, Collector(tmp_path, mine, 3) as collector:
        assert collector.act() == expected
        assert collector.client.version == 7
        rows = collector.mode.forward({5: OBS[0], 9: OBS[3]}, eps=0.0)
        assert {env: int(each["action"]) for env, each in rows.items()} == {
            5: expected[0],
            9: expected[3],
        }
        assert (server.request_count, server.batch_count) == (2, 2)


@contextmanager
def waiting(server: InferenceServer, *asks: Callable[[], None]) -> Iterator[None]:
    """Start all requests, then run the server until all are answered."""
    threads = [threading.Thread(target=ask) for ask in asks]
    for each in threads:
        each.start()
    deadline = time.monotonic() + PATIENCE_S
    while server._requests.qsize() < len(asks) and time.monotonic() < deadline:
        time.sleep(0.001)
    running = threading.Thread(target=server.run)
    running.start()
    for each in threads:
        each.join(PATIENCE_S)
    server.stop()
    running.join(PATIENCE_S)
    yield


def test_waiting_requests_form_one_batch_and_each_gets_its_own_rows(tmp_path: Path) -> None:
    store, expected = MemoryPolicyStore(), best(policy_of(2))
    publish(store, policy_of(2), 1)
    server = InferenceServer(CFG, store, tmp_path, "inference-0", seed=1)
    found: dict[int, list[int]] = {}

    def ask(index: int) -> None:
        with Collector(tmp_path, policy_of(5), 1) as collector:
            if index < 4:
                found[index] = collector.act(OBS[4 * index : 4 * index + 4])
            else:
                found[index] = collector.act(eps=1.0)

    with closing(server), waiting(server, *(partial(ask, index) for index in range(5))):
        assert [found[i] for i in range(4)] == [expected[i : i + 4] for i in range(0, 16, 4)]
        # A request with exploration is in its own batch.
        assert found[4] != expected
        assert (server.request_count, server.batch_count) == (5, 2)


def test_exploration_of_a_server_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    store = MemoryPolicyStore()
    publish(store, policy_of(2), 1)

    def explored(folder: str, seed: int | None) -> list[int]:
        with serving(tmp_path / folder, store, seed=seed) as server:
            with Collector(tmp_path / folder, policy_of(5), 1) as collector:
                actions = collector.act(eps=1.0)
            assert server.request_count == 1
        return actions

    first, again, other = (explored(f"run-{at}", seed) for at, seed in enumerate((3, 3, 4)))
    assert first == again != other
    assert explored("run-3", None) != explored("run-4", None)


def test_observations_of_another_shape_do_not_affect_other_requests(tmp_path: Path) -> None:
    store, expected, by_itself = MemoryPolicyStore(), best(policy_of(2)), best(policy_of(5))
    publish(store, policy_of(2), 1)
    server = InferenceServer(CFG, store, tmp_path, "inference-0", seed=1)
    found: dict[str, Any] = {}

    def ask(name: str, obs: Any) -> None:
        with closing(InferenceClient(tmp_path, name)) as alone:
            act = alone.acting(lambda *_, **__: {"action": by_itself}, lambda: ("p", 1, False))
            found[name] = list(act(obs, range(16), explore=True, eps=0.0)["action"])

    with (
        closing(server),
        waiting(server, partial(ask, "good", OBS), partial(ask, "bad", OBS.repeat(2, axis=1))),
    ):
        assert found == {"good": expected, "bad": by_itself}


def test_exact_version_is_served_while_it_is_kept(tmp_path: Path) -> None:
    store, first, second = MemoryPolicyStore(), policy_of(1), policy_of(2)
    expected, later = best(first), best(second)
    publish(store, first, 1)
    own = policy_of(5)
    by_itself = best(own)
    with serving(tmp_path, store), Collector(tmp_path, own, 1, is_exact=True) as collector:
        assert collector.act() == expected
        publish(store, second, 2)
        collector.asked = ("p", 2, True)
        assert (collector.act(), collector.client.version) == (later, 2)
        collector.asked = ("p", 1, True)
        assert (collector.act(), collector.client.version) == (expected, 1)
        collector.asked = ("p", 3, True)  # not published yet
        assert (collector.act(), collector.client.version) == (by_itself, 3)
        collector.asked = ("other", 1, False)
        assert collector.act() == by_itself


def test_only_the_last_versions_are_kept(tmp_path: Path) -> None:
    store, before = MemoryPolicyStore(), open_files(collect=True)
    with closing(InferenceServer(CFG, store, tmp_path, "inference-0", seed=1)) as server:
        for version in range(8):
            publish(store, policy_of(version), version)
            server._look("p", version)
        assert sorted(server._policies) == [("p", version) for version in (4, 5, 6, 7)]
        server.close()  # the context manager closes it again
    assert open_files() == before


def test_recurrent_state_is_kept_per_row(tmp_path: Path) -> None:
    cfg = {**CFG, "type": "r2d2"}
    store = MemoryPolicyStore()
    publish(store, policy_of(2, R2D2Policy, type="r2d2"), 1)
    alone = policy_of(2, R2D2Policy, type="r2d2")
    with serving(tmp_path, store, cfg) as server:
        own = policy_of(5, R2D2Policy, type="r2d2")
        with Collector(tmp_path, own, 1) as collector:
            for _ in range(4):
                assert collector.act() == best(alone)
            collector.mode.reset([0, 3])
            alone.collect_mode.reset([0, 3])
            ours = collector.mode.forward_batch(OBS, range(16), eps=0.0)
            theirs = alone.collect_mode.forward_batch(OBS, range(16), eps=0.0)
            assert ours["state"] == pytest.approx(theirs["state"], abs=1e-6)
        assert server.request_count == 5


def test_collector_acts_by_itself_while_there_is_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "RETRY_S", 0.0)
    store, own = MemoryPolicyStore(), policy_of(5)
    by_itself, expected = best(own), best(policy_of(2))
    publish(store, policy_of(2), 9)
    with Collector(tmp_path, own, 3) as collector:
        assert (collector.act(), collector.client.version) == (by_itself, 3)
        for _ in range(2):
            with serving(tmp_path, store):
                assert (collector.act(), collector.client.version) == (expected, 9)
            assert (collector.act(), collector.client.version) == (by_itself, 3)
    assert "collector-0 acts by itself" in caplog.text
    assert list((tmp_path / FOLDER).glob("*.address")) == []


def test_server_that_does_not_answer_costs_one_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ANSWER_S", 0.3)
    monkeypatch.setattr(client, "RETRY_S", PATIENCE_S)
    store, own = MemoryPolicyStore(), policy_of(5)
    publish(store, policy_of(2), 1)
    by_itself = best(own)
    idle = InferenceServer(CFG, store, tmp_path, "inference-0")  # the server is not running
    with closing(idle), Collector(tmp_path, own, 1) as collector:
        assert collector.act() == by_itself
        assert collector.act() == by_itself
        assert idle._requests.qsize() == 1  # the second request was not sent


def test_collectors_are_spread_over_the_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.Channel, "to_server", lambda address, *given: address)
    names = [f"collector-{number}" for number in range(30)]
    with (
        closing(InferenceServer(CFG, MemoryPolicyStore(), tmp_path, "a")),
        closing(InferenceServer(CFG, MemoryPolicyStore(), tmp_path, "b")),
    ):
        first, again = ([InferenceClient(tmp_path, n)._connected() for n in names] for _ in "12")
        both = {file.read_text() for file in (tmp_path / FOLDER).glob("*.address")}
    assert first == again
    assert set(first) == both
    assert min(first.count(address) for address in both) >= 5  # type: ignore[arg-type]


def test_only_a_collector_that_does_not_read_its_answer_is_disconnected(tmp_path: Path) -> None:
    store, told = MemoryPolicyStore(), list[str]()
    publish(store, policy_of(2), 1)

    def fail(*given: object, timeout_s: float) -> None:
        raise TimeoutError("it does not read")

    late: Any = SimpleNamespace(send=fail, shut_down=lambda: told.append("cut off"))
    good: Any = SimpleNamespace(send=lambda *given, timeout_s: told.append("answered"))
    with closing(InferenceServer(CFG, store, tmp_path, "inference-0")) as server:
        head = client.Act("p", 1, False)
        group = [server_module._Request(link, head, OBS, {"eps": 0.0}, 16) for link in (late, good)]
        server._answer(group)
        assert (server.request_count, server.batch_count) == (2, 1)
    assert told == ["cut off", "answered"]


def test_client_with_a_wrong_secret_gets_no_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, own = MemoryPolicyStore(), policy_of(5)
    publish(store, policy_of(2), 1)
    by_itself = best(own)
    with serving(tmp_path, store) as server:
        (tmp_path / FOLDER / "secret").write_text("f" * 64)
        with Collector(tmp_path, own, 1) as collector:
            assert collector.act() == by_itself
        assert server.request_count == 0
    assert "a client does not know the secret" in caplog.text


def test_error_of_the_policy_is_raised_in_the_collector(tmp_path: Path) -> None:
    store = MemoryPolicyStore()
    publish(store, policy_of(2), 1)
    with serving(tmp_path, store) as server:
        with Collector(tmp_path, policy_of(5), 1) as collector:
            with pytest.raises(NonFiniteError, match="look at the env"):
                collector.act(OBS * np.nan)
            assert collector.act() == best(policy_of(2))
        assert server.request_count == 1


def test_worker_serves_actions_while_it_is_joined_and_makes_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = {"type": "in_memory", "concurrency": "threads"}
    transport = default_manager().create("transports", cfg, tmp_path)
    master = Master(transport.master_end(), transport.scheduler)
    made = role.InferenceRole({}, to_easydict({"seed": 7, "policy": CFG}))
    first, worker = (made.create_worker(transport, f"inference-{number}") for number in "01")
    assert isinstance(first, role.InferenceWorker)
    assert isinstance(worker, role.InferenceWorker)
    assert first.close()  # before it has started
    assert first._seed != worker._seed == derive_seed(7, "inference", "inference-1")
    worker.start(master.start())
    publish(transport.policy_store(), policy_of(2), 4)
    with Collector(tmp_path, policy_of(5), 1) as collector:
        assert [collector.act() for _ in range(3)] == [best(policy_of(2))] * 3
    before, deadline = worker._progress, time.monotonic() + PATIENCE_S
    while worker._progress == before:
        assert time.monotonic() < deadline, "the worker reports no progress to its master"
        time.sleep(0.01)
    assert worker._stop_work()
    assert not worker._is_alive(worker._moved_at + role.PROGRESS_S + PATIENCE_S)
    monkeypatch.setattr(worker, "_is_alive", lambda now: False)
    assert not worker._stop_work()
    assert worker.close()
    assert worker.close()
    assert list((tmp_path / FOLDER).glob("*.address")) == []
    (log,) = (tmp_path / "log" / "inference").iterdir()
    assert "acted for 3 requests in 3 batches" in log.read_text()
    assert log not in open_paths()
    master.close()
    transport.close()


def test_worker_ends_with_the_error_of_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(server: InferenceServer, advance: Any) -> None:
        raise ValueError("on purpose")

    monkeypatch.setattr(InferenceServer, "run", fail)
    cfg = {"type": "in_memory", "concurrency": "threads"}
    transport = default_manager().create("transports", cfg, tmp_path)
    master = Master(transport.master_end(), transport.scheduler, lease_s=0.3)
    made = role.InferenceRole({}, to_easydict({"seed": 7, "policy": CFG}))
    worker = made.create_worker(transport, "inference-0")
    worker.start(master.start())
    deadline = time.monotonic() + PATIENCE_S
    while not worker.is_over:
        assert time.monotonic() < deadline, "the worker still renews its lease"
        time.sleep(0.01)
    assert str(worker.failure) == "on purpose"
    assert worker.close()
    master.close()
    transport.close()


def open_paths() -> list[Path]:
    links = Path("/proc/self/fd").iterdir()
    return [link.readlink() for link in links if link.is_symlink()]


class Asked(InferenceClient):
    """Records requests to the server: policy id, version, and whether it must be exact."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir, "collector-0")
        self.asked: list[tuple[str, int, bool]] = []

    def acting(self, act: Any, asked: Any) -> Any:
        remote_act = super().acting(act, asked)

        def noted_act(*args: Any, **kwargs: Any) -> Any:
            self.asked.append(asked())
            return remote_act(*args, **kwargs)

        return noted_act


@pytest.mark.parametrize("on_policy", [False, True])
def test_rows_contain_the_version_that_the_server_used(
    make_task: Any, tmp_path: Path, on_policy: bool
) -> None:
    policy = {
        "type": "dqn",
        "on_policy": on_policy,
        "model": {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [8]},
        "collect": {"n_sample": 32, "unroll_len": 1, "collector": {"type": "sample"}},
    }
    server_side = DQNPolicy({**policy, "cuda": False}, enable_field=["collect"], seed=2)
    model = server_side.collect_mode.state_dict()["model"]
    store = MemoryPolicyStore()
    store.publish("p", model, 7)
    sent: list[Any] = []

    def collect(pool: EnvPool, client: Asked, version: int) -> ZerglingParallelCollector:
        """Run a task with the policy of that version."""
        collector: ZerglingParallelCollector = make_task(
            ZerglingParallelCollector,
            env={"env_id": "CartPole-v1", "collector_env_num": 2, "collector_episode_num": 1},
            env_manager={"type": "in_process"},
            policy={**policy, "cuda": True},  # for the server; collectors use the CPU
            collect_setting={"eps": 0.0},
            policy_update_path="p",
            env_pool=pool,
            inference=client,
        )
        news = [{"model": model, "iter": version}]
        collector.get_policy_update_info = lambda path: news.pop() if news else None
        collector.await_steps = lambda steps: (10**6, version)
        collector.send_metadata = lambda meta: None
        collector.send_stepdata = lambda data_id, batch: sent.append(batch)
        collector.yield_turn = lambda: None
        collector.start()
        collector.close()
        return collector

    serves = serving(tmp_path, store, policy)
    with serves, closing(Asked(tmp_path)) as client, closing(EnvPool()) as pool:
        first = collect(pool, client, 3 if not on_policy else 7)
        collected = [int(each) for batch in sent for each in batch.columns["collect_iter"]]
        assert set(client.asked) == {("p", 7 if on_policy else 3, on_policy)}
        assert collected == [7] * first.get_finish_info()["step_count"]
        client.asked.clear()
        second = collect(pool, client, 5)
        assert second.policy is first.policy
        assert set(client.asked) == {("p", 5, on_policy)}


def test_idle_strangers_do_not_keep_a_collector_out(tmp_path: Path) -> None:
    store, own = MemoryPolicyStore(), policy_of(5)
    publish(store, policy_of(2), 1)
    with serving(tmp_path, store) as server, ExitStack() as stack:
        address = (tmp_path / FOLDER / "inference-0.address").read_text()
        for _ in range(300):
            stack.enter_context(socket.create_connection(parse_address(address), PATIENCE_S))
        with Collector(tmp_path, own, 1) as collector:
            began = time.monotonic()
            assert collector.client._is_connected()
            assert time.monotonic() - began < 1.0
            collector.act()
        assert server.request_count == 1
