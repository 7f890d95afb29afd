"""The shipped examples: what each one trains, and whether its requirements are installed."""

from __future__ import annotations

from dataclasses import dataclass

from dingsdk.config import EXAMPLES_DIR, load_config
from dingsdk.envs.extras import extra_of


@dataclass(frozen=True, slots=True)
class Example:
    """One shipped example.

    Attributes:
        name: The name to use in ``dingsdk train NAME``.
        description: The first sentence of its file.
        extra: The extra of dingsdk that it needs; empty for none.
        install: The command that installs the extra; empty if it is installed or not needed.
    """

    name: str
    description: str
    env_id: str
    policy: str
    extra: str
    is_installed: bool
    install: str


def list_examples() -> list[Example]:
    """Return the shipped examples, sorted by name; does not import what they need."""
    return [_read(path.stem) for path in sorted(EXAMPLES_DIR.glob("*.yaml"))]


def _read(name: str) -> Example:
    config = load_config(name)
    env_id = config["env"]["env_id"]
    extra = extra_of(env_id)
    is_installed = extra is None or extra.is_installed
    return Example(
        name=name,
        description=_first_sentence((EXAMPLES_DIR / f"{name}.yaml").read_text(encoding="utf-8")),
        env_id=env_id,
        policy=config["policy"]["type"],
        extra="" if extra is None else extra.name,
        is_installed=is_installed,
        install="" if extra is None or is_installed else extra.install,
    )


def _first_sentence(text: str) -> str:
    """Return the first sentence of the comment that a file begins with."""
    lines: list[str] = []
    for line in text.splitlines():
        words = line.removeprefix("#").strip()
        if not line.startswith("#") or not words:
            break
        lines.append(words)
    sentence, end, _ = " ".join(lines).partition(". ")
    return sentence + end.strip()
