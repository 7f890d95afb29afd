"""Every hook that a plugin may implement, grouped by the phase in which it fires.

A plugin implements a hook by a module-level function of the same name under ``@hookimpl``;
it may leave out arguments that it does not need. *Chosen by config, ordered by priority,
state per learner*: write a ``LearnerHook``. *Whole process, only observes*: write a hookimpl.

None of these fires once per env step.
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


# life: an error in one of these, but for dingsdk_addhooks, is logged with the plugin's name and
# goes no further.


@hookspec(historic=True)
def dingsdk_addhooks(manager: PluginManager) -> None:
    """Declare hooks of your own by ``manager.add_hookspecs(module)``.

    Fires while the plugin is loaded, before anything of it is registered; an error undoes
    the load.
    """


@hookspec
def dingsdk_plugin_registered(plugin: object, name: str, manager: PluginManager) -> None:
    """Learn of a plugin that was loaded, earlier ones and yourself included.

    Fires after its types were registered, in the thread that loaded it.
    """


@hookspec
def dingsdk_configure(config: Mapping[str, Any]) -> None:
    """Prepare for a run whose compiled config is ``config``; read it, never change it.

    Fires before the run starts, in the process that started it and in each worker process, in
    the main thread; for a plugin that is loaded later, right after its load.
    """


@hookspec
def dingsdk_unconfigure() -> None:
    """Release what ``dingsdk_configure`` took.

    Fires once per ``dingsdk_configure``, however the run ended, and before the next one.
    """


# decide: the plugins are asked in turn, the one that was loaded last first; the first answer that
# is not None counts, and the others are not asked. An exception ends what asked.


@hookspec(firstresult=True)
def dingsdk_create_component(
    kind: str, type_key: str, cls: object, cfg: Mapping[str, Any], args: Any, kwargs: Any
) -> object | None:
    """Create a part in place of ``cls(cfg, *args, **kwargs)``; None leaves it to that.

    ``cls`` is what ``type_key`` of the ``kind`` names, ``cfg`` its section. Wrap what you create
    yourself, or return a subclass of ``cls``: the caller uses its interface. Fires for each part
    that a config names by ``type``, where it is created, in any process and thread.
    """


@hookspec(firstresult=True)
def dingsdk_write_checkpoint(path: Path, contents: Mapping[str, Any]) -> bool | None:
    """Write a checkpoint to the file ``path`` in a format of your own; return True once it is safe.

    A plugin that keeps checkpoints elsewhere leaves a file there all the same: by its name the
    checkpoint is found, and removed with others that are old. ``contents`` has ``state`` (the
    policy's), ``iteration``, ``envstep``, ``meta``, ``dingsdk`` and ``torch``. Answer
    ``dingsdk_read_checkpoint`` too. Fires in the learner's thread, and in the coordinator's for the
    best policy of a parallel run.
    """


@hookspec(firstresult=True)
def dingsdk_read_checkpoint(path: Path) -> Mapping[str, Any] | None:
    """Return the contents of the checkpoint ``path``, with the keys that were to be written.

    None leaves it to dingsdk. Fires where a checkpoint is loaded.
    """


@hookspec(firstresult=True)
def dingsdk_should_stop(run_dir: Path, status: Mapping[str, Any]) -> str | None:
    """Return why the run shall end now, or None to let it go on.

    ``status`` has ``env_steps``, ``train_iter``, ``elapsed_s``, ``last_return``, ``best_return``
    (both None before an evaluation), ``buffer_fill`` and ``workers``. The run ends as at a limit:
    with a checkpoint, a last evaluation, and the text in ``result.json`` as ``stopped_by``. Fires
    in the process that started the run: in serial mode before each collect, in parallel mode
    ten times a second.
    """


# report: every plugin is asked, and the answers are put together. Where two plugins give one name
# a value, or one gives a name of dingsdk's own, the name becomes ``name@plugin``, and the conflict
# is logged once. An exception is logged, and the plugin's values are left out.


@hookspec
def dingsdk_progress_columns(run_dir: Path) -> Mapping[str, float | int | str | None] | None:
    """Return values to show with the progress of a run, by name.

    The live table and its plain lines, the live page and ``progress.jsonl`` show them. Fires about
    twice a second in threads of the process that started the run: return what you have, never wait.
    """


@hookspec
def dingsdk_result_fields(run_dir: Path, result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return fields for ``result.json``, of text, numbers, None, lists and dicts.

    ``result`` is what it holds so far. Fires once, before ``dingsdk_run_finished``, in the process
    and thread that started the run.
    """


# observe: an exception is logged with the plugin's name (its traceback the first time) and
# never reaches the run. The arguments are the run's own objects: read them, keep copies, change
# nothing. The run waits for you: be quick.


@hookspec
def dingsdk_run_started(config: Mapping[str, Any], run_dir: Path) -> None:
    """A run begins; its folder exists and holds the compiled config.

    Fires once, in the process and thread that started the run.
    """


@hookspec
def dingsdk_run_finished(run_dir: Path, result: Mapping[str, Any]) -> None:
    """A run ended, well or not; ``result`` is what ``result.json`` holds.

    Fires once, after every worker stopped, in the process and thread that started the run.
    """


@hookspec
def dingsdk_before_task(worker_id: str, task: Mapping[str, Any]) -> None:
    """A worker is about to process a task. Fires in the worker's process and thread."""


@hookspec
def dingsdk_after_task(worker_id: str, task: Mapping[str, Any], outcome: object) -> None:
    """A worker is done with a task; ``outcome`` is its result, or the exception.

    Fires in the worker's process and thread.
    """


@hookspec
def dingsdk_after_episode(source: str, env_id: int, episode_return: float, length: int) -> None:
    """An episode of ``length`` env steps ended with the undiscounted ``episode_return``.

    ``source`` is the instance name of the collector or evaluator; fires where that runs.
    """


@hookspec
def dingsdk_after_collect(source: str, sample_count: int, envstep: int, train_iter: int) -> None:
    """A collector handed over ``sample_count`` train samples.

    ``envstep`` env steps were collected so far by this source, with a policy of
    ``train_iter``. Fires where the collector runs.
    """


@hookspec
def dingsdk_after_iter(learner: object, iteration: int, log_vars: Mapping[str, Any]) -> None:
    """A learner finished train iteration ``iteration``; ``log_vars`` is the policy's output.

    Fires in the learner's process and thread.
    """


@hookspec
def dingsdk_after_evaluate(source: str, mean_return: float, train_iter: int, envstep: int) -> None:
    """An evaluation ended with ``mean_return`` over its episodes. Fires where it ran."""


@hookspec
def dingsdk_after_checkpoint(path: Path, iteration: int) -> None:
    """A checkpoint was written to ``path`` and is whole. Fires in the learner's thread."""


@hookspec
def dingsdk_pace_changed(worker_id: str, relative_pace: float, is_straggler: bool) -> None:
    """A worker fell far behind the others of its kind, or is one of them again.

    ``relative_pace`` is its pace over the median of theirs (env steps a second, of learners
    iterations). Fires in the master's process, in the coordinator's thread.
    """


@hookspec
def dingsdk_connection_lost(worker_id: str, reason: str) -> None:
    """A worker left or fell silent. Fires in the master's process, on any thread."""
