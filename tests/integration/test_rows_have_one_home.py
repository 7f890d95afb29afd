"""Parallel runs in which the learner's process holds the rows of the replay buffer."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dingsdk.worker.coordinator.live_payloads import LivePayloads
from tests.own_plugins import using

from .clusters import ProcessCluster
from .own_parts import EPISODES, OWN_PARTS, RANDOM_REMOVER

BUFFER = "policy.other.replay_buffer"


def table_has_all_rows(cluster: ProcessCluster, *, is_of_episodes: bool) -> bool:
    """Return whether the learner's table has as many samples as acknowledged and not evicted.

    Payloads that wait for their insertion are not counted. A report may be a moment older than the
    count that comes with it.
    """
    (payloads,) = cluster.coordinator.state.buffers.values()
    assert isinstance(payloads, LivePayloads)
    inserted = [each for each in list(payloads._live.values()) if each.is_inserted]
    rows = sum(1 if is_of_episodes else each.rows - each.left.total() for each in inserted)
    return payloads.count() == rows > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "sets", "transport"),
    [
        ("cartpole-dqn", (), "shared_memory"),
        ("cartpole-dqn", (), "flask_fs"),
        ("cartpole-dqn", (f"{BUFFER}.type=advanced", "policy.priority=true"), "shared_memory"),
        ("cartpole-r2d2", (), "shared_memory"),
        ("cartpole-dqn", EPISODES, "shared_memory"),
        ("cartpole-dqn", RANDOM_REMOVER, "shared_memory"),
    ],
    ids=["shared_memory", "flask_fs", "advanced", "sequence", "episode", "random-remover"],
)
def test_another_learner_gets_the_rows_of_one_that_was_killed(
    tmp_path: Path, example: str, sets: tuple[str, ...], transport: str
) -> None:
    with (
        using(**OWN_PARTS),
        ProcessCluster(tmp_path, sets, transport, example=example) as cluster,
    ):
        cluster.expect_training()
        before = cluster.coordinator.status().samples
        os.kill(cluster.pid("learner-0"), signal.SIGKILL)
        incarnation = cluster.incarnation("learner-0")
        cluster.expect(lambda: cluster.incarnation("learner-0") > incarnation)
        cluster.expect(lambda: cluster.coordinator.status().samples.trained > before.trained + 1000)
        cluster.expect(lambda: table_has_all_rows(cluster, is_of_episodes=sets == EPISODES))
        cluster.coordinator.validate_state()
        after = cluster.coordinator.status().samples
        assert set(after.evicted) <= {"overwritten"}
        assert after.acknowledged == after.live + sum(after.evicted.values())
