"""DQN on CartPole-v1 from the parts alone: no pipeline and no config file.

Run it with ``python library_loop.py``; it ends when ten greedy episodes return 475 on average.
"""

from dingsdk.envs import create_env_manager, make_env_fns
from dingsdk.policy import create_policy
from dingsdk.worker import (
    create_buffer,
    create_learner,
    create_serial_collector,
    create_serial_evaluator,
)

DQN = {
    "type": "dqn",
    "nstep": 30,
    "model": {"obs_shape": 4, "action_shape": 2},
    "learn": {"learning_rate": 2e-3, "batch_size": 128, "target_update_freq": 64},
    "collect": {"n_sample": 512},
    "other": {"eps": {"type": "linear", "decay": 5000}},
}


def main(max_env_steps: int = 200_000, stop_value: float = 475, seed: int = 0) -> bool:
    """Train, and return whether an evaluation reached ``stop_value``."""
    env_fns = make_env_fns({"env_id": "CartPole-v1"}, 8)
    envs, test_envs = (create_env_manager({"type": "vector"}, env_fns) for _ in range(2))
    envs.seed(seed)
    policy = create_policy(DQN, seed=seed)
    collector = create_serial_collector({"type": "sample"}, env=envs, policy=policy.collect_mode)
    evaluator = create_serial_evaluator(
        {"n_episode": 10, "stop_value": stop_value}, env=test_envs, policy=policy.eval_mode
    )
    buffer = create_buffer({"type": "naive", "replay_buffer_size": 10_000, "seed": seed})
    learner = create_learner({"type": "base"}, policy=policy.learn_mode)
    is_solved = False
    while not is_solved and collector.envstep < max_env_steps:
        eps = policy.command_mode.get_setting_collect({"envstep": collector.envstep})
        samples = collector.collect(train_iter=learner.train_iter, policy_kwargs=eps)
        buffer.push(samples, cur_collector_envstep=collector.envstep)
        for _ in range(16):
            if (batch := buffer.sample(128, learner.train_iter)) is not None:
                learner.train(batch, collector.envstep)
        if evaluator.should_eval(learner.train_iter, collector.envstep):
            is_solved, _ = evaluator.eval(
                learner.save_checkpoint, learner.train_iter, collector.envstep
            )
    for part in (collector, evaluator, learner, buffer):
        part.close()
    return is_solved


if __name__ == "__main__":
    print("solved" if main() else "not solved")
