"""Classes that are built from a config section: their defaults, and how they read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from easydict import EasyDict

from dingsdk.config.completion import config_type, read_section
from dingsdk.config.plain import to_easydict
from dingsdk.config.section import Section, defaults_of, derive


class Configurable:
    """Mixin for classes that are built from a config section.

    A class declares the type of its section as ``Config``, or states other defaults and more keys
    in a plain dict ``config``; what it does not state is that of its bases. Both are there in
    every class: ``config`` is made from ``Config``, and the other way round.
    """

    Config: ClassVar[type[Section]] = Section
    config: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        stated = cls.__dict__.get("config")
        if stated is not None:
            plain = {key: value for key, value in stated.items() if key != "cfg_type"}
            cls.Config = derive(cls.Config, plain, f"{cls.__name__}Config")
        cls.config = defaults_of(cls.Config)

    @classmethod
    def default_config(cls) -> EasyDict:
        """Return a deep copy of the defaults, plus ``cfg_type`` (``"<ClassName>Dict"``)."""
        return to_easydict({**defaults_of(cls.Config), "cfg_type": f"{cls.__name__}Dict"})

    @classmethod
    def read(cls, cfg: Mapping[str, Any], path: str = "") -> Any:
        """Return ``cfg`` over the defaults as an instance of ``Config``; see ``read_section``."""
        return read_section(config_type(cls), cfg, path)
