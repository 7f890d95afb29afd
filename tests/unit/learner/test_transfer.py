"""What a new run takes from a checkpoint: weights, parts of the model, moments and counts."""

from __future__ import annotations

import copy

import pytest
import torch

from dingsdk.errors import CheckpointError, ConfigError

NO_SAVE = {"save_ckpt_after_iter": False, "save_ckpt_after_run": False}
WIDER = {"obs_shape": 4, "action_shape": 5}


@pytest.fixture
def trained(make_learner, learn_mode, batch, tmp_path):
    """A learner after three iterations and 16 env steps, which has saved a checkpoint."""
    learner = make_learner(learn_mode(seed=1), {"hook": NO_SAVE}, exp_name=str(tmp_path / "a"))
    for seed in range(3):
        learner.train(batch(seed=seed), envstep=8 * seed)
    learner.save_checkpoint("source")
    return learner


@pytest.fixture
def begin(make_learner, tmp_path):
    """Returns a learner that has loaded what the arguments say, and its state before."""

    def make(mode, **args):
        args = {"load_path": str(tmp_path / "a" / "ckpt" / "source.safetensors"), **args}
        hook = {**NO_SAVE, "load_ckpt_before_run": {"ext_args": args}}
        learner = make_learner(mode, {"hook": hook}, exp_name=str(tmp_path / "b"))
        before = copy.deepcopy(mode.state_dict())
        learner.call_hook("before_run")
        return learner, before

    return make


def same(first, second):
    assert first.keys() == second.keys()
    return all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("keep", [[], ["optimizer"], ["counters"]])
def test_weights_and_only_what_is_named_are_taken(trained, begin, learn_mode, keep):
    learner, before = begin(learn_mode(seed=2), keep=keep)

    found, saved = learner.policy.state_dict(), trained.policy.state_dict()
    assert same(found["model"], saved["model"])
    assert same(found["target_model"], saved["target_model"])
    assert not same(before["model"], saved["model"])
    assert saved["optimizer"]["exp_avg"].any()
    has_moments = keep == ["optimizer"]
    moments = saved["optimizer"]["exp_avg"] if has_moments else torch.zeros(())
    assert (found["optimizer"]["exp_avg"] == moments).all()
    assert found["optimizer"]["step"] == (3 if has_moments else 0)
    counts = (3, 16) if keep == ["counters"] else (0, 0)
    assert (learner.train_iter, learner.collector_envstep) == counts


def test_part_of_the_model_is_taken_and_the_rest_is_new(trained, begin, learn_mode, batch):
    learner, before = begin(learn_mode(seed=2, model=WIDER), keep=[], parts=["encoder"])

    found, saved = learner.policy.state_dict(), trained.policy.state_dict()["model"]
    for key, tensor in found["model"].items():
        source = saved if key.startswith("encoder.") else before["model"]
        assert torch.equal(tensor, source[key]), key
    assert same(found["target_model"], found["model"])
    assert found["optimizer"]["step"] == 0
    learner.train(batch(), 0)


def test_another_head_is_refused_with_both_shapes_and_the_parts_that_fit(
    trained, begin, learn_mode
):
    mode = learn_mode(seed=2, model=WIDER)
    before = copy.deepcopy(mode.state_dict()["model"])

    with pytest.raises(CheckpointError) as caught:
        begin(mode, keep=[])

    text = str(caught.value)
    assert "source.safetensors" in text
    assert "model.head.bias is of shape (2,) there, and of shape (5,) in the model" in text
    assert text.endswith("give --parts encoder")
    assert same(mode.state_dict()["model"], before)


def test_unknown_part_is_refused_with_the_names_of_the_checkpoint(trained, begin, learn_mode):
    with pytest.raises(CheckpointError, match="no part 'encodr'; did you mean 'encoder'") as caught:
        begin(learn_mode(), keep=[], parts=["encodr"])

    assert caught.value.known == ["encoder", "head"]


def test_moments_are_not_for_parts(begin, learn_mode):
    with pytest.raises(ConfigError, match="keep has 'optimizer'"):
        begin(learn_mode(), parts=["encoder"])
    with pytest.raises(ConfigError, match="restores_settings"):
        begin(learn_mode(), keep=[], restores_settings=True)
