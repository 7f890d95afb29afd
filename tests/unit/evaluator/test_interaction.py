from __future__ import annotations

import sys
import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import psutil
import pytest

from dingsdk.envs import InProcessEnvManager, create_env_manager
from dingsdk.errors import ConfigError
from dingsdk.policy import create_policy
from dingsdk.worker import create_serial_evaluator
from dingsdk.worker.evaluator import interaction
from dingsdk.worker.evaluator.interaction import InteractionSerialEvaluator
from tests.extras import needs


class FixedLengthEnv(gym.Env[Any, Any]):
    """Ends after ``length`` steps with reward 1 each; raises at the times in ``fails``."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 1}
    render_mode = "rgb_array"

    def __init__(self, length: int, fails: list[int]) -> None:
        self.length, self.fails, self.time = length, fails, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.time = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        if self.fails and self.time == self.fails[0]:
            self.fails.pop(0)
            raise RuntimeError("breaks")
        is_over = self.time == self.length
        info = {"episode_info": {"length": self.length}} if is_over else {}
        return np.zeros(3, np.float32), 1.0, is_over, False, info

    def render(self) -> Any:
        return np.full((4, 6, 3), 10 * self.length + self.time, np.uint8)


@pytest.fixture(params=["columns", "rows"])
def policy(request) -> Any:
    mode = create_policy(
        {"type": "dqn", "model": {"obs_shape": 3, "action_shape": 2}},
        enable_field=["eval"],
        seed=0,
    ).eval_mode
    return mode if request.param == "columns" else mode._replace(forward_batch=None)


@pytest.fixture
def make_evaluator(tmp_path):
    made = []

    def make(
        policy: Any,
        lengths=(2, 30),
        kind="in_process",
        fails=(),
        manager=None,
        writer=None,
        **cfg: Any,
    ):
        fails = list(fails)
        fns = [lambda n=n: FixedLengthEnv(n, fails if n == lengths[0] else []) for n in lengths]
        env = create_env_manager({"type": kind, **(manager or {})}, fns)
        evaluator = InteractionSerialEvaluator(
            {"n_episode": 5, **cfg}, env, policy, writer, exp_name=str(tmp_path)
        )
        made.append(evaluator)
        return evaluator

    yield make
    for evaluator in made:
        evaluator.close()


def test_evaluation_without_a_finished_episode_gives_one_warning(
    make_evaluator, policy, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(interaction, "MANY_STEPS", 10)

    make_evaluator(policy, lengths=(9, 8), n_episode=2).eval()
    make_evaluator(policy, lengths=(50, 40), n_episode=2).eval()

    said = "20 env steps, and no episode of this evaluation has ended"
    warnings = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert [text[: len(said)] for text in warnings] == [said]


def test_a_manager_with_an_episode_limit_can_be_evaluated_again(make_evaluator, policy) -> None:
    evaluator = make_evaluator(policy, manager={"episode_num": 3})
    for _ in range(2):
        assert len(evaluator.eval()[1]["eval_episode_return"]) == 5
    with pytest.raises(ConfigError, match="used up the 3 episodes"):
        evaluator.eval(n_episode=8)


def test_evaluator_continues_from_a_saved_state(make_evaluator, policy) -> None:
    saved: list[str] = []
    first, second = (make_evaluator(policy, lengths=(3,), eval_freq=10) for _ in range(2))
    assert first.should_eval(5)
    first.eval(train_iter=5)
    second.load_state_dict(first.state_dict())

    assert [i for i in (5, 14, 15) if second.should_eval(i)] == [15]
    second.eval(saved.append, train_iter=15)
    assert saved == []  # no better than before


def test_unsupported_rendering_is_refused(make_evaluator, policy) -> None:
    with pytest.raises(ConfigError, match="in_process"):
        make_evaluator(policy, kind="subprocess").eval(force_render=True)
    with pytest.raises(ConfigError, match="render_freq"):
        make_evaluator(policy, render={"render_freq": -2})
    with pytest.raises(ConfigError, match=r"render\.mode"):
        make_evaluator(policy, render={"render_freq": -1, "mode": "hourly"})


class Writer:
    """Records scalars and videos."""

    def __init__(self) -> None:
        self.scalars: dict[str, tuple[float, int]] = {}
        self.videos: list[tuple[str, Any, int]] = []
        self.flushed = 0

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars[tag] = (value, step)

    def add_video(self, tag: str, video: Any, global_step: int, fps: int) -> None:
        assert fps == 30
        self.videos.append((tag, video, global_step))

    def flush(self) -> None:
        self.flushed += 1


def test_statistics_are_written_over_iterations_and_env_steps(make_evaluator, policy) -> None:
    evaluator = make_evaluator(policy, writer=(writer := Writer()))

    started = time.perf_counter()
    evaluator.eval(train_iter=7, envstep=900)
    elapsed = time.perf_counter() - started

    expected = {
        "episode_count": 5,
        "envstep_count": 66,
        "avg_envstep_per_episode": 66 / 5,
        "reward_mean": 66 / 5,
        "reward_std": np.std([2, 2, 2, 30, 30]),
        "reward_max": 30,
        "reward_min": 2,
        "length_mean": 66 / 5,
        "length_max": 30,
        "length_min": 2,
    }
    seconds = writer.scalars["evaluator_iter/evaluate_time"][0]
    assert 0 < seconds <= elapsed
    expected |= {"evaluate_time": seconds, "avg_time_per_episode": seconds / 5}
    expected |= {"avg_envstep_per_sec": 66 / seconds}
    for axis, step in (("iter", 7), ("step", 900)):
        written = {
            tag.removeprefix(f"evaluator_{axis}/"): value
            for tag, value in writer.scalars.items()
            if tag.startswith(f"evaluator_{axis}/")
        }
        assert written == {key: (pytest.approx(value), step) for key, value in expected.items()}


@needs("video")
@pytest.mark.parametrize("mode", ["train_iter", "envstep"])
def test_videos_are_made_at_their_interval(make_evaluator, policy, mode: str) -> None:
    render = {"render_freq": 10, "mode": mode}
    evaluator = make_evaluator(policy, lengths=(2, 3), writer=(writer := Writer()), render=render)
    other = {"train_iter": "envstep", "envstep": "train_iter"}[mode]

    for now in (0, 9, 10, 19, 20, 40, 45):
        evaluator.eval(n_episode=2, **{mode: now, other: 1000 - now})

    assert [step for *_, step in writer.videos] == [9, 19, 40]
    tags = {tag for tag, *_ in writer.videos}
    assert tags == {f"evaluator_{mode}/"}
    video = writer.videos[0][1]
    # Two episodes of at most three frames; each frame shows its env's length and time.
    assert video.shape == (2, 3, 3, 4, 6)
    assert video[:, :, 0, 0, 0].tolist() == [[20, 21, 21], [30, 31, 32]]
    evaluator.reset()
    evaluator.eval(n_episode=2, **{mode: 9, other: 0})
    assert len(writer.videos) == 4


@needs("video")
def test_a_video_can_be_forced(make_evaluator, policy) -> None:
    evaluator = make_evaluator(policy, lengths=(2,), writer=(writer := Writer()))
    evaluator.eval(n_episode=1, train_iter=3)
    assert writer.videos == []
    evaluator.eval(n_episode=1, train_iter=3, force_render=True)
    assert [step for *_, step in writer.videos] == [3]


def test_videos_need_moviepy(make_evaluator, policy, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "moviepy", None)
    evaluator = make_evaluator(policy, lengths=(2,), writer=Writer())
    with pytest.raises(ConfigError, match="pip install moviepy") as caught:
        evaluator.eval(n_episode=1, force_render=True)
    assert caught.value.path == "policy.eval.evaluator.render"


class DrawingManager(InProcessEnvManager):
    """Records for which envs a figure was requested."""

    def enable_save_figure(self, env_id: int, path: str) -> None:
        self.drawn = [*getattr(self, "drawn", []), (env_id, path)]


def test_figures_are_drawn_after_each_episode(tmp_path, policy) -> None:
    env = DrawingManager({}, [lambda n=n: FixedLengthEnv(n, []) for n in (2, 3)])
    cfg = {"n_episode": 3, "figure_path": "figures"}
    evaluator = InteractionSerialEvaluator(cfg, env, policy, exp_name=str(tmp_path))
    evaluator.eval()
    evaluator.close()
    assert env.drawn == [(0, "figures"), (1, "figures"), (0, "figures")]


def test_figures_need_envs_that_draw(make_evaluator, policy) -> None:
    with pytest.raises(ConfigError, match="draws no figures") as caught:
        make_evaluator(policy, figure_path="figures").eval()
    assert caught.value.path == "policy.eval.evaluator.figure_path"


def test_close_leaves_a_given_writer_open_and_flushes_it(make_evaluator, policy) -> None:
    evaluator = make_evaluator(policy, writer=(writer := Writer()))
    evaluator.close()
    evaluator.close()
    assert writer.flushed == 1
    assert evaluator.env.closed


def test_evaluator_without_a_writer_opens_one_and_closes_it(tmp_path, policy) -> None:
    fns = [lambda: FixedLengthEnv(2, [])]
    given, own = tmp_path / "given", tmp_path / "own"
    for folder, writer in ((given, Writer()), (own, None)):
        env = create_env_manager({"type": "in_process"}, fns)
        evaluator = InteractionSerialEvaluator({"n_episode": 1}, env, policy, writer, str(folder))
        evaluator.eval()
        evaluator.close()
        open_files = [file.path for file in psutil.Process().open_files()]
        assert [path for path in open_files if path.startswith(str(folder))] == []
        assert (folder / "log" / "evaluator" / "evaluator_logger.txt").exists()
    assert list(given.rglob("*tfevents*")) == []
    assert len(list(own.rglob("*tfevents*"))) == 1


class NoiseEnv(gym.Env[Any, Any]):
    """Shows random images for 20 steps; the reward is the action."""

    observation_space = gym.spaces.Box(0, 255, (8, 8, 1), np.uint8)
    action_space = gym.spaces.Discrete(9)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self._image(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return self._image(), float(action), False, self.time == 20, {}

    def _image(self) -> Any:
        return self.np_random.integers(0, 256, (8, 8, 1), np.uint8)


@pytest.mark.slow
def test_images_are_evaluated_in_the_dtype_that_they_are_trained_in(tmp_path) -> None:
    model = {"obs_shape": [8, 8, 1], "action_shape": 9}
    policy = create_policy({"type": "dqn", "model": model}, enable_field=["eval"], seed=2)
    returns = []
    for manager in ("in_process", "async_subprocess"):
        with create_env_manager({"type": manager}, [NoiseEnv] * 2) as env:
            env.seed(0)
            evaluator = create_serial_evaluator(
                {"n_episode": 4}, env=env, policy=policy.eval_mode, exp_name=str(tmp_path)
            )
            info = evaluator.eval(train_iter=1)[1]
            returns.append(sorted(info["eval_episode_return"]))
    assert returns[0] == returns[1]
    assert len(set(returns[0])) > 1  # several actions were chosen
