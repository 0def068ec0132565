"""What a reader did with a file: how many rows it read, accepted and refused, and why."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinn.errors import PinnError


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, as lower-case hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class ReadReport:
    """The counts of one read; every reader returns one beside its rows.

    Attributes:
        source: What was read, such as ``silicon_sample.csv``.
        version: Version of the package or of the engine that the file belongs to.
        sha256: Digest of the file's bytes.
        read: Rows in the file.
        accepted: Rows handed on.
        refused: Rows left out by reason, in the order in which the reader applied the reasons.
        noted: Of the accepted rows, how many have something that is worth knowing.

    Raises:
        PinnError: If a count is negative or the accepted and refused rows do not add up to those
            read.
    """

    source: str
    version: str
    sha256: str
    read: int
    accepted: int
    refused: Mapping[str, int] = field(default_factory=dict)
    noted: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if min(self.read, self.accepted, *self.refused.values(), 0) < 0:
            raise PinnError(f"{self.source}: a row count is negative: {self.to_json()}")
        if self.accepted + sum(self.refused.values()) != self.read:
            raise PinnError(
                f"{self.source}: {self.read} rows read, but {self.accepted} accepted and "
                f"{sum(self.refused.values())} refused: the reader lost or doubled rows"
            )

    def table(self) -> str:
        """The counts as aligned text, one line a reason.

        >>> print(ReadReport("a.csv", "1.0", "", 5, 3, {"no target": 2}).table())
        a.csv 1.0
               5  read
               2  refused: no target
               3  accepted
        """
        lines = [f"{self.source} {self.version}".rstrip(), f"{self.read:8d}  read"]
        lines += [f"{count:8d}  refused: {reason}" for reason, count in self.refused.items()]
        lines += [f"{self.accepted:8d}  accepted"]
        lines += [f"{count:8d}  of these {what}" for what, count in self.noted.items()]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-ready values; ``refused`` keeps its order."""
        return {
            "source": self.source,
            "version": self.version,
            "sha256": self.sha256,
            "read": self.read,
            "accepted": self.accepted,
            "refused": dict(self.refused),
            "noted": dict(self.noted),
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> ReadReport:
        """Rebuild a report from :meth:`to_json`.

        Raises:
            PinnError: If a key is missing or unknown, or the counts do not add up.
        """
        try:
            return ReadReport(**values)
        except TypeError as error:
            raise PinnError(f"not a read report: {error}") from error
