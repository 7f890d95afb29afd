"""Several learner processes that train one policy together."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dingsdk.data import SampleBatch, encode_json
from dingsdk.data.channel import Channel, decode_value, encode_value
from dingsdk.data.collected import DISCOUNTED_RETURN
from dingsdk.errors import ConfigError, NonFiniteError, WorkerCrashedError
from dingsdk.plugins import PluginManager, Switches, use_manager
from dingsdk.policy import create_policy, torch_threads
from dingsdk.runtime import guarded
from dingsdk.runtime.spawn import UNGUARDED
from dingsdk.worker.learner import aggregator
from dingsdk.worker.learner.aggregator import (
    Call,
    Done,
    Failed,
    LearnerAggregator,
    merge_logs,
    split_batch,
)

CFG: dict[str, Any] = {
    "type": "dqn",
    "priority": True,
    "model": {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16]},
    "learn": {"batch_size": 8, "target_update_freq": 3},
}


def batches(count: int, size: int = 8) -> Iterator[SampleBatch]:
    random = np.random.default_rng(0)
    for _ in range(count):
        yield SampleBatch(
            {
                "obs": random.normal(size=(size, 4)).astype(np.float32),
                "action": random.integers(0, 2, size),
                "reward": random.normal(size=size).astype(np.float32),
                "next_obs": random.normal(size=(size, 4)).astype(np.float32),
                "discount": np.full(size, 0.99, np.float32),
                "IS": random.uniform(0.5, 1.0, size).astype(np.float32),
            }
        )


def policy(seed: int = 0) -> Any:
    return create_policy(CFG, enable_field=["learn"], seed=seed).learn_mode


def weights(mode: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in mode.state_dict()["model"].items()}


def pid_of(ranks: LearnerAggregator) -> int:
    """Return the process id of the only other rank."""
    (rank,) = ranks._ranks
    assert rank._process is not None
    assert rank._process.pid is not None
    return rank._process.pid


def test_two_ranks_train_like_one_learner_until_one_is_killed() -> None:
    rate = {"start": 0.1, "end": 0.02, "env_steps": 100}
    cfg = {
        **CFG,
        "normalize": {"obs": True, "reward": True},
        "learn": {**CFG["learn"], "learning_rate": rate},
    }
    alone, together = (create_policy(cfg, ["learn"], seed=0).learn_mode for _ in range(2))
    before = listening_sockets("self")
    *good, bad = batches(5)
    bad.columns["reward"][0] = np.nan
    with LearnerAggregator(together, cfg, 2) as ranks:
        assert new_addresses(before).union(listening_sockets(pid_of(ranks)).values()) == {LOOPBACK}
        for number, batch in enumerate(good):
            if number == 2:
                with pytest.raises(NonFiniteError):
                    ranks.learn_mode.forward(bad)
                for refused in (
                    lambda: ranks.learn_mode.forward(bad),
                    lambda: ranks.learn_mode.set_attribute("batch_size", 5),
                ):
                    with pytest.raises(WorkerCrashedError, match=r"stopped \(update 2.*start\(\)"):
                        refused()
                ranks.start()  # its ranks get the same numbers and statistics
                assert ranks.learn_mode.get_attribute("batch_size") == 8
            collected = {**batch.columns, DISCOUNTED_RETURN: batch.columns["reward"] * 7}
            for mode in (alone, ranks.learn_mode):
                if number != 2:
                    mode.set_attribute("env_steps", 50 * number)
                mode.observe(SampleBatch(dict(collected)))
            one, two = alone.forward(batch), ranks.learn_mode.forward(batch)
            assert two.keys() == one.keys()
            for key, value in one.items():
                np.testing.assert_allclose(two[key], value, rtol=2e-4, atol=1e-6, err_msg=key)
            # Its mean over the ranks is the number of each.
            assert two["cur_lr"] == pytest.approx((0.1, 0.06, 0.06, 0.02)[number])
            os.kill(pid_of(ranks), signal.SIGINT)  # the other rank ignores Ctrl-C
        for name, tensor in weights(alone).items():
            torch.testing.assert_close(weights(together)[name], tensor, rtol=1e-4, atol=1e-5)
        for layers in ranks._call_each("get_attribute", [["statistics"]] * 2):
            for layer, expected in zip(layers, alone.get_attribute("statistics"), strict=True):
                assert all(torch.equal(layer[name], expected[name]) for name in expected)
            assert float(layers[-1]["count"]) == 32
        ranks.start()  # nothing has failed
        os.kill(pid_of(ranks), signal.SIGKILL)
        with pytest.raises(WorkerCrashedError, match="rank 1 of the learner") as caught:
            ranks.learn_mode.forward(good[0])
    assert caught.value.exit_code == -signal.SIGKILL
    with pytest.raises(WorkerCrashedError, match="call start"):
        ranks.learn_mode.forward(good[0])


def test_seeded_ranks_draw_different_noise_which_can_be_restored() -> None:
    with LearnerAggregator(policy(seed=4), CFG, 2, seed=4) as ranks:
        acting = ranks.learn_mode.get_attribute("acting_state")
        first, second = (encode_json("acting", each) for each in acting)
        assert first != second
        ranks.learn_mode.set_attribute("acting_state", acting[::-1])
        restored = ranks.learn_mode.get_attribute("acting_state")
        assert [encode_json("acting", each) for each in restored] == [second, first]
        with pytest.raises(ConfigError, match="of 1 learners do not fit 2"):
            ranks.learn_mode.set_attribute("acting_state", acting[:1])


THREADS_POLICY = """
import torch
from pathlib import Path
from dingsdk import hookimpl
from dingsdk.errors import RunFolderError
from dingsdk.policy import DQNPolicy
from dingsdk.runtime import Folder

