"""The environment variables that decide which plugins are loaded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dingsdk.errors import ConfigError

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Switches:
    """Which plugins may be loaded. Built-ins are never affected.

    A plugin is named by its distribution (``dingsdk-rl-in-memory``) or by its module.

    Attributes:
        autoload: Use installed plugins. ``DINGSDK_DISABLE_PLUGIN_AUTOLOAD=1`` turns it off;
            those in ``plugins`` are still used.
        plugins: ``DINGSDK_PLUGINS``, comma-separated. Installed plugins to allow although
            ``autoload`` is off; any other name is a module to import and register when
            observers are loaded.
        disabled: ``DINGSDK_DISABLED_PLUGINS``, comma-separated. Never imported; wins over
            ``plugins``.
        strict: ``DINGSDK_STRICT_PLUGINS=1``. A broken plugin raises where it would be logged
            and left out.
    """

    autoload: bool = True
    plugins: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()
    strict: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Switches:
        """Read the four variables.

        Raises:
            ConfigError: a switch that is neither on nor off.
        """
        return cls(
            autoload=not _is_on(environ, "DINGSDK_DISABLE_PLUGIN_AUTOLOAD"),
            plugins=_names(environ.get("DINGSDK_PLUGINS", "")),
            disabled=_names(environ.get("DINGSDK_DISABLED_PLUGINS", "")),
            strict=_is_on(environ, "DINGSDK_STRICT_PLUGINS"),
        )

    def why_not(self, names: Iterable[str]) -> str | None:
        """Return why a plugin known by these names may not be imported, or None."""
        if is_named(self.disabled, names):
            return "it is named in DINGSDK_DISABLED_PLUGINS"
        if not self.autoload and not is_named(self.plugins, names):
            return "DINGSDK_DISABLE_PLUGIN_AUTOLOAD is set and DINGSDK_PLUGINS does not name it"
        return None

    def is_disabled(self, module: str) -> bool:
        """Whether this module, or a package that holds it, is named in ``disabled``."""
        parts = module.split(".")
        return is_named(self.disabled, [".".join(parts[: n + 1]) for n in range(len(parts))])


def normalized(name: str) -> str:
    """Return a distribution's name as pip compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_named(listed: Iterable[str], names: Iterable[str]) -> bool:
    """Whether one of the ``listed`` names is one of ``names``, compared as pip does."""
    return not {normalized(name) for name in listed}.isdisjoint(map(normalized, names))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _is_on(environ: Mapping[str, str], variable: str) -> bool:
    value = environ.get(variable, "").strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise ConfigError(
        f"{variable} is {value!r}; use 1 to turn it on, 0 or nothing to turn it off",
        path=variable,
        found=value,
    )
