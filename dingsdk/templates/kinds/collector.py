"""A collector that collects more as training progresses.

It extends `SampleSerialCollector`, which counts in train samples; `EpisodeSerialCollector` counts in whole
episodes. To step the envs in another way, extend `ISerialCollector` and write `collect` yourself.
`self.env` is an env manager, `self.policy` the collect mode of the policy, and `self._cfg` the section. In
parallel mode the workers use the same collector.

    policy:
      collect:
        collector:
          type: plugin_name
          growth: 0.5
"""

from __future__ import annotations

from typing import Any, ClassVar

from dingsdk.config import NotNegative
from dingsdk.worker import SampleSerialCollector


class PluginNameCollector(SampleSerialCollector):
    """If a call gives no ``n_sample``, the policy's number grows with the train iterations."""

    class Config(SampleSerialCollector.Config, frozen=True, kw_only=True):
        """Section ``policy.collect.collector``.

        Attributes:
            growth: Share of ``n_sample`` that is added for every 1,000 train iterations.
        """

        type: str = "plugin_name"
        growth: NotNegative = 0.0

    contract_capabilities: ClassVar[frozenset[str]] = frozenset({"samples", "random"})

    _cfg: Config

    def collect(self, n_sample: int | None = None, train_iter: int = 0, *args: Any, **kwargs: Any) -> Any:
        """Collect as the base class does.

        Args:
            n_sample: How many train samples; None for the policy's number with the growth added.
            train_iter: Version of the policy.
            args, kwargs: As for the base class.
        """
        if n_sample is None:
            wanted = self._count(None, self.policy.get_attribute("n_sample"), "n_sample")
            n_sample = round(wanted * (1 + self._cfg.growth * train_iter / 1000))
        return super().collect(n_sample, train_iter, *args, **kwargs)
