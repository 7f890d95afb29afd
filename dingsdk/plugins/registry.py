"""A registry maps the type keys of one kind to classes, or to the places to import them from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from operator import itemgetter
from pkgutil import resolve_name
from typing import Any, TypeVar, overload

from dingsdk.errors import (
    ConfigTypeError,
    DuplicateTypeError,
    PluginLoadError,
    UnknownPluginError,
    error_text,
    listing,
    spelling,
)
from dingsdk.plugins.kinds import OWN_DISTRIBUTION

T = TypeVar("T", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered type.

    Attributes:
        owner: The name of the plugin that registered it, ``dingsdk-rl`` for built-in types, else
            a module.
        target: The class or callable; None until it is imported from its place.
        place: ``module:attribute`` to import on first use, or None.
    """

    owner: str
    target: object = None
    place: str | None = None


@dataclass(slots=True)
class Transaction:
    """The changes of one plugin's load in the registries, so that they can be undone.

    Attributes:
        owner: The plugin.
        changes: Registry, key and previous entry of each change.
    """

    owner: str
    changes: list[tuple[Registry, str, Entry | None]] = field(default_factory=list)

    def roll_back(self) -> None:
        """Undo all changes, the last one first."""
        while self.changes:
            registry, name, previous = self.changes.pop()
            registry._put(name, previous)


# A context variable, not an attribute of the manager: two threads may load two plugins at the
# same time, and each must undo only its own changes.
_current: ContextVar[Transaction | None] = ContextVar("dingsdk_plugin_load", default=None)


@contextmanager
def transaction(owner: str) -> Iterator[Transaction]:
    """Set ``owner`` as the owner of all registrations in the block; undo them all on an error."""
    changes = Transaction(owner)
    token = _current.set(changes)
    try:
        yield changes
    except BaseException:
        changes.roll_back()
        raise
    finally:
        _current.reset(token)


