"""Names that plugins own, reachable as ``dingsdk.worker.<Name>`` without knowing the plugin."""

from __future__ import annotations

from typing import Any

from dingsdk.errors import PluginLoadError, PluginNotInstalledError
from dingsdk.plugins import hints
from dingsdk.plugins.default import default_manager
from dingsdk.plugins.kinds import NAMES
from dingsdk.plugins.registry import import_place


def resolve_plugin_name(name: str) -> Any:
    """Return the object that an installed plugin advertises under ``name``.

    Meant to be called from a package's ``__getattr__``. The advert is an entry point of group
    ``dingsdk.names``: its name is ``name``, its value ``module:attribute``.

    Raises:
        PluginNotInstalledError: a plugin is known to own the name, but is not installed (also
            an ImportError).
        PluginLoadError: the plugin is disabled, broken, or not the only one.
        AttributeError: no plugin owns the name.
    """
    if name.startswith("_"):  # asked for by import machinery and inspection, never ours
        raise AttributeError(f"no plugin provides {name!r}")
    manager = default_manager()
    adverts = manager.adverts(NAMES, name)
    usable = [advert for advert in adverts if manager.why_not(advert) is None]
    if len(usable) > 1:
        raise PluginLoadError(
            f"{name} is provided by more than one plugin: {' and '.join(map(str, usable))}; "
            "uninstall one, or name it in DINGSDK_DISABLED_PLUGINS",
            plugin=name,
            kind=NAMES,
            reason="duplicate",
            providers=[advert.distribution for advert in usable],
        )
    if usable:
        try:
            return import_place(usable[0].value)
        except Exception as error:
            raise PluginLoadError(
                f"cannot load {name} from {usable[0]}: {type(error).__name__}: {error}",
                plugin=usable[0].distribution,
                kind=NAMES,
                reason="broken",
            ) from error
    if adverts:
        raise PluginLoadError(
            f"{name} is provided by {adverts[0]}, which is not loaded: "
            f"{manager.why_not(adverts[0])}",
            plugin=adverts[0].distribution,
            kind=NAMES,
            reason="disabled",
        )
    install = hints.NAMES.get(name)
    if install is None:
        raise AttributeError(f"no plugin provides {name!r}")
    raise PluginNotInstalledError(
        f"{name} is part of the plugin {install}, which is not installed; "
        f"to get it: {hints.install_command(install)}",
        name=name,
        install=install,
    )
