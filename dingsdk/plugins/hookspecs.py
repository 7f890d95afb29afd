"""All hooks that a plugin may implement, grouped by their purpose.

A plugin implements a hook with a module-level function of the same name: a plain ``def``, marked
with ``@hookimpl``. The function may leave out arguments that it does not need. The other arguments
are passed by position; they have no default values. For a hook that a config selects, with a
priority and a state per learner, write a ``LearnerHook`` instead.

No hook is called once per env step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from dingsdk.plugins.kinds import KINDS

if TYPE_CHECKING:
    from dingsdk.plugins.manager import PluginManager
    from dingsdk.plugins.registry import Registry

PROJECT_NAME = "dingsdk"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
"""Declares a hook, in a module that a plugin passes to ``manager.add_hookspecs``."""

hookimpl = pluggy.HookimplMarker(PROJECT_NAME)
"""Marks a plugin's function as the implementation of the hook of the same name."""


def _register_hook() -> Callable[[Registry], None]:
    def register(registry: Registry) -> None: ...

    return hookspec(register, historic=True)


REGISTER_HOOKS = type(
    "RegisterHooks",
    (),
    {f"dingsdk_register_{kind}": _register_hook() for kind in KINDS}
    | {"__doc__": "The hooks by which plugins register what they provide."},
)
"""One hook ``dingsdk_register_<kind>(registry)`` for each kind."""


# life: an error in one of these is logged with the plugin's name and does not stop the run; an
# error in dingsdk_addhooks undoes the load.


@hookspec(historic=True)
def dingsdk_addhooks(manager: PluginManager) -> None:
    """Declare your own hooks with ``manager.add_hookspecs(module)``.

    Called while the plugin is loaded, before any of its types is registered; an error undoes
    the load.
    """


@hookspec
def dingsdk_plugin_registered(plugin: object, name: str, manager: PluginManager) -> None:
    """Called for each plugin that is loaded: earlier plugins, your plugin, and later ones.

    Called after the types of the plugin were registered, in the thread that loaded it.
    """


@hookspec
def dingsdk_configure(config: Mapping[str, Any]) -> None:
    """Prepare for a run; ``config`` is a copy of its compiled config.

    Called before the run starts, in the process that started it and in each worker process, in
    the main thread. For a plugin that is loaded later, called right after its load.
    """


@hookspec
def dingsdk_unconfigure() -> None:
    """Release the resources that ``dingsdk_configure`` acquired.

    Called once for each ``dingsdk_configure``, after the run, also if it failed.
    """


# decide: the plugins are called one after the other, the last loaded first, until one returns an
# answer that is not None. An exception is raised in the caller, and so is a PluginHookError if the
# caller cannot use the answer.


