"""The built-in hooks for norms, throughput and files; ``log_vars``."""

import csv
import math
from types import SimpleNamespace

import pytest

from dingsdk.errors import HookError
from dingsdk.plugins import PluginManager, use_manager
from dingsdk.worker.learner.hooks import LearnerHook

QUIET = {"save_ckpt_after_iter": False, "save_ckpt_after_run": False}


def hooked(**hooks):
    full = {name: {"type": name, "position": "after_iter", **more} for name, more in hooks.items()}
    return {"hook": {**QUIET, "log_show_after_iter": 1, **full}}


def losses(*values):
    """Return a forward that logs one of these losses in each iteration."""
    left = list(values)
    return lambda data: {"loss": left.pop(0)}


class Seeing(LearnerHook):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = []

    def __call__(self, engine):
        self.seen.append(engine.log_vars)


class TestLogVars:
    def test_hook_at_any_priority_sees_the_variables_that_log_show_cleared(
        self, scripted, make_learner
    ):
        learner = make_learner(scripted(losses(1.0, 2.0)), hooked())
        early, late = (Seeing(f"p{p}", p, position="after_iter") for p in (1, 100))
        for hook in (early, late):
            learner.register_hook(hook)

        learner.train([{}])
        learner.train([{}])

        assert [each["loss"] for each in early.seen] == [1.0, 2.0]
        assert [each["loss"] for each in late.seen] == [1.0, 2.0]
        assert late.seen[0].keys() == {"loss", "train_time"}
        assert learner.log_buffer["scalar"] == {}
        assert learner.log_vars["loss"] == 2.0
        with pytest.raises(TypeError):
            learner.log_vars["loss"] = 0.0

    def test_added_variables_are_seen_by_later_hooks_in_the_same_iteration(
        self, scripted, make_learner
    ):
        class Adding(Seeing):
            def __call__(self, engine):
                if engine.train_iter == 0:
                    engine.add_log_vars({"extra": 5.0})

        written = []
        writer = SimpleNamespace(
            add_scalar=lambda *scalar: written.append(scalar), add_text=lambda *text: None
        )
        learner = make_learner(scripted(losses(1.0, 2.0)), hooked(), tb_logger=writer)
        seeing = Seeing("late", 60, position="after_iter")
        learner.register_hook(Adding("adding", 50, position="after_iter"))
        learner.register_hook(seeing)
        learner.train([{}])
        learner.train([{}])

        assert [each.get("extra") for each in seeing.seen] == [5.0, None]
        assert [each for each in written if "extra" in each[0]] == [("learner_iter/extra", 5.0, 0)]


class TestNorms:
    def test_norms_of_parameters_and_of_the_last_gradient(self, learn_mode, make_learner, batch):
        learner = make_learner(learn_mode(), hooked(norms={"ext_args": {"freq": 2}}))
        seeing = Seeing("s", 200, position="after_iter")
        learner.register_hook(seeing)
        before = learner.policy.state_dict()["model"]
        expected = math.sqrt(sum(float((each.double() ** 2).sum()) for each in before.values()))

        assert learner.policy.get_attribute("norms")["param_norm/model"] == pytest.approx(expected)
        for _ in range(3):
            learner.train(batch())

        found = [{k: v for k, v in each.items() if "norm/" in k} for each in seeing.seen]
        assert found[1] == {}
        names = {"param_norm/model", "param_norm/target_model", "grad_norm/optimizer"}
        assert found[0].keys() == found[2].keys() == names
        assert found[2]["grad_norm/optimizer"] == seeing.seen[2]["grad_norm"]
        assert found[0]["param_norm/model"] != found[2]["param_norm/model"]

    def test_policy_without_norms_is_refused(self, scripted, make_learner):
        learner = make_learner(scripted(losses(1.0)), hooked(norms={}))

        with pytest.raises(HookError, match="'norms' needs a policy"):
            learner.train([{}])


