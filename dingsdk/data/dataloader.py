"""Loads batches in advance, in a thread and in worker processes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from typing import Any

from dingsdk.data.pytree import map_leaves
from dingsdk.data.sample_batch import collate
from dingsdk.errors import ConfigError, WorkerCrashedError
from dingsdk.runtime.deadline import Closing
from dingsdk.runtime.spawn import spawn_context

JOIN_S, PROCESSES_JOIN_S = 5.0, 30.0
"""How long ``close`` waits for the thread: without worker processes, and with them, because they
may still be starting. If the data source blocks for longer, the thread ends with the program."""

_BROKEN = (
    "a process of num_workers ended; what it said is above. It needs the callables at the top of a "
    "module or of a script that is a file, where work stands below "
    '`if __name__ == "__main__":`'
)


class AsyncDataLoader(Closing):
    """Loads batches in advance; iterate over it, or call ``next``.

    Keeps at most ``2 * max(1, num_workers)`` batches ready. Several threads may take batches.

    Args:
        data_source: ``data_source(batch_size)`` returns the samples of the next batch, or callables
            without arguments that each return a sample. It is called from one thread, and may
            block.
        batch_size: The argument of ``data_source``, >= 1.
        device: Device for the tensors of a batch, as a torch device name.
        chunk_size: Number of callables that a worker process runs at a time; must divide
            ``batch_size``. None: one chunk per process.
        collate_fn: Makes a batch from a list of samples; by default ``dingsdk.collate``.
        num_workers: Number of processes that run the callables, which must be importable there.
            0: the thread runs them.

    Raises:
        ConfigError: ``batch_size`` is not a multiple of ``chunk_size``, a number is too low, or
            this process cannot start other processes.
    """

    def __init__(
        self,
        data_source: Callable[[int], Sequence[Any]],
        batch_size: int,
        device: str = "cpu",
        chunk_size: int | None = None,
        collate_fn: Callable[[Sequence[Any]], Any] = collate,
        num_workers: int = 0,
    ) -> None:
        if batch_size < 1 or num_workers < 0:
            raise ConfigError(
                f"batch_size is {batch_size} and num_workers {num_workers}; at least 1 and 0 are "
                "needed"
            )
        if chunk_size is not None and (chunk_size < 1 or batch_size % chunk_size):
            raise ConfigError(f"batch_size {batch_size} is no multiple of chunk_size {chunk_size}")
        self._source = data_source
        self._batch_size = batch_size
        self._device = device
        self._chunk_size = chunk_size or -(-batch_size // max(1, num_workers))
        self._collate = collate_fn
        self._num_workers = num_workers
        self._spawn = spawn_context("num_workers") if num_workers else None
        self._limit = 2 * max(1, num_workers)
        self._ready: deque[Any] = deque()
        self._error: BaseException | None = None
        self._is_closed = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="data-loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Wait for the next batch and return it; return None if the loader is closed.

        Raises:
            WorkerCrashedError: a process of ``num_workers`` ended.
            Exception: the exception of the data source, of a callable or of ``collate_fn``.
        """
        with self._change:
            self._change.wait_for(lambda: self._ready or self._error or self._is_closed)
            if self._is_closed:
                return None
            if not self._ready and self._error is not None:
                raise self._error
            self._change.notify_all()
            return self._ready.popleft()

    def close(self) -> None:
        """Stop the thread and the processes; waiting calls return. Idempotent."""
        with self._change:
            self._is_closed = True
            self._ready.clear()
            self._change.notify_all()
        self._thread.join(PROCESSES_JOIN_S if self._num_workers else JOIN_S)

    def _run(self) -> None:
        try:
            workers = self._spawn and ProcessPoolExecutor(self._num_workers, mp_context=self._spawn)
            with workers or nullcontext() as executor:
                while self._has_room():
                    batch = self._load(self._source(self._batch_size), executor)
                    with self._change:
                        if self._is_closed:
                            return
                        self._ready.append(batch)
                        self._change.notify_all()
        except Exception as error:
            # Raised again in the threads that take batches.
            with self._change:
                self._error = error
                self._change.notify_all()

    def _has_room(self) -> bool:
        """Wait for room for a batch; return False if the loader is closed."""
        with self._change:
            self._change.wait_for(lambda: self._is_closed or len(self._ready) < self._limit)
            return not self._is_closed

    def _load(self, data: Sequence[Any], executor: Executor | None) -> Any:
        if len(data) and callable(data[0]):
            if executor is None:
                data = _call_all(data)
            else:
                size = self._chunk_size
                chunks = [data[start : start + size] for start in range(0, len(data), size)]
                try:
                    data = [sample for done in executor.map(_call_all, chunks) for sample in done]
                except BrokenProcessPool as error:
                    raise WorkerCrashedError(_BROKEN) from error
        batch = self._collate(data)
        if self._device == "cpu":
            return batch
        return map_leaves(lambda x: x.to(self._device) if hasattr(x, "to") else x, batch)


def _call_all(loaders: Sequence[Callable[[], Any]]) -> list[Any]:
    return [load() for load in loaders]
