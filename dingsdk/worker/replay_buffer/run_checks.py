"""Checks of a run with its replay buffer, see ``RunView``."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dingsdk.config.plain import find
from dingsdk.errors import listing
from dingsdk.plugins import default_manager
from dingsdk.worker.run_view import BUFFER, COLLECTOR, RunView


def check_capacity(run: RunView) -> str:
    """The replay buffer is large enough for a batch, for one collect, and for its limiter."""
    if run.policy["on_policy"]:
        return ""  # the samples of a collect are trained on without a buffer
    buffer, batch_size = run.buffer, run.learn["batch_size"]
    capacity, window = buffer.get("replay_buffer_size"), buffer.get("set_buffer_size")
    if capacity is None:
        return ""
    if isinstance(window, Mapping):
        window = max(window.get("start", 0), window.get("end", 0))
    batch, length = "policy.learn.batch_size", buffer.get("sequence_length", 1)
    if length > 1:
        batch += " times sequence_length"
    rows, room = batch_size * length, (f"{BUFFER}.replay_buffer_size", capacity)
    limiter, controller = buffer.get("limiter") or {}, buffer.get("thruput_controller") or {}
    least, ratio = limiter.get("min_size", 0), "sample_min_limit_ratio"
    for key, needed, limit, most in (
        (f"{BUFFER}.limiter.min_size", least, *room),
        (f"{BUFFER}.limiter.min_size", least, "system.max_env_steps", run.system["max_env_steps"]),
        (batch, rows, *room),
        ("policy.collect.n_sample", run.collect["n_sample"] or 0, *room),
        (f"{BUFFER}.limiter.{ratio}", limiter.get(ratio, 1) * rows, *room),
        (f"{BUFFER}.thruput_controller.{ratio}", controller.get(ratio, 1) * rows, *room),
        (batch, batch_size, f"{BUFFER}.set_buffer_size", window),
    ):
        if isinstance(most, int | float) and needed > most:
            return (
                f"{key} needs {needed:,.0f} rows, and {limit} is {most:,.0f}: no batch could ever "
                "be sampled, or new rows would leave at once; lower the first or raise the second"
            )
    return ""


def check_priority(run: RunView) -> str:
    """If the policy computes priorities, the replay buffer uses them."""
    bases = getattr(run.buffer_parts.get(BUFFER), "__mro__", ())
    owner = next((cls for cls in bases if "update" in vars(cls)), object)
    if not run.policy["priority"] or not vars(owner).get("ignores_priorities"):
        return ""
    return (
        f"policy.priority is true, but {run.of_buffer} draws its rows without priorities; set "
        f"{BUFFER}.type to advanced, or the first to false"
    )


def check_samples(run: RunView) -> str:
    """The policy trains on what the replay buffer draws: rows, sequences or episodes."""
    drawn = run.drawn
    wanted = getattr(run.policy_class, "trains_on", (drawn,))
    if drawn in wanted:
        return ""
    return (
        f"{BUFFER}.type {run.buffer['type']!r} draws {drawn}, on which {run.of_policy} does not "
        f"train; choose another policy, or one of the buffers {buffers_that_draw(wanted)}"
    )


def check_buffer(run: RunView) -> str:
    """The replay buffer works in the mode, and gets samples in the order that it needs."""
    for path, part in run.buffer_parts.items():
        modes = getattr(part, "modes", (run.mode,))
        if run.mode not in modes:
            return (
                f"{path}.type names {part.__name__}, which serves {', '.join(sorted(modes))} mode "
                f"and not {run.mode} mode; choose another"
            )
    drawn = run.drawn
    by_episode = getattr(run.collector_class, "gives_episodes", False)
    gives = "rows"
    if by_episode:
        gives = "sequences" if run.collect["collector"].get("get_train_sample") else "episodes"
    if drawn == "rows":
        if gives == "episodes" and run.is_base_policy:
            return (
                f"{COLLECTOR}.get_train_sample is false, so {run.of_collector} gives whole "
                f"episodes, and {run.of_policy} trains on train samples; set it to true"
            )
        return ""
    if run.mode == "serial" or run.is_offline:
        serves = drawn == gives or (drawn == "sequences" and not by_episode)
    else:
        players = getattr(run.parallel_class, "max_players", 1)
        own = "sample" if players == 1 else "sample_1v1"
        is_own = run.collector == own and run.parallel_collector != "serial"
        serves = drawn == gives or (drawn == "sequences" and is_own)
    if serves:
        return ""
    text = f"{BUFFER}.type {run.buffer['type']!r} draws {drawn}, and {run.of_collector} does not "
    if drawn == "episodes":
        return f"{text}give them; choose the collector 'episode', another one, or another buffer"
    return (
        f"{text}give samples in that order in {run.mode} mode; choose another collector, buffer or "
        "mode"
    )


def buffers_that_draw(wanted: Collection[str]) -> str:
    """Return a list of the registered types of buffers whose samples consist of ``wanted``."""
    buffers = default_manager().registry("buffers")
    return listing(n for n in buffers.query() if getattr(buffers.get(n), "draws", "") in wanted)


def check_unused(run: RunView) -> str:
    """On-policy, no kind of replay buffer is chosen: the samples are trained on without it."""
    if not run.policy["on_policy"]:
        return ""
    from dingsdk.worker import NaiveReplayBuffer

    usual = NaiveReplayBuffer.default_config()
    for key in ("type", "storage.type", "sampler.type", "remover.type", "limiter.type"):
        chosen = find(run.buffer, key)
        if chosen not in (None, find(usual, key)):
            return (
                f"{BUFFER}.{key} is {chosen!r}, but {run.of_policy} trains on its newest samples "
                "without a replay buffer; leave it out"
            )
    return ""


def check_sequences(run: RunView) -> str:
    """A policy that trains on columns gets its sequences in columns."""
    storage = run.classes.get(f"{BUFFER}.storage")
    is_of_objects = run.drawn == "sequences" and getattr(storage, "holds_objects", False)
    if not (is_of_objects and run.is_base_policy):
        return ""
    return (
        f"{BUFFER}.storage.type {run.buffer['storage']['type']!r} gives sequences as lists of "
        f"rows, and {run.of_policy} trains on columns; choose auto, array or memmap"
    )


def check_home(run: RunView) -> str:
    """The learner of a parallel run can hold the replay buffer."""
    from dingsdk.worker.replay_buffer.table import Table

    why = "" if run.policy["on_policy"] else run.not_of(BUFFER, Table)
    return why and (
        f"{why}, whose rows the learner of a parallel run loads again after a loss; derive it from "
        "NaiveReplayBuffer or another buffer of dingsdk, or use --mode serial"
    )


CHECKS = (
    check_capacity,
    check_priority,
    check_samples,
    check_buffer,
    check_unused,
    check_sequences,
)
IN_PARALLEL = (check_home,)
