"""Batches whose steps are measured: a short initial list, and a default order."""

import re
from collections.abc import Iterator
from typing import NamedTuple


class Wanted(NamedTuple):
    """Batch to measure: decodes with equal context, and prompts of equal length.

    Attributes:
        decodes: Number of decodes.
        context: Tokens of each decode that are in the KV cache before the step.
        prompts: Number of prompts.
        tokens: New tokens of each prompt in the step.
        cached: Tokens of each prompt that are in the KV cache before the step.
    """

    decodes: int
    context: int
    prompts: int = 0
    tokens: int = 0
    cached: int = 0

    def __str__(self) -> str:
        """Return the batch in the notation of the command line."""
        decodes = f"{self.decodes} decode @ {self.context}" if self.decodes else ""
        prompts = f"{self.prompts} prefill {self.tokens} @ {self.cached}" if self.prompts else ""
        return " + ".join(filter(None, (decodes, prompts)))


class Limits(NamedTuple):
    """Limits of the measured engine that restrict the batches to measure.

    Attributes:
        max_num_seqs: Maximum number of requests in a step.
        budget: Maximum number of tokens in a step.
        longest: Maximum number of tokens of a request, prompt plus output.
        cache: Size of the KV cache in tokens.
        block: Tokens per KV cache block.
        shares: Whether prefix caching is enabled.
        captured: Number of tokens in the largest captured CUDA graph; 0 if there are no graphs.
        vocabulary: Number of tokens in the model's vocabulary.
    """

    max_num_seqs: int
    budget: int
    longest: int
    cache: int
    block: int = 16
    shares: bool = True
    captured: int = 0
    vocabulary: int = 32000


#: Maximum number of tokens that a decode generates while its step is repeated: ``HELD_SHARE`` of
#: the tokens in the KV cache, so that a small cache still has room for batches; but at least
#: ``LEAST_HELD``, which allows the maximum number of repeats, and at most ``HELD_OUTPUTS``.
HELD_OUTPUTS, LEAST_HELD, HELD_SHARE = 1024, 192, 1 / 56

#: Short list of batches. ``FIRST_DECODES``: numbers of decodes. ``FIRST_CONTEXTS``: contexts of
#: these decodes, in tokens. ``FIRST_CHUNK``: prompt tokens of the mixed step, which has 32 decodes.
FIRST_DECODES, FIRST_CONTEXTS, FIRST_CHUNK = (1, 32, 256), (500, 4000), 512

_PART = re.compile(r"(\d+) +(?:prefill +(\d+)|decode) *@ *(\d+)$")


def read_batch(text: str) -> Wanted:
    """Parse a batch ``N decode @ CONTEXT + M prefill TOKENS @ CACHED``; one part may be missing."""
    found = Wanted(0, 0)
    for part in text.split("+"):
        match = _PART.match(part.strip())
        if match is None:
            raise ValueError(f"the batch {text!r} cannot be read")
        count, new, cached = int(match[1]), match[2], int(match[3])
        if new is None:
            found = found._replace(decodes=count, context=cached)
        else:
            found = found._replace(prompts=count, tokens=int(new), cached=cached)
    return found


def held_outputs(limits: Limits) -> int:
    """Return how many output tokens keep a decode in the batch for all repeats of its step."""
    share = max(LEAST_HELD, int(HELD_SHARE * limits.cache))
    return min(HELD_OUTPUTS, limits.longest // 4, share)


def fits(wanted: Wanted, limits: Limits) -> bool:
    """Return whether an engine can run a batch as one step, and repeat this step."""
    decodes, context, prompts, tokens, cached = wanted
    kept, chunk = context + held_outputs(limits), tokens + cached
    return (
        0 < decodes + prompts <= limits.max_num_seqs
        and decodes + prompts * tokens <= limits.budget
        and max(kept if decodes else 0, chunk + 1) <= limits.longest
        and decodes * kept + prompts * (chunk + limits.block) <= 0.9 * limits.cache
        and (not cached or (limits.shares and cached % limits.block == 0))
    )


def short_list(limits: Limits) -> list[Wanted]:
    """Return the first batches: decodes, prompts around the CUDA graph sizes, and a mixed step.

    Numbers of decodes are reduced to what fits in the KV cache, so that small machines can also
    measure these batches.
    """
    near, far = FIRST_CONTEXTS
    near = min(near, limits.longest // 4)
    wanted = [Wanted(_most(n, near, limits), near) for n in FIRST_DECODES]
    wanted.insert(2, Wanted(wanted[1].decodes, near, 1, min(FIRST_CHUNK, limits.budget // 2)))
    edge = limits.captured or 512
    sizes = (64, edge // 2, edge, edge + 64, 2048, min(limits.budget, limits.longest - 16))
    wanted += [Wanted(0, 0, 1, size) for size in sorted(set(sizes))]
    wanted += [Wanted(_most(n, far, limits), far) for n in FIRST_DECODES]
    return _usable(wanted, limits)


def own_order(limits: Limits) -> Iterator[Wanted]:
    """Yield a default grid of batches, alternating between decodes, prompts and both."""
    decodes = [2**i for i in range(11) if 2**i <= limits.max_num_seqs]
    decodes = decodes[::2] + decodes[1::2]
    near = [c for c in (1000, 250, 2000, 8000, 16000, 30000) if c < limits.longest]
    prompts = [Wanted(0, 0, 1, 2**i) for i in (7, 9, 11, 4, 6, 8, 10, 12, 13)]
    prompts += [Wanted(0, 0, n, t) for n, t in ((4, 128), (8, 256), (2, 1024), (16, 64))]
    prompts += [Wanted(0, 0, 1, t, c) for t in (128, 1024) for c in (1024, 4096, 16384)]
    mixed = [Wanted(n, c, 1, t) for c in near[:3] for n in decodes for t in (128, 1024)]
    both = [Wanted(n, c) for c in near for n in sorted(decodes)]
    lists = [_usable(each, limits) for each in (both, prompts, mixed)]
    while any(lists):
        for each in lists:
            yield from each[:4]
            del each[:4]


def _most(decodes: int, context: int, limits: Limits) -> int:
    """Return how many of ``decodes`` decodes with a given context fit in an engine, at least 1."""
    each = context + held_outputs(limits)
    return max(min(decodes, limits.max_num_seqs - 1, int(0.85 * limits.cache / each)), 1)


def _usable(wanted: list[Wanted], limits: Limits) -> list[Wanted]:
    return [w for w in dict.fromkeys(wanted) if fits(w, limits)]
