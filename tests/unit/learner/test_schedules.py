"""Numbers of ``policy.learn`` that are schedules: what a training uses, logs and resumes with."""

from __future__ import annotations

import pytest
import torch

from dingsdk.config import Scheduled, Share
from dingsdk.errors import ConfigError
from dingsdk.policy import LearnSection, PolicySection, create_policy
from tests.fakes import IdlePolicy

QUIET = {"save_ckpt_after_iter": False, "save_ckpt_after_run": False}


def linear(start, end, env_steps=100, **more):
    return {"type": "linear", "start": start, "end": end, "env_steps": env_steps, **more}


class Plain(IdlePolicy):
    """Trains one weight w with an optimizer of torch; the loss is w * 3, so the gradient is 3."""

    class Config(PolicySection, frozen=True, kw_only=True):
        """Section ``policy``."""

        class Learn(LearnSection, frozen=True, kw_only=True):
            """Section ``policy.learn``: a rate of the optimizer, and a number that is logged."""

            rate: Scheduled[Share] = 0.5
            weight: Scheduled[Share | None] = None

        type: str = "plain"
        learn: Learn = Learn()

    def build(self):
        self.network = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.constant_(self.network.weight, 4.0)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=self.section.learn.rate)

    def learn(self, batch):
        self.optimizer.zero_grad()
        (self.network.weight.sum() * 3).backward()
        self.optimizer.step()
        return {"total_loss": 0.0, "read": self.section.learn.weight}

    def state(self):
        return {"model": self.network, "optimizer": self.optimizer}


def test_our_adam_gets_the_rate_and_the_clip_of_the_env_steps(make_learner, batch):
    learn = {"learning_rate": linear(0.1, 0.02), "grad_clip_norm": linear(8, 4)}
    model = {"obs_shape": 4, "action_shape": 2}
    policy = create_policy({"type": "dqn", "model": model, "learn": learn}, ["learn"], seed=0)
    learner = make_learner(policy.learn_mode, {"hook": QUIET})

    found = [learner.train(batch(), step)[0] for step in (0, 50, 50, 100, 1000)]

    rates = [0.1, 0.06, 0.06, 0.02, 0.02]
    assert [log["cur_lr"] for log in found] == pytest.approx(rates)
    assert [log["scheduled/learning_rate"] for log in found] == pytest.approx(rates)
    assert [log["scheduled/grad_clip_norm"] for log in found] == pytest.approx([8, 6, 6, 4, 4])
    assert learner.log_vars["scheduled/grad_clip_norm"] == policy._optimizer.max_norm == 4
    assert policy.section.learn.grad_clip_norm == 4


@pytest.mark.slow  # torch.optim imports a compiler
def test_torch_optimizer_gets_the_rate_and_learn_reads_today_s_number(make_learner, batch):
    cfg = {"learn": {"rate": linear(0.5, 0.0), "weight": linear(0, 1)}, "model": {}}
    policy = Plain({"type": "plain", **cfg}, enable_field=["learn"])
    learner = make_learner(policy.learn_mode, {"hook": QUIET})

    weights, read = [], []
    for step in (0, 50, 100):
        read.append(learner.train(batch(), step)[0]["read"])
        weights.append(policy.network.weight.item())

    # The first step is 0.5 * 3, the second is half of it, the third is 0.
    assert weights == pytest.approx([2.5, 1.75, 1.75])
    assert read == [0.0, 0.5, 1.0]
    norms = learner.policy.get_attribute("norms")
    assert norms == pytest.approx({"param_norm/model": 1.75, "grad_norm/optimizer": 3.0})

    # The dicts of its settings are others after it has loaded a state.
    policy.learn_mode.load_state_dict(policy.learn_mode.state_dict())
    learner.train(batch(), 60)
    assert policy.network.weight.item() == pytest.approx(1.75 - 0.2 * 3)


def test_loaded_state_does_not_bring_its_rate(learn_mode, make_learner, batch):
    first, second = (learn_mode(learn={"learning_rate": linear(0.1, 0.02)}) for _ in range(2))
    make_learner(first, {"hook": QUIET}).train(batch(), 0)
    learner = make_learner(second, {"hook": QUIET})
    learner.train(batch(), 50)

    second.load_state_dict(first.state_dict())

    assert learner.train(batch(), 50)[0]["cur_lr"] == pytest.approx(0.06)


def test_training_without_env_steps_is_refused(learn_mode, make_learner, batch):
    mode = learn_mode(learn={"learning_rate": linear(0.1, 0.02)})
    learner = make_learner(mode, {"hook": QUIET})

    with pytest.raises(ConfigError, match=r"learner.train\(data, envstep=...\)"):
        learner.train(batch())
    with pytest.raises(ConfigError, match="set_attribute"):
        learn_mode(learn={"learning_rate": linear(0.1, 0.02)}).forward(batch())


def test_factor_sets_a_rate_that_is_not_scheduled(learn_mode, make_learner, batch):
    with pytest.raises(ConfigError, match="schedule"):
        learn_mode(learn={"learning_rate": linear(0.1, 0.02)}).set_attribute(
            "learning_rate_factor", 0.5
        )
    mode = learn_mode(learn={"huber_delta": linear(1, 2), "learning_rate": 0.1})
    mode.set_attribute("learning_rate_factor", 0.5)
    assert make_learner(mode, {"hook": QUIET}).train(batch(), 0)[0]["cur_lr"] == 0.05


def test_curves_have_the_scheduled_number_itself(learn_mode, make_learner, batch):
    mode = learn_mode(learn={"learning_rate": linear(0.1, 0.02)})
    learner = make_learner(mode, {"hook": {**QUIET, "log_show_after_iter": 1}})
    written = []
    learner.tb_logger.add_scalar = lambda *scalar: written.append(scalar)

    for step in (0, 50):
        learner.train(batch(), step)

    found = [
        scalar[1:] for scalar in written if scalar[0] == "learner_step/scheduled/learning_rate"
    ]
    assert found == [(0.1, 0), (pytest.approx(0.06), 50)]
