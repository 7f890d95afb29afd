"""Environments: the env manager interface, the built-in managers, and functions to make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dingsdk.lazy import lazy_names

if TYPE_CHECKING:
    from dingsdk.envs.base import EnvManager as EnvManager
    from dingsdk.envs.bench import EnvSpeed as EnvSpeed
    from dingsdk.envs.bench import bench_env as bench_env
    from dingsdk.envs.check import EnvCheck as EnvCheck
    from dingsdk.envs.check import check_env as check_env
    from dingsdk.envs.guard import GuardedEnv as GuardedEnv
    from dingsdk.envs.in_process import InProcessEnvManager as InProcessEnvManager
    from dingsdk.envs.make import EnvFn as EnvFn
    from dingsdk.envs.make import create_env_manager as create_env_manager
    from dingsdk.envs.make import factory as factory
    from dingsdk.envs.make import get_vec_env_setting as get_vec_env_setting
    from dingsdk.envs.make import make_env_fns as make_env_fns
    from dingsdk.envs.make import seed_envs as seed_envs
    from dingsdk.envs.spaces import ActionChecker as ActionChecker
    from dingsdk.envs.spaces import ObservationSchema as ObservationSchema
    from dingsdk.envs.steps import Capabilities as Capabilities
    from dingsdk.envs.steps import StepColumns as StepColumns
    from dingsdk.envs.steps import Timestep as Timestep
    from dingsdk.envs.subprocess import AsyncSubprocessEnvManager as AsyncSubprocessEnvManager
    from dingsdk.envs.subprocess import SubprocessEnvManager as SubprocessEnvManager
    from dingsdk.envs.vector import BaseVectorEnvManager as BaseVectorEnvManager
    from dingsdk.envs.vector import VectorEnvManager as VectorEnvManager
    from dingsdk.envs.wrappers import measure_observations as measure_observations
else:
    # gymnasium takes a good part of a second to import.
    __getattr__, __dir__ = lazy_names(__name__, __file__)
