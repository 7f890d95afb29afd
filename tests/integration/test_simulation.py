"""Simulated runs keep all guarantees, are the same for the same seed, and find defects."""

from __future__ import annotations

import cProfile
import json
import pstats
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest

from dingsdk.errors import SamplesLostError
from dingsdk.worker.comm.requests.messages import Request, encode_request
from dingsdk.worker.replay_buffer.home import HomeReport
from dingsdk.worker.sample_counts import SampleCounts
from tools.simulation import (
    SampleOracle,
    Setting,
    SimulatedFault,
    Simulation,
    SimulationError,
    first_failure,
    shrink,
    simulate,
)
from tools.simulation.disk import SimulatedDisk
from tools.simulation.flask_fs import SimulatedFlaskFS
from tools.simulation.in_memory import SimulatedInMemory
from tools.simulation.world import SimulatedProcess, World

from ..mutants.simulation_mutants import MUTANTS

EASY = {
    "a payload counts as often as it is announced",
    "a payload is deleted although one row of it is left",
}
"""Defects found within about a second."""
MOST_CALLS = 2_700
"""Limit of function calls in a simulated second of four collectors and a learner."""


def simulation(seed: int, **given: Any) -> Simulation:
    return Simulation(seed, **{"transport": SimulatedFlaskFS, **given})


def outcome(seed: int) -> tuple[Any, ...]:
    made = simulation(seed, duration_s=20.0)
    made.run()
    oracle = made.oracle
    uses = [sorted(each.uses.items()) for each in oracle.homes]
    return made.world.events, oracle.evicted, uses, len(oracle.announced)


@pytest.mark.parametrize("seed", range(2))
def test_simulated_run_keeps_all_guarantees(seed: int) -> None:
    made = simulation(seed, duration_s=20.0)
    made.run()
    samples, oracle = made.coordinator.status().samples, made.oracle
    assert samples.trained == oracle.trained_rows > 100
    assert samples.acknowledged == oracle.accepted_rows > 200


def test_simulated_in_memory_run_keeps_all_guarantees() -> None:
    simulation(2, transport=SimulatedInMemory, duration_s=20.0).run()


@pytest.mark.slow
@pytest.mark.parametrize("transport", [SimulatedFlaskFS, SimulatedInMemory])
def test_simulated_runs_of_many_seeds_keep_all_guarantees(transport: Any) -> None:
    found = first_failure(partial(simulate, transport=transport), range(2, 100))
    if found.error is not None:
        raise found.error
    assert found.seeds == 98


def test_search_ends_after_its_cpu_time() -> None:
    run = partial(simulate, transport=SimulatedInMemory, faults=[], duration_s=1.0)
    assert first_failure(run, range(3), cpu_limit_s=0.0).seeds == 1
    whole = first_failure(run, range(3))
    assert (whole.seeds, whole.error) == (3, None)
    assert whole.simulated_s == pytest.approx(3 * (1.0 + 45.0 + 15.0 + 20.0 + 10.0), abs=0.01)


def test_same_seed_gives_the_same_run() -> None:
    assert outcome(5) == outcome(5)
    assert outcome(5) != outcome(6)


def test_sleep_after_a_stop_lasts_its_full_time() -> None:
    world = World(0)
    process = SimulatedProcess(world, "p", lambda job, error: None)
    condition, times, notes = process.scheduler.condition(), [], []

    def wait_and_sleep() -> None:
        with condition:
            condition.wait_for(lambda: bool(notes), 2.0)
        times.append(world.now)
        process.sleep(5.0)
        times.append(world.now)

    def notify() -> None:
        notes.append(1)
        condition.notify_all()

    process.scheduler.spawn(wait_and_sleep, "job")
    world.at(0.5, lambda: setattr(process, "resumes_at", 10.0))
    world.at(1.0, notify)  # it is woken, and its deadline passes, while it is stopped
    world.run(20.0)
    assert times == [10.0, 15.0]


