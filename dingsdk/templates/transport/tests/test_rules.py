"""The transport follows the rules of all transports."""

from __future__ import annotations

from pathlib import Path

import pytest
from dingsdk_plugin_name import PluginNameTransport

from dingsdk.errors import ConfigError
from dingsdk.testing import TransportContract


class TestRules(TransportContract):
    capabilities = PluginNameTransport.contract_capabilities

    def make_transport(self, run_dir: Path) -> PluginNameTransport:
        return PluginNameTransport({}, run_dir)


def test_other_addresses_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one address"):
        PluginNameTransport({}, tmp_path).slave_end("http://elsewhere:80")
