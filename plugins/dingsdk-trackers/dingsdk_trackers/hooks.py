"""Learner hooks that log to Weights & Biases and to MLflow."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from dingsdk.config import Count, Section
from dingsdk.errors import HookError
from dingsdk.plugins import install_command
from dingsdk.runtime import open_private
from dingsdk.worker import BaseLearner, Tracker


class _Args(Section, frozen=True, kw_only=True):
    """Options of both hooks.

    Attributes:
        freq: The hook acts in iterations whose number is divisible by this.
        name: Name of the run; if empty, that of the run folder.
    """

    freq: Count = 10
    name: str = ""


class _WandbArgs(_Args, frozen=True, kw_only=True):
    """Options of ``wandb``.

    Attributes:
        project: Name of the project.
        mode: ``offline`` writes to the log folder, for ``wandb sync``; ``online`` to the server.
    """

    project: str = "dingsdk"
    mode: Literal["offline", "online"] = "offline"


class _MlflowArgs(_Args, frozen=True, kw_only=True):
    """Options of ``mlflow``.

    Attributes:
        experiment: Name of the experiment; it is created if absent.
        tracking_uri: MLflow's tracking URI; if empty, the file ``mlflow.db`` in the log folder.
    """

    experiment: str = "dingsdk"
    tracking_uri: str = ""


class WandbHook(Tracker):
    """Logs to Weights & Biases (extra ``wandb``), offline unless ``mode`` says otherwise."""

    Args = _WandbArgs
    _run: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._wandb = _import("wandb", self.name)

    def write(self, engine: BaseLearner, values: Mapping[str, float]) -> None:
        """Log the values, in a run that the first call begins."""
        if self._run is None:
            run_dir = Path(engine.exp_name)
            self._run = self._wandb.init(
                project=self.args.project,
                name=self.args.name or run_dir.name,
                mode=self.args.mode,
                dir=str(self.log_folder(engine)),
                config={"run_dir": str(run_dir)},
                settings=self._wandb.Settings(console="off", silent=True),
            )
        self._run.log({"env_steps": engine.collector_envstep, **values}, step=engine.train_iter)

    def close(self) -> None:
        """Finish the run."""
        run, self._run = self._run, None
        if run is not None:
            run.finish()


class MlflowHook(Tracker):
    """Logs to MLflow (extra ``mlflow``): to an SQLite file, or to ``tracking_uri``."""

    Args = _MlflowArgs

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._mlflow = _import("mlflow", self.name)
        self._client: Any = None
        self._run_id = ""

    def write(self, engine: BaseLearner, values: Mapping[str, float]) -> None:
        """Log the values, in a run that the first call begins."""
        iteration = engine.train_iter
        if self._client is None:
            self._start(engine)
        steps = {"env_steps": float(engine.collector_envstep), **values}
        now = self._mlflow.utils.time.get_current_time_millis()
        metric = self._mlflow.entities.Metric
        rows = [metric(name, value, now, iteration) for name, value in steps.items()]
        self._client.log_batch(self._run_id, metrics=rows)

    def _start(self, engine: BaseLearner) -> None:
        uri = self.args.tracking_uri
        if not uri:
            file = self.log_folder(engine) / "mlflow.db"
            os.close(open_private(file, os.O_RDWR | os.O_CREAT))  # SQLite would follow a link
            uri = f"sqlite:///{file}"
        client = self._mlflow.MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(self.args.experiment)
        own = found.experiment_id if found else client.create_experiment(self.args.experiment)
        name = self.args.name or Path(engine.exp_name).name
        self._run_id = client.create_run(own, run_name=name).info.run_id
        self._client = client

    def close(self) -> None:
        """End the run."""
        client, self._client = self._client, None
        if client is not None:
            client.set_terminated(self._run_id)


def _import(package: str, hook: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise HookError(
            f"the learner hook {hook!r} needs the package {package}; to get it: "
            f"{install_command('dingsdk-rl-trackers', package)}",
            name=hook,
            found=package,
        ) from error
