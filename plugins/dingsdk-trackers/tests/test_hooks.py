"""What the hooks send to Weights & Biases and MLflow, and that both work offline."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dingsdk.errors import HookError
from tests.unit.learner.conftest import make_learner, scripted

__all__ = ["make_learner", "scripted"]  # fixtures


class Called:
    """Replaces a package that takes seconds to import; it has any attribute and records calls."""

    def __init__(self, name="", calls=None):
        self.name, self.calls = name, [] if calls is None else calls

    def __getattr__(self, name):
        return type(self)(f"{self.name}.{name}".lstrip("."), self.calls)

    def __call__(self, *args, **kwargs):
        self.calls.append((self.name, args, kwargs))
        return type(self)(f"{self.name}()", self.calls)

    def of(self, name):
        return [(args, kwargs) for called, args, kwargs in self.calls if called == name]


def hooked(**hooks):
    full = {name: {"type": name, "position": "after_iter", **more} for name, more in hooks.items()}
    quiet = {"save_ckpt_after_iter": False, "save_ckpt_after_run": False}
    return {"hook": {**quiet, **full}}


def losses(*values):
    """Return a forward that logs one of these losses in each iteration."""
    left = list(values)
    return lambda data: {"loss": left.pop(0)}


def train_three_times(learner):
    for envstep in (8, 16, 24):
        learner.train([{}], envstep)
    learner.close()
    learner.close()


class TestTrackers:
    def test_mlflow_gets_each_variable_with_its_iteration(
        self, scripted, make_learner, tmp_path, monkeypatch
    ):
        mlflow = Called()
        monkeypatch.setitem(sys.modules, "mlflow", mlflow)
        args = {"ext_args": {"freq": 2, "experiment": "tests"}}
        learner = make_learner(scripted(losses(1.0, 2.0, 3.0)), hooked(mlflow=args))
        train_three_times(learner)

        ((_, client),) = mlflow.of("MlflowClient")
        database = tmp_path / "run" / "log" / "learner" / "mlflow.db"
        assert client == {"tracking_uri": f"sqlite:///{database}"}
        assert mlflow.of("MlflowClient().get_experiment_by_name") == [(("tests",), {})]
        assert mlflow.of("MlflowClient().create_experiment") == []
        (((experiment,), run),) = mlflow.of("MlflowClient().create_run")
        assert experiment.name == "MlflowClient().get_experiment_by_name().experiment_id"
        assert run == {"run_name": "run"}
        metrics = [args for args, _ in mlflow.of("entities.Metric")]
        kept = [(name, value, at) for name, value, _, at in metrics if name != "train_time"]
        assert kept == [
            ("env_steps", 8.0, 0),
            ("loss", 1.0, 0),
            ("env_steps", 24.0, 2),
            ("loss", 3.0, 2),
        ]
        assert {now.name for _, _, now, _ in metrics} == {"utils.time.get_current_time_millis()"}
        sent = [kwargs["metrics"] for _, kwargs in mlflow.of("MlflowClient().log_batch")]
        assert [len(rows) for rows in sent] == [3, 3]
        assert len(mlflow.of("MlflowClient().set_terminated")) == 1
        about = [
            *mlflow.of("MlflowClient().log_batch"),
            *mlflow.of("MlflowClient().set_terminated"),
        ]
        assert {run.name for (run,), _ in about} == {"MlflowClient().create_run().info.run_id"}

    def test_wandb_gets_the_variables_of_an_iteration_together(
        self, scripted, make_learner, tmp_path, monkeypatch
    ):
        wandb = Called()
        monkeypatch.setitem(sys.modules, "wandb", wandb)
        args = {"type": "wandb", "ext_args": {"freq": 2, "name": "mine"}}
        learner = make_learner(scripted(losses(1.0, 2.0, 3.0)), hooked(follow=args))
        train_three_times(learner)

        ((_, run),) = wandb.of("init")
        assert (run["project"], run["name"], run["mode"]) == ("dingsdk", "mine", "offline")
        assert run["dir"] == str(tmp_path / "run" / "log" / "learner")
        logged = [(kwargs["step"], args[0]) for args, kwargs in wandb.of("init().log")]
        assert [(step, each["env_steps"], each["loss"]) for step, each in logged] == [
            (0, 8, 1.0),
            (2, 24, 3.0),
        ]
        assert len(wandb.of("init().finish")) == 1
        assert wandb.of("Settings") == [((), {"console": "off", "silent": True})]

    @pytest.mark.parametrize("package", ["wandb", "mlflow"])
    def test_error_for_a_missing_package_says_how_to_install_it(
        self, package, scripted, make_learner, monkeypatch
    ):
        monkeypatch.setitem(sys.modules, package, None)
        said = f"needs the package {package}; to get it: pip"
        with pytest.raises(HookError, match=said) as caught:
            make_learner(scripted(losses(1.0)), hooked(follow={"type": package}))
        assert (caught.value.facts["name"], caught.value.facts["found"]) == ("follow", package)


def run_alone(source, tmp_path):
    """Run a script in a separate process, because trackers start threads and processes."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(source))
    command = [sys.executable, str(script), str(tmp_path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=150)


@pytest.mark.slow
def test_wandb_and_mlflow_log_offline(tmp_path):
    done = run_alone(
        """
        import sys
        from pathlib import Path
        import dingsdk

        hook = {kind: {"type": kind, "position": "after_iter", "ext_args": {"freq": 2}}
                for kind in ("wandb", "mlflow")}
        sets = ("env.collector_env_num=2", "env.evaluator_env_num=1", "env.n_evaluator_episode=1",
                "policy.collect.n_sample=8", "policy.learn.batch_size=8",
                "policy.learn.learner.train_iterations=6")
        config = {"env": {"env_id": "CartPole-v1"},
                  "policy": {"type": "dqn", "learn": {"learner": {"hook": hook}}}}
        result = dingsdk.train(config, sets=sets, output=sys.argv[1])
        print(result.run_dir, result.train_iter)

        import wandb
        from mlflow import MlflowClient
        client = MlflowClient(f"sqlite:///{result.run_dir.absolute()}/log/learner/mlflow.db")
        (run,) = client.search_runs([client.get_experiment_by_name("dingsdk").experiment_id])
        print(run.info.status, wandb.run)
        print([each.step for each in client.get_metric_history(run.info.run_id, "total_loss")])
        """,
        tmp_path,
    )

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()[-3:]
    folder, iterations = lines[0].rsplit(" ", 1)
    assert iterations == "6"
    assert lines[1] == "FINISHED None"  # wandb.run is None after the run has finished
    assert lines[2] == "[0, 2, 4]"
    (written,) = Path(folder).glob("log/learner/wandb/offline-run-*/run-*.wandb")
    assert b"total_loss" in written.read_bytes()