def test_each_coordinator_of_a_simulated_run_has_its_own_epoch() -> None:
    world = World(0)
    disk = SimulatedDisk(world)
    join = encode_request(Request("", 0, "w", 0, "join"), b'{"role":"a","resource":{},"idem":"1"}')
    told: list[int] = []
    nobody: Any = SimpleNamespace()
    for name in ("first", "second"):
        process = SimulatedProcess(world, name, lambda job, error: None)
        end = SimulatedFlaskFS(process, disk).master_end()
        end.open(nobody)
        _, serve = world.servers["coordinator"]
        told.append(json.loads(serve(("/v1/join", join))[1])["epoch"])
        end.close()
        assert serve(("/v1/join", join))[0] == 410
    assert told == [1, 2]


def test_simulated_second_needs_few_function_calls() -> None:
    def made() -> Simulation:
        return simulation(1, transport=SimulatedInMemory, faults=[], setting=Setting())

    made().run()  # imports what it needs
    counted, profile = made(), cProfile.Profile()
    profile.runcall(counted.run)
    # It was 2,530 in 2026-11. Times would vary on a busy machine.
    assert pstats.Stats(profile).total_calls / counted.world.now < MOST_CALLS


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda oracle: oracle.accept("p", 3), "counted twice"),
        (lambda oracle: oracle.acknowledge(["q"]), "no coordinator knows it"),
        (lambda oracle: oracle.tried(0, "p"), "not the next one"),
        (lambda oracle: oracle.entered(0, [0, 1, 2]), "inserts payload 'p' again"),
        (lambda oracle: oracle.departed(0, [0], "overwritten"), "twice"),
        (lambda oracle: oracle.departed(0, [1], "overwritten"), "thrown away"),
        (lambda oracle: oracle.trained(0, [3], 0), "not in its home"),
        (lambda oracle: oracle.reported(0, HomeReport(1, ["p"], [], []), 2), "reports"),
        (lambda oracle: oracle.settled(1), "has made no report 1"),
        (lambda oracle: oracle.deleted("p"), "is needed"),
        (lambda oracle: oracle.check([], SampleCounts(3, 3)), "the coordinator counts"),
        (lambda oracle: oracle.check(["p"], SampleCounts(3, 3, 1)), "0 drawn rows"),
    ],
)
def test_oracle_refuses_what_may_not_happen(wrong: Any, why: str) -> None:
    oracle = SampleOracle(capacity=2)
    oracle.announce("p", oracle.new_samples(3, policy_iter=0))
    oracle.announce("q", oracle.new_samples(1, policy_iter=0))
    oracle.accept("p", 3)
    oracle.begin_home(0)
    oracle.tried(0, "p")
    oracle.entered(0, [0, 1, 2])
    oracle.departed(0, [0], "overwritten")
    with pytest.raises(SamplesLostError, match=why):
        wrong(oracle)


@pytest.mark.slow
def test_same_seed_gives_the_same_run_in_another_process() -> None:
    code = "from tests.integration.test_simulation import outcome; print(outcome(5)[0])"
    for hash_seed in ("1", "2"):
        found = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        )
        assert int(found.stdout) == outcome(5)[0]


def test_failure_names_its_seed_and_shrinks_to_the_fewest_faults() -> None:
    faults = [
        SimulatedFault("slow", 2.0, "collector-0", 5.0, 3.0),
        SimulatedFault("repeat", 5.0, "collector-1", 5.0, 1.0),
        SimulatedFault("late", 8.0, "learner-0", 2.0, 0.2),
    ]

    def make(**given: Any) -> Simulation:
        return simulation(11, setting=Setting(), duration_s=15.0, **given)

    twice = next(each for each in MUTANTS if each.name.startswith("a payload counts as often"))
    with twice.applied():
        with pytest.raises(SimulationError) as caught:
            make(faults=faults).run()
        assert caught.value.facts["seed"] == 11
        assert "seed 11" in str(caught.value)
        assert shrink(caught.value, make) == faults[1:2]
    make(faults=faults).run()


def defect(name: str) -> Any:
    return next(each for each in MUTANTS if each.name == name)


def fails(name: str, faults: list[SimulatedFault], setting: Setting) -> None:
    """Check that a run with these faults succeeds, and soon fails with the defect."""

    def run(seeds: Iterable[int]) -> None:
        for seed in seeds:
            simulation(seed, faults=faults, setting=setting, duration_s=20.0).run()

    run([1])
    with defect(name).applied(), pytest.raises(SimulationError):
        run(range(1, 33))


