"""Finds the gymnasium id of an env that DI-engine's zoo calls by a short name."""

from __future__ import annotations

import re

from dingsdk.errors import UnknownEnvError, nearest_name

_VERSION = re.compile(r"-v(\d+)$")


def find_env_id(zoo_name: str) -> str:
    """Return the newest gymnasium id whose bare name is ``zoo_name``, as ``CartPole-v1``.

    Case, punctuation and versions do not count; an id without a namespace is preferred.

    Raises:
        UnknownEnvError: none has that name, or more than one in different namespaces.
    """
    import gymnasium

    versions: dict[str, list[tuple[int, str]]] = {}
    for env_id in gymnasium.registry:
        base, version = _split(env_id)
        if _bare(base) == _bare(zoo_name):
            versions.setdefault(base, []).append((version, env_id))
    plain = {base: ids for base, ids in versions.items() if "/" not in base}
    versions = plain or versions
    if len(versions) == 1:
        return max(next(iter(versions.values())))[1]
    if versions:
        found = sorted(versions)
        raise UnknownEnvError(
            f"create_config.env.type {zoo_name!r} could be any of {', '.join(found)}; "
            "set env.env_id in main_config",
            env_id=zoo_name,
            nearest=None,
            known=found,
        )
    nearest = nearest_name(_bare(zoo_name), {_bare(_split(each)[0]) for each in gymnasium.registry})
    hint = f"; did you mean {nearest!r}?" if nearest else ""
    raise UnknownEnvError(
        f"create_config.env.type {zoo_name!r} is no env of gymnasium{hint} Set env.env_id in "
        "main_config to a gymnasium id",
        env_id=zoo_name,
        nearest=nearest,
    )


def _split(env_id: str) -> tuple[str, int]:
    match = _VERSION.search(env_id)
    return (env_id, 0) if match is None else (env_id[: match.start()], int(match.group(1)))


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.rsplit("/", 1)[-1].lower())
