"""The batch of an engine step, with the scheduled and cached tokens of each request."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from pinn.common import documents
from pinn.common.documents import check_size
from pinn.errors import PinnError


@dataclass(frozen=True)
class Batch:
    """Requests of one engine step, with their new and cached tokens.

    Each tuple has one entry per request, or per group of identical requests (``counts``).

    Attributes:
        new_tokens: Tokens that the step computes for a request, at least 1.
        cached_tokens: Tokens of a request whose keys and values are cached before the step, at
            least 0: earlier chunks of the prompt, a cached prefix, or the context of a decode.
        is_prefill: Whether the request still computes its prompt.
        reread_tokens: Context tokens of decodes whose keys and values are already in the GPU's L2
            cache, because another decode of the step has read them.
        counts: Number of identical requests per entry; empty if each entry is one request.
    """

    new_tokens: tuple[int, ...] = ()
    cached_tokens: tuple[int, ...] = ()
    is_prefill: tuple[bool, ...] = ()
    reread_tokens: float = 0.0
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = tuple(map(len, (self.new_tokens, self.cached_tokens, self.is_prefill)))
        if len(set(sizes)) > 1:
            got = ", ".join(map(str, sizes))
            raise PinnError(
                f"new_tokens, cached_tokens and is_prefill must have equal lengths, got {got}"
            )
        if self.counts and (len(self.counts) != sizes[0] or min(self.counts) < 1):
            got = f"{self.counts!r:.60} for {sizes[0]} entries"
            raise PinnError(f"counts must have one positive number per entry, got {got}")
        for new, cached in zip(self.new_tokens, self.cached_tokens, strict=True):
            if new < 1 or cached < 0:
                raise PinnError(
                    f"each request of a batch needs at least 1 new and 0 cached tokens, got {new} "
                    f"new and {cached} cached tokens"
                )

    def __len__(self) -> int:
        return sum(self.counts) if self.counts else len(self.new_tokens)

    def __add__(self, other: Batch) -> Batch:
        return Batch(
            self.new_tokens + other.new_tokens,
            self.cached_tokens + other.cached_tokens,
            self.is_prefill + other.is_prefill,
            self.reread_tokens + other.reread_tokens,
            self.entry_counts + other.entry_counts,
        )

    @property
    def entry_counts(self) -> tuple[int, ...]:
        """Return the number of identical requests in each entry; 1 each if ``counts`` is empty."""
        return self.counts or (1,) * len(self.new_tokens)

    @property
    def tokens(self) -> int:
        """Return the number of tokens that the step computes, over all requests."""
        return sum(n * t for n, t in zip(self.entry_counts, self.new_tokens, strict=True))

    @property
    def longest(self) -> int:
        """Return the length of the longest sequence after this step, in tokens."""
        ends = zip(self.new_tokens, self.cached_tokens, strict=True)
        return max((new + cached for new, cached in ends), default=0)

    @staticmethod
    def decode(requests: int, context_tokens: int) -> Batch:
        """Return a batch of identical requests that each decode one token after their context."""
        return _equal(requests, 1, context_tokens, is_prefill=False)

    @staticmethod
    def prefill(requests: int, new_tokens: int, cached_tokens: int = 0) -> Batch:
        """Return a batch of identical requests that compute prompt tokens after cached ones."""
        return _equal(requests, new_tokens, cached_tokens, is_prefill=True)


def _equal(requests: int, new_tokens: int, cached_tokens: int, *, is_prefill: bool) -> Batch:
    """Return a batch of identical requests, as a single entry."""
    if requests < 1:
        return Batch()
    return Batch((new_tokens,), (cached_tokens,), (is_prefill,), 0.0, (requests,))


_PART = re.compile(
    r"^([0-9]{1,40}) +(?:prefills? +(?P<new>[0-9]{1,40}k?)|decodes?) *@ *"
    r"(?P<cached>[0-9]{1,40}k?)$",
    re.IGNORECASE,
)


@lru_cache(maxsize=4096)
def parse_batch(text: str) -> Batch:
    """Parse the description of a batch, such as ``1 prefill 512 @ 0 + 64 decode @ 1k``.

    Raises:
        PinnError: If a part between plus signs is not ``N decode @ CONTEXT`` or ``N prefill TOKENS
            @ CACHED``, if there are too many parts, requests or tokens, or if there is no request.

    >>> parse_batch("1 prefill 512 @ 0 + 2 decode @ 600").counts
    (1, 2)
    >>> parse_batch("64 decodes @ 1k") == parse_batch("64 decode @ 1000")
    True
    """
    parts, most = text.count("+") + 1, documents.MOST_BATCH_PARTS
    check_size(parts, most, "the number of parts of the batch", "merge equal requests")
    batch = sum((_parse_part(part.strip()) for part in text.split("+")), Batch())
    if not len(batch):
        raise PinnError(f"the batch {text!r:.60} is empty: give at least one request")
    _check_requests(len(batch), text)
    return batch


def _check_requests(requests: int, text: str) -> None:
    remedy = "a step of vLLM has at most --max-num-seqs requests, 1,024 by default"
    what = f"the number of requests of the batch {text!r:.60}"
    check_size(requests, documents.MOST_BATCH_REQUESTS, what, remedy)


def _tokens(text: str) -> int:
    """Return the number of tokens given by a string such as ``8k``; ``k`` means a thousand."""
    digits = text.rstrip("kK")
    return int(digits) * (1 if digits == text else 1000)


@lru_cache(maxsize=4096)
def _parse_part(text: str) -> Batch:
    match = _PART.match(text)
    if match is None:
        raise PinnError(
            f"the part {text!r:.80} of the batch cannot be read: write 'N decode @ CONTEXT' or "
            "'N prefill TOKENS @ CACHED' (1k is 1000), joined by ' + '"
        )
    requests, cached, new = int(match[1]), _tokens(match["cached"]), _tokens(match["new"] or "1")
    _check_requests(requests, text)
    for name, tokens in (("new tokens", new), ("cached tokens", cached)):
        check_size(
            tokens,
            documents.MOST_BATCH_TOKENS,
            f"the number of {name} of a request in {text!r:.60}",
            "shorten the request",
        )
    return _equal(requests, new, cached, is_prefill=match["new"] is not None)