def test_time_in_which_the_coordinator_was_stopped_is_not_counted() -> None:
    full = SimulatedFault("disk_full", 5.0, "", 25.0)
    jump = SimulatedFault("jump", 12.0, "coordinator", 1.0, 3600.0)
    fails("time of a stopped coordinator counts as a full disk", [full, jump], Setting())
    fails("time of a stopped coordinator counts against leases", [jump], Setting())


def test_worker_joins_again_soon_after_its_connection_was_cut() -> None:
    cut = SimulatedFault("cut", 12.0, "learner-0", 8.0)
    fails("a join waits until its deadline for a single answer", [cut], Setting())


def test_briefly_lost_messages_lose_no_worker() -> None:
    lost = [SimulatedFault("lost", 10.0 + 5 * n, f"collector-{n}", 1.0, 0.5) for n in range(4)]
    fails("a lost answer is not sent again", lost, Setting())


def test_worker_that_hangs_while_its_connection_is_cut_is_replaced() -> None:
    hang = SimulatedFault("hang", 7.0, "learner-0", 45.0)
    cut = SimulatedFault("cut", 10.0, "learner-0", 15.0)
    for seed in range(3):
        simulation(seed, faults=[hang, cut], setting=Setting(), duration_s=20.0).run()


def test_worker_whose_work_hangs_is_given_up() -> None:
    hang = SimulatedFault("hang", 7.0, "collector-1", 45.0)
    fails("a worker whose job hangs renews its lease", [hang], Setting())


def test_answer_that_is_delivered_twice_counts_once() -> None:
    workers = [*(f"collector-{n}" for n in range(4)), "learner-0"]
    doubled = [SimulatedFault("doubled", 6.0, worker, 12.0, 0.9) for worker in workers]
    late = [SimulatedFault("late", 6.0, worker, 12.0, 1.0) for worker in workers[:4]]
    fails("an answer counts as often as it is delivered", [*doubled, *late], Setting())


def test_restarted_coordinator_knows_all_acknowledged_samples() -> None:
    setting = Setting(has_journal=True)
    kill = SimulatedFault("kill", 10.0, "coordinator", 4.0)
    fails("a sample is acknowledged before it is in the journal", [kill], setting)
    tear = SimulatedFault("tear", 10.0, "coordinator", 4.0)
    simulation(4, setting=setting, faults=[tear], duration_s=20.0).run()


def test_facts_that_a_full_disk_refused_are_written_later() -> None:
    full = SimulatedFault("disk_full", 8.0, "", 6.0)
    kill = SimulatedFault("kill", 16.0, "coordinator", 2.0)
    setting = Setting(has_journal=True, max_use=1)
    fails("journal records that did not fit on the disk are lost", [full, kill], setting)


def test_coordinator_whose_owner_file_is_gone_ends() -> None:
    unlock = SimulatedFault("unlock", 10.0, "coordinator")
    setting = Setting(has_journal=True)
    fails("a coordinator whose file was removed continues", [unlock], setting)


def test_torn_record_is_dropped() -> None:
    tear = SimulatedFault("tear", 10.0, "coordinator", 4.0)
    fails("an incomplete record counts as damage", [tear], Setting(has_journal=True))


def test_two_payloads_under_one_id_end_the_run() -> None:
    conflict = SimulatedFault("conflict", 10.0, "collector-1")
    fails("a second payload under a known id counts as a repetition", [conflict], Setting())


@pytest.mark.slow
def test_learner_continues_from_its_newest_complete_checkpoint() -> None:
    damage = SimulatedFault("damage_checkpoint", 8.0)
    kill = SimulatedFault("kill", 14.0, "learner-0", 1.0)
    name = "a damaged checkpoint ends the run although there is an older one"
    fails(name, [damage, kill], Setting())
    tear = SimulatedFault("tear", 8.0, "learner-0", 1.0)
    fails("a checkpoint becomes the newest before it is written", [tear], Setting())


