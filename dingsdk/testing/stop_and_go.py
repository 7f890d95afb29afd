"""Checks that a run that is interrupted and resumed gives the same result as a whole run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dingsdk.data.pytree import different_leaves, flatten
from dingsdk.data.tagged import Encoder
from dingsdk.worker.replay_buffer import persistence

_BY_THE_CLOCK = frozenset(
    {
        *("elapsed_s", "_duration_s", "_total_duration_s", "train_time", "data_time"),
        "schedule",  # its last entry is a clock time; the evaluations themselves are compared
        "config",  # an interrupted run may have had another limit
    }
)


class StopAndGo:
    """Interrupts a serial run of a config, resumes it, and compares it with an uninterrupted run.

    For authors of policies, envs, env managers and replay buffers: it finds state that affects
    the rest of a run but is not saved. Use it in the main thread.

    Args:
        config: As for ``dingsdk.train``; it should have a limit that a run reaches within seconds.
        sets: Overrides, as for ``dingsdk.train``.
        kwargs: ``env`` and ``policy``, as for ``dingsdk.train``.

    Example:
        >>> check = StopAndGo("cartpole-dqn", ["system.max_env_steps=2000"])  # doctest: +SKIP
        >>> check.run(tmp_path, after_iterations=[7, 100])  # doctest: +SKIP
    """

    def __init__(self, config: Any, sets: Sequence[str] = (), **kwargs: Any) -> None:
        self._config = config
        self._sets = [*sets, "system.save_every=1e9"]  # only one save, when the run ends
        self._options = kwargs

    def run(self, folder: Path, after_iterations: Sequence[int]) -> None:
        """Run once without interruption, and once interrupted after these train iterations.

        Args:
            folder: The folder in which the run folders are made.
            after_iterations: Numbers of iterations, ascending.

        Raises:
            AssertionError: the final states differ; the message names the entries.
        """
        from dingsdk.pipeline.train import resume, train

        def start(name: str, *callbacks: Callable[..., None]) -> Path:
            options = {"sets": [*self._sets, f"exp_name={name}"], **self._options}
            return train(self._config, output=folder, callbacks=callbacks, **options).run_dir

        whole = start("whole")
        first, *later = after_iterations
        run = start("stopped", _interrupt_after(first))
        for iteration in later:
            resume(run, callbacks=[_interrupt_after(iteration)], **self._options)
        resume(run, **self._options)
        different = different_leaves(outcome_of(whole), outcome_of(run))
        assert not different, f"the resumed run differs in {', '.join(different[:20])}"


def _interrupt_after(last: int) -> Callable[[int], None]:
    def after_iter(iteration: int) -> None:
        if iteration == last:
            signal.raise_signal(signal.SIGINT)

    return after_iter


def outcome_of(run: Path) -> dict[tuple[Any, ...], Any]:
    """Return the leaves of the saved state and rows of a run, without those of the clock."""
    from dingsdk.pipeline.resume import find_save

    save = find_save(run)
    buffers = [persistence.SavedRows(path) for path in sorted(save.path.glob("buffer*"))]
    state = save.state.plain()
    del state["run"]  # each run has another id
    state["buffer"] = [each.state for each in buffers]
    state["rows"] = [list(each.whole()) for each in buffers]
    # Encoded, because random generators and deques of arrays have no equality.
    leaves = flatten(Encoder().visit(state))
    return {path: leaf for path, leaf in leaves if _BY_THE_CLOCK.isdisjoint(path)}
