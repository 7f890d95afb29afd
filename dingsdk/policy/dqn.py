"""Deep Q-learning: double estimate, n-step returns, target network, epsilon-greedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from dingsdk.config import Configurable, deep_merge_dicts, read_section, to_easydict
from dingsdk.data.seeding import derive_seed
from dingsdk.errors import ConfigError
from dingsdk.policy import dqn_actor
from dingsdk.policy.base import FIELDS, CollectMode, CommandMode, EvalMode, LearnMode
from dingsdk.policy.dqn_actor import DQNActor
from dingsdk.policy.dqn_config import DQNLearnSection, DQNSection, model_from_spaces
from dingsdk.policy.dqn_learner import DQNLearner
from dingsdk.policy.networks import QNetwork
from dingsdk.policy.weights import load_weights, required


class DQNPolicy(Configurable):
    """DQN for flat observations and discrete actions, type key ``dqn``.

    The modes of one policy share their weights: what ``learn_mode`` trains, the others act
    with at once.

    Args:
        cfg: The config's ``policy`` section; absent keys take the defaults.
        enable_field: Modes to serve; None for all.
        seed: Of the initial weights and of the exploration; None draws from the system.

    Raises:
        ConfigError: a value that cannot work, an unknown mode, or ``cuda`` without a GPU.
    """

    Config: ClassVar[type[DQNSection]] = DQNSection

    model_from_spaces = staticmethod(model_from_spaces)

    def __init__(
        self,
        cfg: Mapping[str, Any],
        enable_field: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> None:
        self._section: DQNSection = self.read(cfg, "policy")
        self._cfg = to_easydict(deep_merge_dicts(self.config, cfg))
        self._epsilon = self._section.other.eps
        self._gamma = self._section.discount_factor
        self._nstep = self._section.nstep
        self._learner: DQNLearner | None = None
        fields = set(FIELDS if enable_field is None else enable_field)
        if not fields <= set(FIELDS):
            raise ConfigError(
                f"unknown policy modes {sorted(fields - set(FIELDS))}; modes are "
                f"{', '.join(FIELDS)}",
                path="policy",
                known=list(FIELDS),
            )
        self._modes: dict[str, Any] = {}
        if "command" in fields:
            self._modes["command"] = self._build_command()
        if fields & {"learn", "collect", "eval"}:
            self._build_network_modes(fields, seed)

    @property
    def learn_mode(self) -> LearnMode:
        """What a learner may call."""
        mode: LearnMode = self._mode("learn")
        return mode

    @property
    def collect_mode(self) -> CollectMode:
        """What a collector may call; ``eps`` is the one keyword of its forward methods."""
        mode: CollectMode = self._mode("collect")
        return mode

    @property
    def eval_mode(self) -> EvalMode:
        """What an evaluator may call."""
        mode: EvalMode = self._mode("eval")
        return mode

    @property
    def command_mode(self) -> CommandMode:
        """What a commander may call."""
        mode: CommandMode = self._mode("command")
        return mode

    def _mode(self, field: str) -> Any:
        try:
            return self._modes[field]
        except KeyError:
            raise ConfigError(
                f"this policy was created without its {field} mode (it has "
                f"{', '.join(sorted(self._modes))}); add {field!r} to enable_field",
                path="policy",
            ) from None

    def _build_command(self) -> CommandMode:
        epsilon = self._epsilon
        return CommandMode(
            get_setting_learn=lambda info: {},
            get_setting_collect=lambda info: {"eps": epsilon(info.get("envstep", 0))},
            get_setting_eval=lambda info: {},
        )

    def _build_network_modes(self, fields: set[str], seed: int | None) -> None:
        section, model = self._section, self._section.model
        self._network = network = QNetwork(
            model.size("obs_shape"),
            model.size("action_shape"),
            tuple(model.encoder_hidden_size_list),
            dueling=model.dueling,
            seed=None if seed is None else derive_seed(seed, "policy", "network"),
            device=_device(section.cuda),
        )
        self._attributes: dict[str, Any] = {
            "cfg": self._cfg,
            "device": str(network.flat.device),
            "on_policy": section.on_policy,
            "priority": section.priority,
        }
        if "learn" in fields:
            self._modes["learn"] = self._build_learn()
        if fields & {"collect", "eval"}:
            actor = DQNActor(
                network,
                self._epsilon(0),
                np.random.default_rng(
                    None if seed is None else derive_seed(seed, "policy", "exploration")
                ),
            )
            if "collect" in fields:
                self._modes["collect"] = self._build_collect(actor)
            if "eval" in fields:
                self._modes["eval"] = self._build_eval(actor)

    def _build_learn(self) -> LearnMode:
        learning = self._section.learn
        self._learner = learner = DQNLearner(
            self._network, learning, returns_priority=self._section.priority
        )
        self._attributes["batch_size"] = learning.batch_size
        return LearnMode(
            forward=lambda data, **_: learner.step(data),
            reset=_reset,
            info=lambda: f"DQNPolicy, nstep {self._nstep}, {learning}\n{self._network}",
            monitor_vars=lambda: [
                "cur_lr",
                "total_loss",
                "q_value",
                "target_q_value",
                "grad_norm",
            ],
            get_attribute=self._get_attribute,
            set_attribute=self._set_attribute,
            state_dict=learner.state_dict,
            load_state_dict=learner.load_state_dict,
        )

    def _build_collect(self, actor: DQNActor) -> CollectMode:
        collect = self._section.collect
        for key in ("n_sample", "n_episode", "unroll_len"):
            self._attributes[key] = getattr(collect, key)
        spans: dict[str, Any] = {"gamma": self._gamma, "nstep": self._nstep}
        return CollectMode(
            forward=actor.explore,
            process_transition=dqn_actor.transition,
            get_train_sample=partial(dqn_actor.sample_dicts, **spans),
            reset=_reset,
            get_attribute=self._get_attribute,
            set_attribute=self._set_attribute,
            state_dict=self._model_state,
            load_state_dict=self._load_model,
            forward_batch=actor.explore_batch,
            make_transitions=dqn_actor.transitions,
            make_samples=partial(dqn_actor.samples, **spans),
        )

    def _build_eval(self, actor: DQNActor) -> EvalMode:
        return EvalMode(
            forward=actor.greedy,
            reset=_reset,
            get_attribute=self._get_attribute,
            set_attribute=self._set_attribute,
            state_dict=self._model_state,
            load_state_dict=self._load_model,
            forward_batch=actor.greedy_batch,
        )

    def _model_state(self) -> dict[str, Any]:
        return {"model": self._network.named()}

    def _load_model(self, state: Mapping[str, Any]) -> None:
        load_weights(self._network, required(state, "model", "policy state"), "model")

    def _get_attribute(self, key: str) -> Any:
        if key == "learning_rate" and self._learner is not None:
            return self._learner.adam.learning_rate
        try:
            return self._attributes[key]
        except KeyError:
            raise NotImplementedError(
                f"dqn has no attribute {key!r}; it has {', '.join(sorted(self._attributes))}"
            ) from None

    def _set_attribute(self, key: str, value: Any) -> None:
        if key == "learning_rate" and self._learner is not None:
            learn = read_section(DQNLearnSection, {key: value}, "policy.learn")
            self._learner.adam.learning_rate = learn.learning_rate
            return
        if key not in {"n_sample", "n_episode", "unroll_len", "batch_size"}:
            raise NotImplementedError(f"dqn's attribute {key!r} cannot be set")
        self._attributes[key] = value


def _reset(ids: Sequence[int] | None = None) -> None:
    """DQN keeps nothing between two steps of an env."""


def _device(cuda: bool) -> str:
    if not cuda:
        return "cpu"
    if not torch.cuda.is_available():
        raise ConfigError(
            "policy.cuda is true, but torch finds no CUDA device here; set policy.cuda=false",
            path="policy.cuda",
        )
    return "cuda"