@pytest.mark.slow
def test_policies_are_complete_and_never_get_older() -> None:
    damage = SimulatedFault("damage_policy", 8.0)
    kills = [SimulatedFault("kill", 14.5, f"collector-{n}", 0.5) for n in range(4)]
    fails("a damaged policy ends the worker that reads it", [damage, *kills], Setting())
    tear = SimulatedFault("tear", 8.0, "learner-0", 2.0)
    fails("an older policy replaces a newer one", [tear, *kills], Setting())


def test_payloads_of_ended_tasks_stay_as_long_as_their_rows() -> None:
    fails("payloads of tasks that have ended are swept", [], Setting(capacity=1024))


ON_POLICY = Setting(collectors=2, capacity=1024, on_policy=True)


def test_on_policy_collectors_use_only_the_admitted_policy() -> None:
    fails("a collector continues with an old policy", [], ON_POLICY)
    many = replace(ON_POLICY, collectors=4)
    fails("a training does not wait for rows of old policies", [], many)


def test_payloads_that_arrive_while_the_learner_publishes_are_noticed() -> None:
    setting = replace(ON_POLICY, collectors=4, batch_size=12, max_policy_lag=2)
    fails("payloads that arrive while the learner publishes are not noticed", [], setting)


def test_on_policy_rows_reach_the_allowed_policy_lag_and_never_exceed_it() -> None:
    setting = replace(ON_POLICY, collectors=4, max_policy_lag=2)
    made = simulation(2, faults=[], setting=setting)
    made.run()
    assert made.oracle.largest_lag == 2
    assert made.coordinator.status().samples.trained == made.oracle.trained_rows


def test_on_policy_training_does_not_wait_for_a_lost_collector() -> None:
    kill = SimulatedFault("kill", 10.0, "collector-1", 45.0)
    fails("a training waits for a lost collector", [kill], ON_POLICY)


@pytest.mark.parametrize(
    "transport", [pytest.param(SimulatedFlaskFS, marks=pytest.mark.slow), SimulatedInMemory]
)
def test_on_policy_run_continues_after_all_processes_were_killed(transport: Any) -> None:
    """The learner resumes from its checkpoint, and newer policies are lost."""
    setting = replace(ON_POLICY, has_journal=True)
    crash = SimulatedFault("crash", 18.0, "coordinator", 4.0)

    def run() -> None:
        for seed in range(8, 11):
            simulation(seed, transport=transport, faults=[crash], setting=setting).run()

    run()
    with (
        defect("collectors wait for a policy from before the checkpoint").applied(),
        pytest.raises(SimulationError, match="train_iter stands still"),
    ):
        run()


def test_on_policy_run_continues_when_the_newest_policy_is_damaged() -> None:
    damage = SimulatedFault("damage_policy", 10.0)
    fails("collectors wait for a damaged policy", [damage], ON_POLICY)


@pytest.mark.parametrize(
    ("name", "target", "setting"),
    [
        ("the limiter of a new home counts rows twice", "learner-0", Setting(is_limited=True)),
        ("rows trained on before a restart count twice", "coordinator", Setting(has_journal=True)),
    ],
)
def test_counts_continue_after_a_restart(name: str, target: str, setting: Setting) -> None:
    fails(name, [SimulatedFault("kill", 15.0, target, 1.0)], setting)


def test_payloads_stay_until_the_journal_records_their_training() -> None:
    setting = replace(ON_POLICY, has_journal=True, batch_size=20, max_policy_lag=2)
    name = "payloads are deleted before the journal records their training"
    full = SimulatedFault("disk_full", 6.0, "", 45.0)
    kill = SimulatedFault("kill", 9.0, "coordinator", 4.0)
    fails(name, [full, kill], setting)


def test_every_defect_can_be_applied() -> None:
    for each in MUTANTS:
        with each.applied():
            pass


# A search stops after 300 s of CPU time, which may take longer.
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(each, id=each.name, marks=() if each.name in EASY else pytest.mark.slow)
        for each in MUTANTS
    ],
)
def test_defect_is_found(mutant: Any) -> None:
    run = partial(simulate, transport=SimulatedFlaskFS)
    with mutant.applied():
        found = first_failure(run, chain([mutant.seed], range(10_000)), cpu_limit_s=300.0)
    assert found.error is not None