class TestThroughput:
    def test_rates_between_two_iterations_with_a_fake_clock(self, scripted, make_learner):
        learner = make_learner(scripted(lambda data: {}), hooked())
        with use_manager(PluginManager()) as manager:
            hook_type = manager.get("learner_hooks", "throughput")
        hook = hook_type("t", 50, position="after_iter", ext_args={"freq": 2})
        times = iter([100.0, 104.0, 105.0])
        hook._clock = lambda: next(times)
        seeing = Seeing("s", 60, position="after_iter")
        learner.register_hook(hook)
        learner.register_hook(seeing)

        for _ in range(5):
            learner.train([{}, {}, {}])

        found = [each.get("iterations_per_s") for each in seeing.seen]
        assert found == [None, None, 2 / 4, None, 2 / 1]
        assert (seeing.seen[2]["samples_per_s"], seeing.seen[4]["samples_per_s"]) == (6 / 4, 6 / 1)
        trained = seeing.seen[1]["train_time"] + seeing.seen[2]["train_time"]
        assert seeing.seen[2]["train_share"] == pytest.approx(trained / 4)
        trained = seeing.seen[3]["train_time"] + seeing.seen[4]["train_time"]
        assert seeing.seen[4]["train_share"] == pytest.approx(trained)


class TestFiles:
    def test_csv_contains_every_freq_th_iteration(self, scripted, make_learner, tmp_path):
        policy = scripted(losses(1.0, 2.0, math.inf, 4.0))
        args = {"ext_args": {"freq": 2}}
        learner = make_learner(policy, hooked(csv_log=args))
        for envstep in (8, 16, 24, 32):
            learner.train([{}], envstep)
        learner.close()

        folder = tmp_path / "run" / "log" / "learner"
        with (folder / "metrics.csv").open(newline="") as file:
            read = list(csv.DictReader(file))
        assert [(row["iteration"], row["env_steps"], row["loss"]) for row in read] == [
            ("0", "8", "1.0"),
            ("2", "24", "inf"),
        ]
        assert read[0].keys() == {"iteration", "env_steps", "loss", "train_time"}
        assert (folder / "metrics.csv").stat().st_mode & 0o777 == 0o600

    def test_csv_gets_new_columns_and_continues_after_a_restart(
        self, scripted, make_learner, tmp_path
    ):
        logs = [{"loss": 1.0}, {"loss": 2.0, "kl": 0.5}, {"kl": 0.25}]
        args = {"ext_args": {"freq": 1}}
        for start in (0, 2):
            policy = scripted(lambda data, left=logs[start : start + 2]: left.pop(0))
            learner = make_learner(policy, hooked(csv_log=args))
            for _ in logs[start : start + 2]:
                learner.train([{}])
            learner.close()

        with (tmp_path / "run" / "log" / "learner" / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert list(rows[0]) == ["iteration", "env_steps", "loss", "train_time", "kl"]
        assert [(row["loss"], row["kl"]) for row in rows] == [
            ("1.0", ""),
            ("2.0", "0.5"),
            ("", "0.25"),
        ]

    def test_iterations_that_are_trained_again_replace_their_lines(
        self, scripted, make_learner, tmp_path
    ):
        args = {"ext_args": {"freq": 2}}
        saved = {}
        for values in (losses(*range(6)), losses(*range(30, 36))):
            learner = make_learner(scripted(values), hooked(csv_log=args))
            if saved:
                learner.load_state_dict(saved)
            for _ in range(6):
                if learner.train_iter == 3 and not saved:
                    saved = learner.state_dict()
                learner.train([{}])
            learner.close()

        folder = tmp_path / "run" / "log" / "learner"
        with (folder / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        expected = [(0, 0.0), (2, 2.0), (4, 31.0), (6, 33.0), (8, 35.0)]
        assert [(int(row["iteration"]), float(row["loss"])) for row in rows] == expected

    def test_full_disk_ends_the_log_but_not_the_training(
        self, scripted, make_learner, tmp_path, caplog
    ):
        learner = make_learner(
            scripted(losses(1.0, 2.0, 3.0)), hooked(csv_log={"ext_args": {"freq": 1}})
        )
        (tmp_path / "run" / "log" / "learner" / "metrics.csv").mkdir()
        for _ in range(3):
            learner.train([{}])

        assert learner.train_iter == 3
        (record,) = [r for r in caplog.records if "csv_log" in r.getMessage()]
        said = "the learner hook 'csv_log' ends here, the run continues: "
        assert record.getMessage().startswith(said)