@hookspec(firstresult=True)
def dingsdk_convert_config(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Convert a config in the format of another library; None if it has another format.

    ``config`` is the content of a file, or the dict that was given to ``train``; for a Python file,
    its dicts whose names end in ``_config``, by name. Return a new dict with dingsdk's sections,
    which is then checked as any other. Called in the process that compiles the config, before
    values of the command line are set.
    """


@hookspec(firstresult=True)
def dingsdk_create_component(
    kind: str, type_key: str, cls: object, cfg: Mapping[str, Any], args: Any, kwargs: Any
) -> object | None:
    """Create a part in place of ``cls(cfg, *args, **kwargs)``; None creates it in this usual way.

    ``cls`` is the class that ``type_key`` names among the ``kind``, ``cfg`` its section. Return a
    wrapper or an object of a subclass: the caller uses the interface of ``cls``. Called for each
    part that a config names by ``type``, in the process and thread that creates it.
    """


@hookspec(firstresult=True)
def dingsdk_write_checkpoint(path: Path, contents: Mapping[str, Any]) -> bool | None:
    """Write a checkpoint to the file ``path`` in your own format; return True once it is stored.

    A plugin that stores checkpoints elsewhere must also write a file at ``path``: dingsdk finds
    checkpoints by their file names, and removes old files. ``contents`` has ``state`` (of the
    policy), ``iteration``, ``envstep``, ``meta``, ``dingsdk`` and ``torch``. Also implement
    ``dingsdk_read_checkpoint``. Called in the learner's thread, and in the coordinator's thread for
    the best policy of a parallel run.
    """


@hookspec(firstresult=True)
def dingsdk_read_checkpoint(path: Path) -> Mapping[str, Any] | None:
    """Return the contents of the checkpoint ``path``, as passed to ``dingsdk_write_checkpoint``.

    If all plugins return None, dingsdk reads the file. Called in the process and thread that loads
    the checkpoint.
    """


@hookspec(firstresult=True)
def dingsdk_should_stop(run_dir: Path, status: Mapping[str, Any]) -> str | None:
    """Return a text that says why the run has to end now, or None to let it continue.

    ``status`` has ``env_steps``, ``train_iter``, ``elapsed_s``, ``last_return``, ``best_return``
    (both None before an evaluation), ``buffer_fill``, ``workers``, and ``numbers``: the means of
    the numbers of the env in the last evaluation, by name. The run ends as at a limit, with a
    checkpoint and a last evaluation; ``result.json`` has the text as ``stopped_by``. Called in the
    process that started the run: in serial mode before each collect, in parallel mode ten times a
    second.
    """


# report: all plugins are called, and the answers are merged. If two plugins return the same name,
# or a plugin returns a name that dingsdk uses, the name becomes ``name@plugin``, and the conflict
# is logged once. An exception is logged, and the plugin's values are left out.


@hookspec
def dingsdk_progress_columns(run_dir: Path) -> Mapping[str, float | int | str | None] | None:
    """Return values to show with the progress of a run, by name.

    The live table, the plain progress lines, the live page and ``progress.jsonl`` contain them.
    Called about twice a second in threads of the process that started the run; return at once.
    """


@hookspec
def dingsdk_result_fields(run_dir: Path, result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return fields for ``result.json``, made of text, numbers, None, lists and dicts.

    ``result`` is the content of the file without fields of plugins. Called once, before
    ``dingsdk_run_finished``, in the process and thread that started the run.
    """


# observe: an exception is logged with the plugin's name (the first time with its traceback) and
# does not stop the run. The arguments are objects that the run uses: do not change them, and make
# copies of what you keep. The run waits until the hook returns, so return quickly.


@hookspec
def dingsdk_run_started(config: Mapping[str, Any], run_dir: Path) -> None:
    """A run begins; its folder exists and contains the compiled config, of which this is a copy.

    Called once, in the process and thread that started the run.
    """


@hookspec
def dingsdk_run_finished(run_dir: Path, result: Mapping[str, Any]) -> None:
    """A run ended, successfully or not; ``result`` is the content of ``result.json``.

    Called once, after all workers stopped, in the process and thread that started the run.
    """


@hookspec
def dingsdk_before_task(worker_id: str, task: Mapping[str, Any]) -> None:
    """A worker is about to process a task. Called in the worker's process and thread."""


@hookspec
def dingsdk_after_task(worker_id: str, task: Mapping[str, Any], outcome: object) -> None:
    """A worker has processed a task; ``outcome`` is its ``dingsdk.worker.comm.TaskAnswer``.

    If the task failed, ``outcome.completed`` is False, and ``message`` and ``traceback`` say why.

    Called in the worker's process and thread.
    """


@hookspec
def dingsdk_after_episode(
    source: str, env_id: int, episode_return: float, length: int, numbers: Mapping[str, float]
) -> None:
    """An episode ended after ``length`` env steps, with the undiscounted ``episode_return``.

    ``numbers`` are those that the env told of the episode: the chosen ones of
    ``env.info_numbers``, and those of its ``episode_info``; none is NaN or infinite.

    ``source`` is the instance name of the collector or evaluator; ``evaluator`` if a collector of
    parallel mode evaluates. Called in the process and thread that plays the episode.
    """


@hookspec
def dingsdk_after_collect(source: str, sample_count: int, envstep: int, train_iter: int) -> None:
    """A collector has collected ``sample_count`` train samples.

    ``envstep`` is the number of env steps of this collector so far, of its current task in parallel
    mode; ``train_iter`` is the iteration of the policy that it used. Called in the collector's
    process and thread.
    """


@hookspec
def dingsdk_after_iter(learner: object, iteration: int, log_vars: Mapping[str, Any]) -> None:
    """A learner finished train iteration ``iteration``; ``log_vars`` is the policy's output.

    Called in the learner's process and thread.
    """


@hookspec
def dingsdk_after_evaluate(source: str, mean_return: float, train_iter: int, envstep: int) -> None:
    """An evaluation ended; ``mean_return`` is the mean over its episodes.

    Called in the process that started the run.
    """


@hookspec
def dingsdk_after_checkpoint(path: Path, iteration: int) -> None:
    """A checkpoint was written completely to ``path``. Called in the learner's thread."""


@hookspec
def dingsdk_pace_changed(worker_id: str, relative_pace: float, is_straggler: bool) -> None:
    """A worker became much slower than the others of its kind, or is as fast as they are again.

    ``relative_pace`` is its pace divided by the median pace of the others. The pace is in env steps
    per second; for learners, iterations per second. Called in the process that started the run.
    """


@hookspec
def dingsdk_connection_lost(worker_id: str, reason: str) -> None:
    """A worker left or stopped answering.

    Called in the process that started the run, in any thread.
    """
