"""The folders of the checkpoints and logs of a run's players."""

from __future__ import annotations

from pathlib import Path

from dingsdk.runtime.files import check_id

PLAYERS_FOLDER = "players"


def player_folder(run_dir: Path, player: str | None) -> Path:
    """Return the folder of one player, laid out as a run folder.

    Args:
        run_dir: The run folder.
        player: Id of the player; None for the first or only player, whose folder is ``run_dir``.

    Raises:
        ProtocolError: the id cannot be part of a file name.
    """
    return run_dir if player is None else run_dir / PLAYERS_FOLDER / check_id(player, "player")
