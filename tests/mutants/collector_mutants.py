"""Serial collectors with one defect each, for the collector rules."""

from __future__ import annotations

from typing import Any, ClassVar

from dingsdk.errors import PolicyOutputError
from dingsdk.worker import (
    BattleSampleSerialCollector,
    EpisodeSerialCollector,
    SampleSerialCollector,
)

from .mutant_list import MutantList


class Samples(SampleSerialCollector):
    """The unchanged sample collector; mutants override one of its methods."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"samples", "random"})


class Episodes(EpisodeSerialCollector):
    """The unchanged episode collector."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"episodes"})


class Games(BattleSampleSerialCollector):
    """The unchanged sample collector for games of several players."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"samples", "players"})


MUTANTS = MutantList()
mutant = MUTANTS.mutant


@mutant(2, 7, 12)
class ReturnsTheNewestFirst(Samples):
    def collect(self, *args: Any, **kwargs: Any) -> Any:
        return super().collect(*args, **kwargs)[::-1]


@mutant(3)
class HalvesRewards(Samples):
    def collect(self, *args: Any, **kwargs: Any) -> Any:
        rows: list[Any] = super().collect(*args, **kwargs)  # type: ignore[assignment]
        return [{**row, "reward": 0.5 * row["reward"]} for row in rows]


@mutant(7)
class KeepsFailedEpisodes(Samples):
    def _build(self, traj_len: int | None) -> Any:
        rollout, (writer,) = super()._build(traj_len)
        writer.drop = lambda env_ids: None  # type: ignore[method-assign]
        return rollout, [writer]


@mutant(9)
class GivesUpQuietly(Samples):
    def collect(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().collect(*args, **kwargs)
        except PolicyOutputError:
            return []


@mutant(10)
class CollectsEightByDefault(Samples):
    def _count(self, given: int | None, default: int | None, name: str) -> int:
        return super()._count(given, 8, name)


@mutant(11)
class NeedsAnEnvAtOnce(Samples):
    def __init__(self, cfg: Any, env: Any = None, policy: Any = None, *args: Any) -> None:
        super().__init__(cfg, env, policy, *args)
        _ = self.env


@mutant(12)
class CountsOnAfterAReset(Samples):
    def reset(self, _policy: Any = None, _env: Any = None) -> None:
        before = getattr(self, "_total_envstep_count", 0)
        super().reset(_policy, _env)
        self.envstep = before


@mutant(6)
class TellsOfNoEpisode(Samples):
    def _end_collect(self, episodes: Any, **kwargs: Any) -> None:
        super()._end_collect((), **kwargs)


@mutant(11)
class LeavesEnvsOpen(Samples):
    def close(self) -> None:
        self._env = None
        super().close()


@mutant(16)
class NeverReturnsASurplus(Samples):
    def collect(self, *args: Any, drop_extra: Any = None, **kwargs: Any) -> Any:
        return super().collect(*args, drop_extra=drop_extra or None, **kwargs)


@mutant(18)
class AsksThePolicyForRandomActions(Samples):
    def collect(self, *args: Any, random_collect: bool = False, **kwargs: Any) -> Any:
        return super().collect(*args, **kwargs)


@mutant(19)
class TrainsOnOldRows(Samples):
    def _discard(self) -> None:
        return


@mutant(21, 6)
class BeginsOneMore(Episodes):
    def collect(self, n_episode: Any = None, *args: Any, **kwargs: Any) -> Any:
        return super().collect(n_episode and n_episode + 1, *args, **kwargs)[:n_episode]


@mutant(22)
class GivesAllTheFirstOnesData(Games):
    def collect(self, *args: Any, **kwargs: Any) -> Any:
        data, infos = super().collect(*args, **kwargs)
        return [data[0]] * len(data), infos