class Registry:
    """Types of one kind, such as ``buffers``, by key; safe for concurrent use."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.own: dict[str, Any] = {}
        """Types of dingsdk that have been imported, by name; do not change it."""
        self._entries: dict[str, Entry] = {}
        self._lock = threading.Lock()

    @overload
    def register(self, name: T) -> T: ...

    @overload
    def register(
        self, name: str | None = None, module: None = None, force_overwrite: bool = False
    ) -> Callable[[T], T]: ...

    @overload
    def register(
        self, name: str | None = ..., module: T = ..., force_overwrite: bool = False
    ) -> T: ...

    def register(self, name: Any = None, module: Any = None, force_overwrite: bool = False) -> Any:
        """Register a class or callable, and return it.

        ``@registry.register("key")`` and ``registry.register("key", cls)`` do the same; the name
        defaults to ``__name__``.

        Raises:
            DuplicateTypeError: the name is registered already, and ``force_overwrite`` is False.
            ConfigTypeError: the name is no text, or the part cannot be used as one of its kind.
        """
        if callable(name) and module is None:  # bare @registry.register
            name, module = None, name
        if module is None:
            return lambda module: self.register(name, module, force_overwrite)
        key = name if name is not None else getattr(module, "__name__", None)
        if not isinstance(key, str) or not key:
            raise ConfigTypeError(
                f"cannot register {module!r} among the {self.kind}: its name is {key!r}, "
                "and must be a non-empty string",
                expected="str",
                found=type(key).__name__,
            )
        if wrong := _why_unusable(self.kind, key, module):
            raise ConfigTypeError(wrong, expected=self.kind, found=type(module).__name__)
        current = _current.get()
        owner = current.owner if current else getattr(module, "__module__", None) or "unknown"
        self._add(key, Entry(owner, target=module), force_overwrite)
        return module

    def declare(
        self, name: str, place: str, owner: str = OWN_DISTRIBUTION, force_overwrite: bool = False
    ) -> None:
        """Register ``module:attribute``, which is imported when the name is first used."""
        self._add(name, Entry(owner, place=place), force_overwrite)

    def get(self, name: str) -> Any:
        """Return the class or callable of that name.

        Raises:
            UnknownPluginError: nothing has that name (also a KeyError).
            PluginLoadError: it was declared by its place, and cannot be imported from it.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise unknown(self.kind, name, self.query())
        if entry.place is None or entry.target is not None:
            return entry.target
        try:
            target = resolve_name(entry.place)
        except (Exception, SystemExit) as error:
            raise PluginLoadError(
                f"cannot load {name!r} of the {self.kind} from {entry.place}: {error_text(error)}",
                kind=self.kind,
                plugin=entry.place,
            ) from error
        if wrong := _why_unusable(self.kind, name, target):
            raise PluginLoadError(
                f"plugin {entry.owner}: {wrong}", kind=self.kind, plugin=entry.owner
            )
        with self._lock:
            if self._entries.get(name) == entry:
                self._set(name, Entry(entry.owner, target, entry.place))
        return target

    def build(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the class or callable of that name; its exceptions are raised unchanged."""
        return self.get(name)(*args, **kwargs)

    def query(self) -> list[str]:
        """Return the registered names, sorted."""
        with self._lock:
            return sorted(self._entries)

    def entries(self) -> list[tuple[str, Entry]]:
        """Return the names and their entries, sorted by name."""
        with self._lock:
            return sorted(self._entries.items(), key=itemgetter(0))

    def entry(self, name: str) -> Entry | None:
        """Return the entry of that name, or None; does not import its target."""
        return self._entries.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Registry({self.kind!r}: {listing(self.query())})"

    def _add(self, name: str, entry: Entry, force_overwrite: bool) -> None:
        with self._lock:
            previous = self._entries.get(name)
            if previous is not None and not force_overwrite:
                # Allowed if the name was declared with this place: the module is being imported
                # from there, and registers the class itself.
                if previous.place is None or previous.place != place_of(entry.target):
                    raise DuplicateTypeError(
                        f"cannot register {name!r} among the {self.kind} for {entry.owner}: "
                        f"{previous.owner} has it already; choose another name, or pass "
                        "force_overwrite=True to replace it",
                        kind=self.kind,
                        name=name,
                        owner=previous.owner,
                    )
                entry = Entry(previous.owner, entry.target, previous.place)
            self._set(name, entry)
        current = _current.get()
        if current is not None:
            current.changes.append((self, name, previous))

    def _put(self, name: str, entry: Entry | None) -> None:
        with self._lock:
            self._set(name, entry)

    def _set(self, name: str, entry: Entry | None) -> None:
        # Each dict changes in one step: other threads read them without the lock.
        if entry is None:
            self._entries.pop(name, None)
        else:
            self._entries[name] = entry
        if entry is not None and entry.target is not None and entry.owner == OWN_DISTRIBUTION:
            self.own[name] = entry.target
        else:
            self.own.pop(name, None)


def _why_unusable(kind: str, name: str, target: object) -> str:
    """Return why an object cannot be a part of a kind, or an empty text."""
    if kind == "commands":
        import click

        if not isinstance(target, click.Command):
            advice = "no click command; decorate it with @click.command()"
            return f"{name!r} of the commands is {target!r}, {advice}"
    if not callable(target):
        advice = "which cannot be called; register a class, or a function that makes one"
        return f"{name!r} of the {kind} is {target!r:.80}, {advice}"
    return ""


def place_of(target: object) -> str | None:
    """Return ``module:qualname`` of a class or function, or None for other objects."""
    module = getattr(target, "__module__", None)
    name = getattr(target, "__qualname__", None)
    return f"{module}:{name}" if module and name else None


def unknown(
    kind: str,
    asked: object,
    known: list[str],
    advice: str = "",
    *,
    proposed: Iterable[str] | None = None,
    **facts: object,
) -> UnknownPluginError:
    """Return the error for an unknown name; the message has the nearest name and all known names.

    ``advice`` is put before the list of known names; the nearest name is one of ``proposed``, or of
    the known names; ``facts`` are added to the facts of the error.
    """
    nearest, hint = spelling(asked, known if proposed is None else proposed)
    own = {"kind": kind, "asked": asked, "known": known, "nearest": nearest, "install": None}
    where = f"{facts['path']}: " if "path" in facts else ""
    return UnknownPluginError(
        f"{where}no {asked!r} among the {kind}{hint}{advice} Known: {listing(known)}",
        **(own | facts),
    )
