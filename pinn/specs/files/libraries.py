"""Installed distributions: which one a name means, and their versions, found in a millisecond."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from functools import cache

_ENDING = ".dist-info"


@cache
def installed_versions() -> Mapping[str, str]:
    """Distribution, in lower case with underscores -> version.

    Read off the names of their folders: asking ``importlib.metadata`` for each takes longer than
    the rest of a key.
    """
    found: dict[str, str] = {}
    for place in sys.path:
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        for name in sorted(names):
            if name.endswith(_ENDING):
                distribution, _, version = name.removesuffix(_ENDING).partition("-")
                found.setdefault(plain(distribution), version)
    return found


def distributions_named(names: Iterable[str]) -> tuple[str, ...]:
    """The installed distributions among names of distributions or of what one imports.

    >>> distributions_named(["torch", "yaml", "no such thing", "aiconfigurator-core"])
    ('aiconfigurator_core', 'pyyaml', 'torch')
    """
    installed, found = installed_versions(), set()
    for name in names:
        if plain(name) in installed:
            found.add(plain(name))
        elif name.isidentifier():
            found |= {plain(owner) for owner in _owners().get(name, ())}
    return tuple(sorted(found))


@cache
def _owners() -> Mapping[str, list[str]]:
    from importlib.metadata import packages_distributions  # slow to import, and seldom needed

    return packages_distributions()


def plain(name: str) -> str:
    """A distribution's name as those of its folder are written."""
    return name.lower().replace("-", "_").replace(".", "_")
