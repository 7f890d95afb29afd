from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

import dingsdk
import dingsdk.worker
from tests.programs import python, write_dist

HEAVY = {"torch", "numpy", "flask", "numba", "gymnasium", "click", "matplotlib"}


def modules_after(statement: str) -> set[str]:
    program = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = python("-W", "error", "-c", program)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_import_dingsdk_loads_no_heavy_module_and_no_subpackage() -> None:
    loaded = modules_after("import dingsdk; dir(dingsdk)")

    assert not loaded & (HEAVY | {"pluggy", "yaml", "importlib.metadata"})
    assert {name for name in loaded if name.startswith("dingsdk")} == {
        "dingsdk",
        "dingsdk.lazy",
    }


@pytest.mark.parametrize(
    "statement",
    [
        "import dingsdk.errors",
        "import dingsdk.config",
        "import dingsdk.plugins",
        "from dingsdk.plugins import *; default_manager().plugins(); observe()",
        "from dingsdk import hookimpl, default_manager, DingError, __version__",
    ],
)
def test_light_subpackages_load_no_heavy_module(statement: str) -> None:
    assert not modules_after(statement) & HEAVY


PUBLIC = """
Registry EpisodeRecord EvalSchedule collector_task learner_task
create_buffer create_comm_collector create_comm_learner create_learner create_parallel_collector
create_parallel_commander create_serial_collector create_serial_evaluator
get_buffer_cls get_parallel_collector_cls get_parallel_commander_cls get_serial_collector_cls
get_serial_evaluator_cls
CachePool ISerialCollector SampleSerialCollector TrajBuffer to_tensor_transitions
ISerialEvaluator InteractionSerialEvaluator VectorEvalMonitor BattleInteractionSerialEvaluator
MetricSerialEvaluator IMetric
BaseSerialCommander OneVsOneSerialCommander OneVsOneCommander MarineParallelCollector
AdvancedReplayBuffer ElasticReplayBuffer EpisodeReplayBuffer IBuffer NaiveReplayBuffer
SequenceReplayBuffer EpisodeSerialCollector
BattleEpisodeSerialCollector BattleSampleSerialCollector
BaseLearner LearnerAggregator Hook LearnerHook LoadCkptHook LogReduceHook LogShowHook SaveCkptHook
add_learner_hook build_learner_hook_by_cfg merge_hooks register_learner_hook Tracker
Master Slave Task TaskFail TaskStatus
BaseParallelCollector ZerglingParallelCollector
BaseCommCollector NaiveCollector
BaseCommLearner NaiveLearner SendLearnInfoHook SendPolicyHook
BaseParallelCommander Coordinator NaiveCommander SoloCommander TaskState
OneVsOneLeague Payoff Player
DatasetFormat read_dataset write_dataset
"""
WORKER_NAMES = PUBLIC.split()
OWNED_BY_PLUGINS = ["CollectorSlave", "FlaskFileSystemCollector", "FlaskFileSystemLearner"]
OWNED_BY_PLUGINS += ["LearnerSlave"]


def test_star_import_of_worker_contains_no_names_of_plugins() -> None:
    scope: dict[str, object] = {}
    exec("from dingsdk.worker import *", scope)

    assert scope.keys() - {"__builtins__"} == set(dingsdk.worker.__all__) == set(WORKER_NAMES)
    assert set(WORKER_NAMES) <= set(dir(dingsdk.worker))


def test_importing_a_worker_name_loads_only_its_module() -> None:
    assert not modules_after("import dingsdk.worker; dir(dingsdk.worker)") & HEAVY
    loaded = modules_after("from dingsdk.worker import IBuffer, NaiveReplayBuffer")
    assert not loaded & (HEAVY - {"numpy"})


def test_env_of_the_conformance_rules_does_not_load_torch() -> None:
    assert "torch" not in modules_after("from dingsdk.testing.env_rules import RuleEnv")


@pytest.mark.parametrize("transport", ["flask_fs", "shared_memory"])
def test_processes_of_a_run_begin_their_imports_before_the_run_loads_torch(transport: str) -> None:
    pytest.importorskip(f"dingsdk_{transport}")
    program = f"""
from dingsdk.pipeline import train

def begin(modules):
    raise SystemExit

train.begin_fork_server = begin
try:
    train.compile_run("cartpole-dqn", "parallel", "{transport}", begins=True)
except SystemExit:
    pass
else:
    raise AssertionError("there are no processes")
"""
    assert "torch" not in modules_after(program)


def test_every_public_name_is_there_and_listed() -> None:
    for name in dingsdk.__all__:
        assert getattr(dingsdk, name) is not None
    assert set(dingsdk.__all__) <= set(dir(dingsdk))
    assert list(dingsdk.__all__) == sorted(dingsdk.__all__)


def test_version_is_ours_if_another_distribution_has_the_same_import_package(
    tmp_path: Path,
) -> None:
    write_dist(tmp_path, "dingsdk", version="2.0.0")

    done = python("-c", "import dingsdk; print(dingsdk.__version__)", path=tmp_path)

    assert (done.stdout, done.stderr) == (f"{metadata.version('dingsdk-rl')}\n", "")


def test_uniform_sampling_does_not_load_numba() -> None:
    push = "buffer.push([{'x': 1.0}], 1); buffer.sample(1, 0)"
    uniform = "import dingsdk.pipeline.parallel as p; from dingsdk.worker import NaiveReplayBuffer"
    assert "numba" not in modules_after(f"{uniform}; buffer = NaiveReplayBuffer({{}}); {push}")
