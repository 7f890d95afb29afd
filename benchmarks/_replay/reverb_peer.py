"""The Reverb part of ``replay_server.py``, run by a separate interpreter.

    python reverb_peer.py serve          # prints the port, serves until its input ends
    python reverb_peer.py client PORT    # answers `WHAT SECONDS` lines with `COUNT SECONDS`

``insert-*`` are the writers of Reverb: each appends transitions in chunks of 64 and creates an item
for each. ``sample-client`` and ``sample-dataset`` draw batches of 256 transitions.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import reverb
import tensorflow as tf

TABLE = "transitions"
CAPACITY = 1_000_000
CHUNK, BATCH = 64, 256
STEP = {
    "obs": np.zeros(4, np.float32),
    "next_obs": np.zeros(4, np.float32),
    "action": np.int64(0),
    "reward": np.float32(0),
    "done": np.bool_(False),
}


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def serve() -> None:
    signature = {name: tf.TensorSpec(np.shape(v), v.dtype) for name, v in STEP.items()}
    table = reverb.Table(
        TABLE,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=CAPACITY,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=signature,
    )
    server = reverb.Server([table], port=None)
    say(server.port)
    sys.stdin.read()
    server.stop()


def timed(operations: Iterator[int], seconds: float) -> tuple[int, float]:
    """Run operations for some seconds; return the number of transitions and the seconds."""
    begun, count = time.perf_counter(), 0
    for each in operations:
        count += each
        if time.perf_counter() - begun >= seconds:
            break
    return count, time.perf_counter() - begun


def insert_writer(client: reverb.Client) -> Iterator[int]:
    with client.writer(max_sequence_length=CHUNK, chunk_length=CHUNK) as writer:
        while True:
            for _ in range(CHUNK):
                writer.append(STEP)
                writer.create_item(TABLE, num_timesteps=1, priority=1.0)
            yield CHUNK


def insert_trajectory(client: reverb.Client) -> Iterator[int]:
    with client.trajectory_writer(num_keep_alive_refs=CHUNK) as writer:
        while True:
            for _ in range(CHUNK):
                writer.append(STEP)
                last = {name: column[-1] for name, column in writer.history.items()}
                writer.create_item(TABLE, priority=1.0, trajectory=last)
            writer.flush(block_until_num_items=CHUNK)
            yield CHUNK


def insert_structured(client: reverb.Client) -> Iterator[int]:
    pattern = reverb.structured_writer.pattern_from_transform(
        STEP, lambda step: {name: column[-1] for name, column in step.items()}
    )
    config = reverb.structured_writer.create_config(pattern=pattern, table=TABLE)
    writer = client.structured_writer([config])
    try:
        while True:
            for _ in range(CHUNK):
                writer.append(STEP)
            writer.flush(block_until_num_items=CHUNK)
            yield CHUNK
    finally:
        writer.flush()


def sample_client(client: reverb.Client) -> Iterator[int]:
    while True:
        found = list(client.sample(TABLE, num_samples=BATCH, emit_timesteps=False))
        yield len(found)  # not converted into columns


def sample_dataset(client: reverb.Client) -> Iterator[int]:
    dataset = reverb.TimestepDataset.from_table_signature(
        client.server_address, TABLE, max_in_flight_samples_per_worker=2 * BATCH
    )
    for batch in dataset.batch(BATCH).prefetch(2).as_numpy_iterator():
        yield len(batch.data["obs"])


OPERATIONS: dict[str, Callable[[Any], Iterator[int]]] = {
    "insert-writer": insert_writer,
    "insert-trajectory": insert_trajectory,
    "insert-structured": insert_structured,
    "sample-client": sample_client,
    "sample-dataset": sample_dataset,
}


def answer(port: str) -> None:
    client = reverb.Client(f"127.0.0.1:{port}")
    say(*OPERATIONS)
    samplers = {name: OPERATIONS[name](client) for name in OPERATIONS if name.startswith("sample")}
    for line in sys.stdin:
        name, seconds = line.split()
        # Samplers are kept between turns: starting one takes a part of a second.
        count, took = timed(samplers.get(name) or OPERATIONS[name](client), float(seconds))
        say(count, took)


if __name__ == "__main__":
    serve() if sys.argv[1] == "serve" else answer(sys.argv[2])
