import copy
import errno
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from dingsdk.data import SampleBatch
from dingsdk.errors import (
    CheckpointError,
    ConfigError,
    ConfigTypeError,
    HookError,
    StorageFullError,
    UnknownKeyError,
    UnknownPluginError,
)
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.policy import Adam
from dingsdk.worker.learner.checkpoint import load_checkpoint
from dingsdk.worker.learner.hooks import (
    LearnerHook,
    LoadCkptHook,
    LogReduceHook,
    LogShowHook,
    SaveCkptHook,
    build_learner_hook_by_cfg,
    first_checkpoint,
    merge_hooks,
    register_learner_hook,
)
from tests.fakes import IdlePolicy
from tools.os_calls import failing_calls

from .checkpoint_files import save

NO_SAVE = {"save_ckpt_after_iter": False, "save_ckpt_after_run": False}


class Note(LearnerHook):
    def __init__(self, name, priority, *, ext_args, **kwargs):
        super().__init__(name, priority, **kwargs)
        self.ext_args = ext_args

    def __call__(self, engine):
        engine.info(self.ext_args.text)


@pytest.fixture
def manager():
    with use_manager(PluginManager()) as manager:
        yield manager


def summary(hooks):
    return {
        position: [(hook.name, type(hook), hook.priority) for hook in held]
        for position, held in hooks.items()
    }


class TestBuild:
    def test_simplified_entries(self):
        hooks = build_learner_hook_by_cfg(
            {
                "load_ckpt_before_run": "some/ckpt",
                "log_show_after_iter": 10,
                "save_ckpt_after_iter": 1e4,
                "save_ckpt_after_run": True,
                "log_reduce_after_iter": True,
            }
        )

        assert summary(hooks) == {
            "before_run": [("load_ckpt", LoadCkptHook, 20)],
            "after_run": [("save_ckpt_after_run", SaveCkptHook, 20)],
            "before_iter": [],
            "after_iter": [
                ("log_reduce_after_iter", LogReduceHook, 10),
                ("log_show", LogShowHook, 20),
                ("save_ckpt_after_iter", SaveCkptHook, 20),
            ],
        }

    @pytest.mark.parametrize("off", [False, 0, None])
    def test_false_registers_nothing(self, off):
        entries = dict.fromkeys(("log_show_after_iter", "save_ckpt_after_iter"), off) | {
            "save_ckpt_after_run": False,
            "log_reduce_after_iter": None,
        }

        assert not any(build_learner_hook_by_cfg({**entries, "load_ckpt_before_run": ""}).values())

    def test_full_entry_under_a_simplified_key_may_omit_type_and_position(self):
        hooks = build_learner_hook_by_cfg({"save_ckpt_after_iter": {"ext_args": {"freq": 3}}})

        assert summary(hooks)["after_iter"] == [("save_ckpt_after_iter", SaveCkptHook, 100)]

    @pytest.mark.parametrize(
        ("cfg", "error", "path"),
        [
            ({"save_ckpt_after_itr": 5}, UnknownKeyError, "hook.save_ckpt_after_itr"),
            ({"save_ckpt_after_itr": False}, UnknownKeyError, "hook.save_ckpt_after_itr"),
            ({"log_show_after_iter": "often"}, ConfigTypeError, "hook.log_show_after_iter"),
            ({"log_show_after_iter": 1.5}, ConfigTypeError, "hook.log_show_after_iter"),
            ({"load_ckpt_before_run": 3}, ConfigTypeError, "hook.load_ckpt_before_run"),
            ({"save_ckpt_after_run": "yes"}, ConfigTypeError, "hook.save_ckpt_after_run"),
            ({"a": {"position": "after_run"}}, ConfigTypeError, "hook.a.type"),
            ({"a": {"type": "log_show"}}, ConfigTypeError, "hook.a.position"),
            (
                {"a": {"type": "log_show", "positon": "after_run"}},
                UnknownKeyError,
                "hook.a.positon",
            ),
            (
                {"a": {"type": "log_sho", "position": "after_run"}},
                UnknownPluginError,
                "hook.a.type",
            ),
        ],
    )
    def test_error_for_a_bad_entry_names_its_path(self, cfg, error, path):
        with pytest.raises(error) as caught:
            build_learner_hook_by_cfg(cfg, config_path="hook")

        assert caught.value.facts["path"] == path

    def test_error_for_an_unknown_key_names_the_nearest_one(self):
        with pytest.raises(UnknownKeyError, match="did you mean 'save_ckpt_after_iter'") as caught:
            build_learner_hook_by_cfg({"save_ckpt_after_itr": 5})

        assert caught.value.facts["nearest"] == "save_ckpt_after_iter"

    @pytest.mark.parametrize(("position", "nearest"), [("before_itr", "before_iter"), ("x", None)])
    def test_error_for_an_unknown_position_names_the_nearest_one(self, position, nearest):
        with pytest.raises(HookError, match="use one of") as caught:
            SaveCkptHook("a", 1, position=position)

        assert caught.value.facts["nearest"] == nearest

    @pytest.mark.parametrize("priority", [-1, "first", None, float("nan"), True])
    def test_a_bad_priority_is_refused(self, priority):
        entry = {"type": "save_ckpt", "position": "after_iter", "priority": priority}

        with pytest.raises(AssertionError) as caught:
            SaveCkptHook("a", priority, position="after_iter")
        with pytest.raises((HookError, ConfigTypeError)):
            build_learner_hook_by_cfg({"a": entry})

        assert isinstance(caught.value, HookError)

    def test_section_nested_under_the_key_hook_is_unwrapped(self, manager):
        register_learner_hook("note", SaveCkptHook)
        register_learner_hook("note", Note)  # replaces the first
        inner = {"save_ckpt_after_run": True, "hook": {"type": "note", "position": "before_run"}}

        assert summary(build_learner_hook_by_cfg({"hook": inner})) == summary(
            build_learner_hook_by_cfg(inner)
        )
        alone = build_learner_hook_by_cfg({"hook": inner["hook"]})
        assert summary(alone)["before_run"] == [("hook", Note, 100)]
        assert not any(build_learner_hook_by_cfg({"hook": {}}).values())


