"""The environment variables that decide which plugins are loaded."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dingsdk.errors import ConfigError, spelling

if TYPE_CHECKING:
    from dingsdk.plugins.discovery import Advert

VARIABLES: Mapping[str, str] = {
    "DINGSDK_DISABLE_PLUGIN_AUTOLOAD": "1: use no installed plugin but those in DINGSDK_PLUGINS.",
    "DINGSDK_PLUGINS": (
        "Comma-separated. Installed plugins to use although the variable above is set; any other "
        "name is a module to import and register when a run starts."
    ),
    "DINGSDK_DISABLED_PLUGINS": (
        "Comma-separated. Plugins that are never imported, even if DINGSDK_PLUGINS or "
        "import_names name them."
    ),
    "DINGSDK_STRICT_PLUGINS": (
        "1: a broken plugin ends the program. By default it is logged and left out."
    ),
}
"""Variable -> what it does. Built-in types are never affected."""

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Switches:
    """Which plugins may be loaded; see ``VARIABLES``.

    A plugin is named by its distribution (``dingsdk-rl-in-memory``) or by its module.

    Attributes:
        autoload: Whether to use all installed plugins.
        plugins: Installed plugins to use without ``autoload``, and modules to import.
        disabled: Plugins that are never imported, even if they are in ``plugins``.
        strict: Whether the error of a broken plugin is raised; otherwise it is logged, and the
            plugin is left out.
    """

    autoload: bool = True
    plugins: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()
    strict: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Switches:
        """Read the environment variables.

        Raises:
            ConfigError: a variable is misspelled, or its value is neither on nor off.
        """
        for name in environ:
            if name.startswith("DINGSDK_") and "PLUGIN" in name and name not in VARIABLES:
                nearest, hint = spelling(name, VARIABLES)
                raise ConfigError(
                    f"the environment sets {name}, which is no switch of dingsdk{hint} "
                    f"Known: {', '.join(sorted(VARIABLES))}",
                    path=name,
                    known=sorted(VARIABLES),
                    nearest=nearest,
                )
        return cls(
            autoload=not _is_on(environ, "DINGSDK_DISABLE_PLUGIN_AUTOLOAD"),
            plugins=_names(environ.get("DINGSDK_PLUGINS", "")),
            disabled=_names(environ.get("DINGSDK_DISABLED_PLUGINS", "")),
            strict=_is_on(environ, "DINGSDK_STRICT_PLUGINS"),
        )

    def check(self, adverts: Iterable[Advert]) -> None:
        """Raise ConfigError if a name in the switches is neither a plugin nor a module."""
        installed = {name for advert in adverts for name in advert.names}
        for variable, listed in (
            ("DINGSDK_PLUGINS", self.plugins),
            ("DINGSDK_DISABLED_PLUGINS", self.disabled),
        ):
            for name in listed:
                if is_named([name], installed) or _is_module(name):
                    continue
                nearest, hint = spelling(name, installed)
                raise ConfigError(
                    f"{variable} names {name!r}, which is neither an installed plugin nor a "
                    f"module{hint if nearest else '; take it out, or install it.'}",
                    path=variable,
                    asked=name,
                    nearest=nearest,
                )

    def why_not(self, names: Iterable[str]) -> str | None:
        """Return why the plugin with these names may not be imported, or None."""
        if is_named(self.disabled, names):
            return "it is named in DINGSDK_DISABLED_PLUGINS"
        if not self.autoload and not is_named(self.plugins, names):
            return "DINGSDK_DISABLE_PLUGIN_AUTOLOAD is set and DINGSDK_PLUGINS does not name it"
        return None

    def is_disabled(self, module: str) -> bool:
        """Whether this module, or a package that contains it, is named in ``disabled``."""
        parts = module.split(".")
        return is_named(self.disabled, [".".join(parts[: n + 1]) for n in range(len(parts))])


def is_named(listed: Iterable[str], names: Iterable[str]) -> bool:
    """Whether a name of ``listed`` is in ``names``; names are compared as by pip (PEP 503)."""
    return not {_normalized(name) for name in listed}.isdisjoint(map(_normalized, names))


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_module(name: str) -> bool:
    # Only the top package is checked: looking for a module in it would import it.
    package = name.partition(".")[0].replace("-", "_")
    return package.isidentifier() and importlib.util.find_spec(package) is not None


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
