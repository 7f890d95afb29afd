"""A player of games that may be replaced by another one while its games go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class SwappablePlayer:
    """Plays each env's game with the player that started it; the current player may be replaced.

    It is a collect mode, with the other attributes of ``mode``. ``play`` names the player of the
    games that begin from now on. Games that have begun are played to their end by the player that
    started them. So each result belongs to one player, and long games count as often as short ones.

    Args:
        mode: The collect mode that acts. Its weights are loaded again whenever games with another
            player need an action.
        collect_data: Whether a serial collector records the player's transitions.
    """

    def __init__(self, mode: Any, collect_data: bool = True) -> None:
        self._mode = mode
        self.collect_data = collect_data
        self._name = ""
        """Player of the games that begin from now on."""
        self._acting = ""
        """Player whose weights the mode has."""
        self._players: dict[str, tuple[Mapping[str, Any], int | None]] = {}
        """Weights of each player that is needed, and their version."""
        self._of_env: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mode, name)

    def play(self, name: str, state: Mapping[str, Any], version: int | None = None) -> None:
        """Let ``name`` play the games that begin from now on.

        Args:
            name: Id of the player.
            state: Its weights, as for ``load_state_dict``; also for its games that have begun.
            version: Train iteration of the weights.
        """
        self._name = name
        needed = set(self._of_env.values())
        self._players = {key: each for key, each in self._players.items() if key in needed}
        self._load(name, state, version)

    def update(self, name: str, state: Mapping[str, Any], version: int | None = None) -> None:
        """Use newer weights in games that a player has begun; arguments as for ``play``."""
        if name in self._players:
            self._load(name, state, version)

    def _load(self, name: str, state: Mapping[str, Any], version: int | None) -> None:
        self._players[name] = (state, version)
        self._mode.load_state_dict(state)
        self._acting = name

    def player_of(self, env_id: int) -> str:
        """Return who plays the current game of an env."""
        return self._of_env.get(env_id, self._name)

    def version_of(self, env_id: int) -> int | None:
        """Return the version of the weights that play the current game of an env, if known."""
        return self._players.get(self.player_of(env_id), (None, None))[1]

    def forward(self, obs: Mapping[int, Any], **setting: Any) -> dict[int, Any]:
        """Call the mode with the weights of each player, for the envs where it plays."""
        names = {env_id: self._of_env.setdefault(env_id, self._name) for env_id in obs}
        outputs: dict[int, Any] = {}
        # The player whose weights are loaded comes first, which saves one load in each round.
        for name in sorted(dict.fromkeys(names.values()), key=lambda name: name != self._acting):
            self._act_as(name)
            seen = {env_id: each for env_id, each in obs.items() if names[env_id] == name}
            outputs |= self._mode.forward(seen, **setting)
        return outputs

    def train_samples(self, env_id: int, piece: list[Any]) -> list[Any]:
        """Make train samples of a piece of the current game of an env.

        The mode gets the weights of the player of that game, because a policy may need them, for
        example to bootstrap where the piece was cut.
        """
        self._act_as(self.player_of(env_id))
        samples: list[Any] = self._mode.get_train_sample(piece)
        return samples

    def _act_as(self, name: str) -> None:
        if name != self._acting:
            self._load(name, *self._players[name])

    def clear(self, env_ids: Sequence[int]) -> None:
        """Reset the mode for envs whose games go on with the same players."""
        self._mode.reset(env_ids)

    def reset(self, env_ids: Sequence[int] | None = None) -> None:
        """Reset the mode for envs whose game is over, or for all envs."""
        self._mode.reset(env_ids)
        for env_id in list(self._of_env) if env_ids is None else env_ids:
            self._of_env.pop(env_id, None)
