"""What one engine step runs: per request, the tokens it schedules and the tokens it has cached."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pinn.errors import PinnError


@dataclass(frozen=True)
class Batch:
    """One step's work; the three tuples run over its requests.

    Attributes:
        new_tokens: Tokens scheduled now; at least 1.
        cached_tokens: Tokens whose keys and values are there already (earlier chunks, a cached
            prefix, or the context of a decode); at least 0.
        is_prefill: Whether the request still works on its prompt.
        reread_tokens: Of the contexts of all decodes, tokens whose keys and values another decode
            reads too and the GPU's cache still holds.
    """

    new_tokens: tuple[int, ...] = ()
    cached_tokens: tuple[int, ...] = ()
    is_prefill: tuple[bool, ...] = ()
    reread_tokens: float = 0.0

    def __post_init__(self) -> None:
        if not len(self.new_tokens) == len(self.cached_tokens) == len(self.is_prefill):
            raise PinnError(
                "a batch needs new_tokens, cached_tokens and is_prefill of equal length, got "
                f"{len(self.new_tokens)}, {len(self.cached_tokens)}, {len(self.is_prefill)}"
            )
        for new, cached in zip(self.new_tokens, self.cached_tokens, strict=True):
            if new < 1 or cached < 0:
                raise PinnError(
                    "a request in a batch needs at least 1 new and 0 cached tokens, "
                    f"got {new} and {cached}"
                )

    def __len__(self) -> int:
        return len(self.new_tokens)

    def __add__(self, other: Batch) -> Batch:
        return Batch(
            self.new_tokens + other.new_tokens,
            self.cached_tokens + other.cached_tokens,
            self.is_prefill + other.is_prefill,
            self.reread_tokens + other.reread_tokens,
        )

    @staticmethod
    def decode(requests: int, context_tokens: int) -> Batch:
        """Requests that generate one token each after a context of the given length."""
        return Batch((1,) * requests, (context_tokens,) * requests, (False,) * requests)

    @staticmethod
    def prefill(requests: int, new_tokens: int, cached_tokens: int = 0) -> Batch:
        """Requests that process a chunk of their prompt after the given cached tokens."""
        return Batch((new_tokens,) * requests, (cached_tokens,) * requests, (True,) * requests)


_PART = re.compile(r"^(\d+)\s+(?:prefill\s+(?P<new>\d+)|decode)\s*@\s*(?P<cached>\d+)$")


def parse_batch(text: str) -> Batch:
    """Read a batch as written on the command line.

    Raises:
        PinnError: If a part is not ``N decode @ CONTEXT`` or ``N prefill TOKENS @ CACHED``.

    >>> parse_batch("1 prefill 512 @ 0 + 2 decode @ 600").new_tokens
    (512, 1, 1)
    """
    batch = Batch()
    for part in text.split("+"):
        match = _PART.match(part.strip())
        if match is None:
            raise PinnError(
                f"cannot read batch part {part.strip()!r}: write 'N decode @ CONTEXT' or "
                "'N prefill TOKENS @ CACHED', joined by ' + '"
            )
        requests, cached = int(match[1]), int(match["cached"])
        if match["new"] is None:
            batch += Batch.decode(requests, cached)
        else:
            batch += Batch.prefill(requests, int(match["new"]), cached)
    return batch
