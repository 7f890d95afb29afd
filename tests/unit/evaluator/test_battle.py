"""Evaluation of player 0 against other players."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dingsdk.errors import ConfigError
from dingsdk.worker import BattleInteractionSerialEvaluator
from tests.unit.collector.duel import DuelEnvs, Fighter


@pytest.fixture
def make_evaluator(tmp_path):
    opened = []

    def make(envs: Any, fighters: Any, **cfg: Any) -> Any:
        modes = [each.mode() for each in fighters]
        evaluator = BattleInteractionSerialEvaluator(cfg, envs, modes, exp_name=str(tmp_path))
        opened.append(evaluator)
        return evaluator

    yield make
    for each in opened:
        each.close()


@pytest.mark.parametrize("partial_step", [False, True])
@pytest.mark.parametrize("players", [2, 3])
def test_each_env_plays_its_quota_and_player_0_is_evaluated(
    make_evaluator, partial_step, players
) -> None:
    envs = DuelEnvs(((2,), (9,)), players, partial_step=partial_step)
    fighters = [Fighter(number) for number in range(players)]
    evaluator = make_evaluator(envs, fighters, n_episode=4, stop_value=5.5)
    saved: list[str] = []

    is_reached, infos = evaluator.eval(saved.append, train_iter=1, envstep=8)

    assert is_reached
    assert saved == ["ckpt_best"]
    for player in range(players):
        assert [info["env"] for info in infos[player]] == [0, 0, 1, 1]
        returns = [float(info["eval_episode_return"]) for info in infos[player]]
        assert returns == [(1 - player) * length for length in (2, 2, 9, 9)]
    if partial_step:
        assert envs.steps == 22
    assert not evaluator.eval(train_iter=0, envstep=8)[0]  # an untrained policy
    told: list[tuple[float, int, int]] = []
    evaluator._tell_observers = lambda *given: told.append(given)
    assert not evaluator.eval()[0]
    assert told == [(5.5, -1, -1)]


def test_second_evaluation_resets_the_envs_and_saves_no_worse_result(make_evaluator) -> None:
    envs = DuelEnvs(((1, 3, 2, 2), (1, 4, 1, 1)))
    fighters = [Fighter(0), Fighter(1)]
    evaluator = make_evaluator(envs, fighters, n_episode=2)
    saved: list[int] = []

    for train_iter in (1, 2):
        is_reached, infos = evaluator.eval(lambda _, at=train_iter: saved.append(at), train_iter)
        assert not is_reached
        assert len(infos[0]) == 2

    assert saved == [1]
    # Resets: in the constructor, before each evaluation, and of each env at its episode end.
    assert fighters[1].resets == [None, None, [0], [1], None, [1], [0]]


def test_episode_with_an_abnormal_step_is_played_again(make_evaluator) -> None:
    envs = DuelEnvs(((4,), (3,)), fails={(0, 1, 2)})
    evaluator = make_evaluator(envs, [Fighter(0), Fighter(1)], n_episode=2)

    _, infos = evaluator.eval(policy_kwargs={"bonus": 1})

    assert [info["env"] for info in infos[1]] == [1, 0]
    assert [int(action) for action in envs.actions[0][0]] == [1, 2]


def test_policies_see_tensors(make_evaluator) -> None:
    fighters = [Fighter(0), Fighter(1)]
    seen: list[Any] = []
    forwards = [each._forward for each in fighters]

    def forward(obs: Any) -> Any:
        seen.extend((type(each), each.dtype) for each in obs.values())
        return forwards[1](obs)

    fighters[1]._forward = forward  # type: ignore[method-assign, assignment]
    make_evaluator(DuelEnvs(((1,),)), fighters).eval(n_episode=1)
    assert seen == [(torch.Tensor, torch.float32)]


def test_statistics_come_from_player_0(make_evaluator, monkeypatch) -> None:
    envs = DuelEnvs(((2,),))
    step = envs._step

    def step_with_info(env_id: int) -> Any:
        timestep = step(env_id)
        for player, info in enumerate(timestep.info):
            info["episode_info"] = {"hits": 3 - player}
        return timestep

    monkeypatch.setattr(envs, "_step", step_with_info)
    evaluator = make_evaluator(envs, [Fighter(0), Fighter(1)])
    written: dict[str, float] = {}
    monkeypatch.setattr(evaluator, "_report", lambda statistics, *_: written.update(statistics))
    evaluator.eval(n_episode=1)
    assert written["hits_mean"] == 3.0


def test_policy_of_one_player_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"^BattleInteractionSerialEvaluator plays") as caught:
        BattleInteractionSerialEvaluator({}, policy=Fighter(0).mode(), exp_name=str(tmp_path))
    assert caught.value.path == "policy.eval.evaluator.type"