@pytest.mark.parametrize("wrong", [int, object(), lambda engine: None])
def test_only_learner_hooks_can_be_registered(wrong):
    with pytest.raises(AssertionError):
        register_learner_hook("wrong", wrong)


def test_merging_tables_with_different_positions_is_refused():
    with pytest.raises(HookError):
        merge_hooks({"after_run": []}, {"before_run": []})


class TestSave:
    @pytest.mark.parametrize(
        ("per_training", "expected"),
        [(1, {0: 1, 2: 3, 4: 5, 6: 6}), (3, {0: 3, 2: 3, 4: 6, 6: 6})],
    )
    def test_every_second_checkpoint_counts_the_iterations_that_its_weights_were_trained_for(
        self, make_learner, scripted, per_training, expected
    ):
        learner = make_learner(
            scripted(lambda data: [{"loss": 1.0}] * per_training),
            {"hook": {"save_ckpt_after_iter": 2, "save_ckpt_after_run": True}},
        )
        for _ in range(6 // per_training):
            learner.train([{}])
        learner.call_hook("after_run")

        for name, count in expected.items():
            path = learner.checkpoint_dir / f"iteration_{name}.safetensors"
            assert load_checkpoint(path).iteration == count
        names = {path.stem for path in learner.checkpoint_dir.iterdir()}
        assert names == {"latest", *(f"iteration_{name}" for name in expected)}
        assert learner.updates == learner.train_iter == 6

    def test_old_iterations_are_removed_and_the_best_is_kept(
        self, make_learner, scripted, tmp_path
    ):
        learner = make_learner(
            scripted(lambda data: {"loss": 1.0}),
            {"keep_last_ckpt": 2, "hook": {"save_ckpt_after_iter": 1}},
            instance_name="expert",
        )
        assert learner.checkpoint_dir == tmp_path / "run" / "ckpt_expert"
        learner.train([{}])
        learner.save_checkpoint("ckpt_best.pth.tar")

        for _ in range(5):
            learner.train([{}])

        names = {path.stem for path in learner.checkpoint_dir.iterdir()}
        assert names == {"iteration_4", "iteration_5", "ckpt_best", "latest"}
        assert load_checkpoint(learner.checkpoint_dir / "ckpt_best").iteration == 1

    def test_full_disk_skips_a_checkpoint_and_training_continues(
        self, make_learner, scripted, caplog
    ):
        learner = make_learner(
            scripted(lambda data: {"loss": 1.0}), {"hook": {"save_ckpt_after_iter": 1}}
        )
        learner.train([{}])

        with failing_calls(("writev",), 1, errno.ENOSPC, persistent=True):
            learner.train([{}])
            with pytest.raises(StorageFullError, match="iteration_2"):
                learner.call_hook("after_run")
        learner.train([{}])

        assert "no checkpoint of iteration 1" in caplog.text
        names = {path.stem for path in learner.checkpoint_dir.iterdir()}
        assert names == {"iteration_0", "iteration_2", "latest"}


class TestLoad:
    @pytest.mark.parametrize("kind", ["ours", pytest.param("torch", marks=pytest.mark.slow)])
    @pytest.mark.parametrize("is_resumed", [False, True])
    def test_a_new_run_keeps_its_optimizer_settings_and_a_resumed_run_those_of_the_checkpoint(
        self, make_learner, tmp_path, kind, is_resumed
    ):
        class Plain(IdlePolicy):
            """Trains one weight with the gradient 3."""

            rate, decay = 0.5, 0.25

            def build(self):
                self.net = torch.nn.Linear(1, 1, bias=False)
                if kind == "ours":
                    self.optimizer = Adam(self.net, self.rate)
                    return
                self.optimizer = torch.optim.AdamW(
                    self.net.parameters(), self.rate, weight_decay=self.decay
                )
                self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda _: 1.0)

            def learn(self, batch):
                loss = self.net.weight.sum() * 3
                if kind == "ours":
                    return {"total_loss": 0.0, "norm": self.optimizer.minimize(loss)}
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                return {"total_loss": 0.0}

            def state(self):
                found = {"model": self.net, "optimizer": self.optimizer}
                return found if kind == "ours" else {**found, "scheduler": self.scheduler}

        class Slower(Plain):
            rate, decay = 0.125, 0.0

        def learner_of(policy, name, **hooks):
            made = policy({}, ["learn"], seed=0).learn_mode
            return make_learner(made, {"hook": {**NO_SAVE, **hooks}}, exp_name=str(tmp_path / name))

        first = learner_of(Plain, "a")
        first.policy.set_attribute("learning_rate_factor", 0.5)  # sets initial_lr too
        batch = SampleBatch({"obs": np.zeros((1, 1), np.float32)})
        first.train(batch)
        first.save_checkpoint()
        args = {"load_path": str(first.checkpoint_dir), "restores_settings": is_resumed}
        second = learner_of(Slower, "b", load_ckpt_before_run={"ext_args": args})
        fresh = copy.deepcopy(second.policy.state_dict())
        second.call_hook("before_run")

        saved, found = first.policy.state_dict(), second.policy.state_dict()
        assert found["model"] == saved["model"]
        expected = saved if is_resumed else fresh
        (group,), (wanted,) = (each["optimizer"]["param_groups"] for each in (found, expected))
        assert group == wanted
        assert (group["lr"] == 0.125) is not is_resumed
        step = found["optimizer"]["step"] if kind == "ours" else found["scheduler"]["last_epoch"]
        assert step == 1
        for each in (first, second):
            each.train(batch)
        weights = [each.policy.state_dict()["model"]["weight"] for each in (first, second)]
        assert torch.equal(*weights) is is_resumed

    def test_a_checkpoint_of_another_network_is_refused(self, make_learner, learn_mode, tmp_path):
        model = {"obs_shape": 7, "action_shape": 3}
        other = make_learner(learn_mode(model=model), exp_name=str(tmp_path / "other"))
        other.save_checkpoint("ckpt_best")
        path = str(other.checkpoint_dir / "ckpt_best.pth.tar")
        learner = make_learner(learn_mode(), {"hook": {**NO_SAVE, "load_ckpt_before_run": path}})

        with pytest.raises(CheckpointError, match="does not fit this policy"):
            learner.call_hook("before_run")

        assert learner.train_iter == 0

    def test_first_checkpoint_is_the_one_that_the_last_load_hook_loads(self, tmp_path):
        paths = [save(tmp_path, f"iteration_{number}", iteration=number) for number in (5, 6)]
        five, six = map(str, paths)
        full = {"type": "load_ckpt", "position": "before_run", "ext_args": {"load_path": six}}
        other = {"type": "nowhere", "position": "before_run"}
        for cfg, iteration in (
            ({}, None),
            ({"load_ckpt_before_run": ""}, None),
            ({"load_ckpt_before_run": five, "log_show_after_iter": 3}, 5),
            ({"mine": full, "other": other}, 6),
            ({"mine": full, "load_ckpt_before_run": five}, 6),  # its priority comes later
        ):
            found = first_checkpoint(cfg)
            assert (found and found.iteration) == iteration


