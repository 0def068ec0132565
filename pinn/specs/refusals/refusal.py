"""What a refusal says, and which release it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pinn.specs.engine_defaults import release, served_release

if TYPE_CHECKING:
    from pinn.specs.deployment import Deployment


class Refusal(NamedTuple):
    """Why an engine does not start, or a kernel of it stops.

    Attributes:
        reason: What does not fit, with its numbers.
        remedy: What to do instead.
        source: Release and file that say so.
    """

    reason: str
    remedy: str
    source: str

    @property
    def text(self) -> str:
        """One line for an error."""
        return f"{self.reason}: {self.remedy}, or --force to time it anyway ({self.source})"


def version_of(d: Deployment) -> str:
    """The release that is served, such as ``0.15.1``: the flag's, or the defaults' table's."""
    return served_release(d.serving.engine, d.serving.engine_version)


def release_of(d: Deployment) -> tuple[int, ...]:
    """Its numbers."""
    return release(version_of(d))


def runs(d: Deployment, engine: str, least: str = "0", below: str = "") -> bool:
    """Whether a deployment is of an engine's releases from ``least`` up to, without, ``below``."""
    if d.serving.engine != engine:
        return False
    found = release_of(d)
    return release(least) <= found and (not below or found < release(below))