class TellsThreads(DQNPolicy):
    def learn(self, batch):
        try:
            Folder(Path(__file__).parent / "run" / "link").close()
            refused = 0.0
        except RunFolderError:
            refused = 1.0
        threads = torch.get_num_threads()
        return {**super().learn(batch), "threads": threads, "refused": refused}

@hookimpl
def dingsdk_register_policies(registry):
    registry.register("tells_threads", TellsThreads)
"""


@pytest.mark.slow
def test_all_ranks_use_as_many_threads_as_rank_0_and_follow_no_links_in_its_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tells_threads.py").write_text(THREADS_POLICY)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = tmp_path / "run"
    run.mkdir()
    (run / "link").symlink_to(tmp_path)
    cfg = {**CFG, "type": "tells_threads", "import_names": ["tells_threads"]}
    with use_manager(PluginManager(Switches())), torch_threads(3), guarded(run):
        mode = create_policy(cfg, enable_field=["learn"], seed=0).learn_mode
        with LearnerAggregator(mode, cfg, 2) as ranks:
            log = ranks.learn_mode.forward(next(batches(1)))
    assert (log["threads"], log["refused"]) == (3, 1.0)  # the means of both ranks


def test_a_batch_with_a_remainder_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        split_batch(next(batches(1, size=7)), 2)
    assert caught.value.path == "policy.learn.batch_size"


LOOPBACK = "0100007F"
"""127.0.0.1 in the format of /proc."""


def listening_sockets(pid: int | str) -> dict[str, str]:
    """Return the address, in the format of /proc, of each socket that a process listens on."""
    links = [
        str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()
    ]
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in links:
                found[fields[9]] = fields[1].partition(":")[0]
    return found


def new_addresses(before: Collection[str]) -> set[str]:
    """Return the addresses of the sockets that this process listens on and ``before`` lacks."""
    return {
        address for socket, address in listening_sockets("self").items() if socket not in before
    }


def test_policy_that_does_not_average_gradients_is_refused() -> None:
    cfg = {**CFG, "type": "ppo", "priority": False, "learn": {"batch_size": 8}}
    made = create_policy(cfg, enable_field=["learn"], seed=0).learn_mode
    with pytest.raises(ConfigError) as caught:
        aggregator.join_ranks(made, None, 0, 2, 1.0, "127.0.0.1")
    assert caught.value.path == "system.learner_num"


def test_logs_are_averaged_and_sequences_joined() -> None:
    logs = [
        {"loss": 1.0, "name": "a", "[scalars]q": {"x": 1}, "priority": [1.0, 2.0]},
        {"loss": 3.0, "name": "a", "[scalars]q": {"x": 2}, "priority": [3.0, 4.0]},
    ]
    merged = {"loss": 2.0, "name": "a", "[scalars]q": {"x": 1.5}, "priority": [1.0, 2.0, 3.0, 4.0]}
    assert merge_logs(logs) == merged
    assert merge_logs([[each, each] for each in logs]) == [merged, merged]
    arrays = merge_logs([np.array([1.0, 2.0]), np.array([3.0])])
    assert arrays.tolist() == [1.0, 2.0, 3.0]
    assert merge_logs([np.array(1.0), np.array(2.0)]) == 1.5
    assert merge_logs([[], []]) == []


def link_pair() -> tuple[Channel, Channel]:
    """Return both ends of a link between two ranks."""
    one, other = (Channel.within_host(each, 1 << 30) for each in socket.socketpair())
    return one, other


def asked(link: Channel) -> tuple[str, Any]:
    """Return name and arguments of the call that a rank gets."""
    call, frame = link.receive(Call, 20.0)
    return call.name, decode_value(aggregator._KIND, frame)


def tell(link: Channel, head: Done | Failed, value: Any = None) -> None:
    """Send the answer of a rank."""
    link.send(head, encode_value(aggregator._KIND, value), timeout_s=20.0)


@contextlib.contextmanager
def linked_ranks(rank_s: float = 20.0) -> Iterator[tuple[LearnerAggregator, Channel]]:
    """Yield rank 0 and the other end of its link, where the test plays rank 1."""
    link, theirs = link_pair()
    with LearnerAggregator(policy(), CFG, 1) as ranks:
        ranks._ranks.append(aggregator._Rank(1, link, rank_s))
        yield ranks, theirs
    link.close()
    theirs.close()


def test_changes_of_the_policy_are_sent_to_all_ranks() -> None:
    with linked_ranks() as (ranks, other):
        for name, value in (("reset", [3]), ("load_state_dict", policy(seed=1).state_dict())):
            tell(other, Done())
            getattr(ranks.learn_mode, name)(value)
            called, (found,) = asked(other)
            assert called == name
            assert encode_json("value", found) == encode_json("value", value)


def test_infos_are_merged_as_by_di_engine() -> None:
    infos = [
        {"learner_step": step, "loss": 0.5 * step, "ids": [step], "inner": {"task_id": "t", "n": 1}}
        for step in (1, 2)
    ]
    assert LearnerAggregator.merge_info(infos) == {
        "learner_step": 1,
        "loss": [0.5, 1.0],
        "ids": [1, 2],
        "inner": {"task_id": "t", "n": [1, 1]},
    }
    with pytest.raises(TypeError, match="set"):
        LearnerAggregator.merge_info([set()])


def test_rank_that_stops_receiving_or_sending_is_lost() -> None:
    large = next(batches(1, size=1 << 16))  # more than the send buffer of the link
    text = "rank 1 of the learner takes no message"
    with linked_ranks(0.05) as (ranks, _), pytest.raises(WorkerCrashedError, match=text):
        ranks.learn_mode.forward(large)
    with linked_ranks(0.05) as (ranks, other):
        other._sock.sendall(b"DCH1")
        with pytest.raises(WorkerCrashedError, match="rank 1 of the learner did not answer in"):
            ranks._ranks[0].answer(time.monotonic() + 20.0)


def test_error_for_a_script_without_a_main_guard_says_so() -> None:
    link, theirs = link_pair()
    theirs.close()
    ended: Any = SimpleNamespace(exitcode=UNGUARDED, join=lambda timeout_s: None)
    with pytest.raises(ConfigError, match="__main__") as caught:
        aggregator._Rank(1, link, 20.0, ended).answer(time.monotonic())
    link.close()
    assert caught.value.path == "system.learner_num"


DONE, LOST = Done(), Failed("has lost another rank")
FAILED = Failed("failed: NaN", "Traceback ...")


@pytest.mark.parametrize(
    ("answers", "named"),
    [
        ((LOST, None), "rank 2 of the learner did not answer in time"),
        ((None, LOST), "rank 1 of the learner did not answer in time"),
        ((DONE, None), "rank 2 of the learner did not answer in time"),
        ((None, "gone"), "rank 2 of the learner is gone"),
        ((LOST, "gone"), "rank 2 of the learner is gone"),
        ((None, FAILED), "rank 2 of the learner failed: NaN"),
        ((LOST, LOST), "the connection is closed"),
    ],
)
def test_error_names_the_rank_that_did_not_answer(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[Any, ...], named: str
) -> None:
    monkeypatch.setattr(aggregator, "NOTICE_S", 0.05)
    pipes = [link_pair() for _ in answers]
    for answer, (_, theirs) in zip(answers, pipes, strict=True):
        if answer == "gone":
            theirs.close()
        elif answer is not None:
            tell(theirs, answer)
    ranks = LearnerAggregator.__new__(LearnerAggregator)
    ranks._rank_s = 0.05
    ranks._ranks = [
        aggregator._Rank(number, link, 20.0) for number, (link, _) in enumerate(pipes, 1)
    ]
    error = ranks._find_lost(ConnectionError("the connection is closed"))
    assert str(error) == named
    for link, theirs in pipes:
        link.close()
        theirs.close()