class TestLogReduce:
    def test_learners_with_several_ranks_have_the_hook_unless_it_is_disabled(
        self, make_learner, scripted
    ):
        policy = scripted(lambda data: {"loss": 1.5})

        with pytest.raises(ConfigError, match="init_process_group"):
            make_learner(policy, dist_info=(0, 2)).train([{}])
        alone = make_learner(policy, {"hook": {"log_reduce_after_iter": False}}, dist_info=(0, 2))
        assert alone.train([{}]) == [{"loss": 1.5}]

    @pytest.mark.slow
    def test_two_ranks_on_gloo_log_their_mean(self, tmp_path):
        code = textwrap.dedent(
            """
            import sys
            import torch.distributed as dist
            from dingsdk.worker.learner.hooks import LogReduceHook

            class Engine:
                world_size = 2
                log_buffer = {}

            rank, store = int(sys.argv[1]), sys.argv[2]
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
            Engine.log_buffer = {
                "scalar": {"loss": 1.0 + rank, "noreduce_rank": rank},
                "scalars": {"norm": {"a": 10 * rank}},
                "histogram": {"h": [rank]},
            }
            LogReduceHook("reduce", 10, position="after_iter")(Engine)
            assert Engine.log_buffer == {
                "scalar": {"loss": 1.5, "noreduce_rank": rank},
                "scalars": {"norm": {"a": 5.0}},
                "histogram": {"h": [rank]},
            }, Engine.log_buffer
            dist.destroy_process_group()
            """
        )
        command = [sys.executable, "-c", code]
        store = str(tmp_path / "store")
        ranks = [
            subprocess.Popen([*command, str(r), store], stderr=subprocess.PIPE) for r in (0, 1)
        ]
        errors = [rank.communicate(timeout=90)[1].decode() for rank in ranks]

        assert [rank.returncode for rank in ranks] == [0, 0], errors
