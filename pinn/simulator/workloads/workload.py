"""Workload: requests with their lengths, times and shared prompts.

The module also builds workloads from a few numbers, and checks all workloads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from pinn.common import documents
from pinn.errors import PinnError, printable
from pinn.simulator.workloads import arrivals

# Prefix sharing: the earlier request whose leading tokens a request repeats.


def share_prompts(
    group: Int[np.ndarray, " n"],
    prefix_tokens: Int[np.ndarray, " n"],
    prompt: Int[np.ndarray, " n"] | None = None,
    prompt_tokens: Int[np.ndarray, " n"] | int = 0,
) -> dict[str, Any]:
    """Return donors and shared tokens of requests whose prompts repeat or share a prefix.

    A request's donor is an earlier request that begins with the same tokens.

    Args:
        group: Index of each request's group, whose prompts share their first tokens; -1 for none.
        prefix_tokens: Number of tokens that each request shares with its group.
        prompt: Identity of each prompt: equal numbers mean equal prompts, -1 a unique prompt. None
            if all prompts are unique.
        prompt_tokens: Prompt length of each request in tokens.

    Returns:
        ``shares_with``, the index of the donor (-1 for none), and ``shared_tokens``.
    """
    donor = _first_of(group)
    shared = np.where(donor >= 0, np.minimum(prefix_tokens, prefix_tokens[donor]), 0)
    if prompt is not None:
        same = _first_of(prompt)
        donor = np.where(same >= 0, same, donor)
        shared = np.where(same >= 0, prompt_tokens, shared)
    return {"shares_with": donor, "shared_tokens": shared}


def _first_of(label: np.ndarray) -> np.ndarray:
    """Return, per entry, the index of the first entry with an equal label.

    The index is -1 for this first entry itself, and for entries with the label -1.
    """
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    origin = first[inverse]
    return np.where((label >= 0) & (origin < np.arange(len(label))), origin, -1)


# Requests of clients: lengths, times, shared prompts and client timeouts.


@dataclass(frozen=True)
class Reading:
    """Counts of the rows read from a file.

    Attributes:
        rows: Number of rows read.
        refused: Number of rejected rows, by reason.
        notes: Sentences about data missing from the file, and the assumption made instead.
    """

    rows: int
    refused: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def accepted(self) -> int:
        """Number of rows that are sent as requests."""
        return self.rows - sum(self.refused.values())

    def __str__(self) -> str:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.refused.items())
        refused = self.rows - self.accepted
        counts = f"{self.rows:,} read, {self.accepted:,} accepted, {refused:,} refused"
        return ". ".join([f"{counts} ({reasons})" if reasons else counts, *self.notes])


#: aiohttp's default timeout, five minutes, which inference-perf does not change.
AIOHTTP_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Workload:
    """Requests of a load in the order in which they are sent; a column has one value per request.

    An empty column means that all requests have the column's default.

    Attributes:
        name: Name of the workload in output.
        prompt_tokens: Prompt length of each request, at least 1.
        output_tokens: Tokens that each request generates; 0 for a request that ends with its
            prompt, see ``generated_tokens``.
        offset_s: Time in seconds from the start of the stage until the request is sent,
            non-decreasing within a stage. For a request that follows another, the pause after that
            other's end.
        stage: Load stage of each request, from 0, non-decreasing.
        shares_with: Index of an earlier request, the donor, whose first tokens the request repeats;
            -1 for none. The donor's tokens are its prompt followed by its output.
        shared_tokens: Number of leading tokens that the request shares with its donor.
        transferred_tokens: Leading prompt tokens whose keys and values arrive over the network, as
            behind a prefill server; 0 for a request that is prefilled here.
        timeout_s: Time in seconds after which the client disconnects; infinity for a client that
            waits.
        follows: Index of an earlier request of the stage whose end the request waits for, such as
            the previous turn of a conversation; -1 for none. At most one request follows another.
        concurrency: Maximum number of requests, or of conversations with their pauses, in flight
            simultaneously; a closed loop if every offset is 0. None for an open loop.
        stages_wait: Whether a stage starts only when every request of the previous one has ended.
        stage_gap_s: Time in seconds between the end of a stage and the start of the next, if stages
            wait.
        stage_starts_s: Start time of each stage in seconds, if stages do not wait.
        warmup_requests: Number of requests sent before the measurement begins.
        warmup_s: Earliest time at which the measurement begins, in seconds.
        hit_rate: Requested prefix cache hit rate, as a share of prompt tokens; None if not
            requested.
        reading: Counts of rows that were read from a file and rejected; None if all rows are sent.
        timed: Whether the source has times; if not, all requests or conversations begin at the same
            time.
    """

    name: str
    prompt_tokens: Int[np.ndarray, " n"]
    output_tokens: Int[np.ndarray, " n"]
    offset_s: Float[np.ndarray, " n"]
    stage: Int[np.ndarray, " _"] = field(default_factory=lambda: np.zeros(0, np.int64))
    shares_with: Int[np.ndarray, " _"] = field(default_factory=lambda: np.zeros(0, np.int64))
    shared_tokens: Int[np.ndarray, " _"] = field(default_factory=lambda: np.zeros(0, np.int64))
    transferred_tokens: Int[np.ndarray, " _"] = field(default_factory=lambda: np.zeros(0, np.int64))
    timeout_s: Float[np.ndarray, " _"] = field(default_factory=lambda: np.zeros(0))
    follows: Int[np.ndarray, " _"] = field(default_factory=lambda: np.zeros(0, np.int64))
    concurrency: int | None = None
    stages_wait: bool = False
    stage_gap_s: float = 0.0
    stage_starts_s: tuple[float, ...] = (0.0,)
    warmup_requests: int = 0
    warmup_s: float = 0.0
    hit_rate: float | None = None
    reading: Reading | None = None
    timed: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", printable(self.name))
        n = len(self.prompt_tokens)
        if n == 0:
            raise self._fault("the load has no requests: give at least one request")
        for name, (default, _, _) in COLUMNS.items():
            given = np.asarray(getattr(self, name), dtype=type(default))
            column = given if len(given) else np.full(n, default)
            if len(column) != n:
                raise self._fault(
                    f"the column {name} has {len(column)} entries, expected one for each of {n} "
                    "requests"
                )
            object.__setattr__(self, name, column)
        self._check_values()
        self._check_order()
        self._check_starts()

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    @property
    def stages(self) -> int:
        """Number of load stages."""
        return int(self.stage[-1]) + 1

    @property
    def starts(self) -> Bool[np.ndarray, " n"]:
        """Mask of the requests that follow no other: single requests and first turns."""
        return self.follows < 0

    @property
    def followers(self) -> Int[np.ndarray, " n"]:
        """Index of the request that follows each request; -1 for none."""
        found, next_turns = np.full(len(self), -1), np.flatnonzero(~self.starts)
        found[self.follows[next_turns]] = next_turns
        return found

    @cached_property
    def turns(self) -> Int[np.ndarray, " n"]:
        """Index of each request (turn) within its conversation, from 0."""
        before, found = self.follows, (~self.starts).astype(np.int64)
        while (waits := before >= 0).any():  # each pass looks back twice as many turns
            earlier = np.maximum(before, 0)
            found = found + np.where(waits, found[earlier], 0)
            before = np.where(waits, before[earlier], -1)
        return found

    @cached_property
    def conversations(self) -> Int[np.ndarray, " n"]:
        """Index of each request's conversation, in the order of their first turns."""
        first = np.where(self.starts, np.arange(len(self)), self.follows)
        while not self.starts[first].all():
            first = first[first]
        return np.unique(first, return_inverse=True)[1]

    @property
    def generated_tokens(self) -> Int[np.ndarray, " n"]:
        """Tokens that the engine generates for each request: 1 for a request without output.

        The step that computes the last prompt token returns an embedding, a score or a class
        instead of a first output token, and ends the request (``vllm/v1/core/sched/scheduler.py:
        Scheduler.update_from_output``, ``pooler_output``). Until then such a request is scheduled
        like a request with one output token, which needs no slot in the KV cache.
        """
        return np.maximum(self.output_tokens, 1)

    def _fault(self, text: str) -> PinnError:
        return PinnError(f"workload {self.name}: {text}")

    def _check_values(self) -> None:
        check_size, where = documents.check_size, f"workload {self.name}"
        for name, (_, least, most) in COLUMNS.items():
            column = getattr(self, name)
            bad = np.flatnonzero(~(column >= least))
            if len(bad):
                got = column[bad[0]]
                raise self._fault(
                    f"{name} of request {bad[0]} must be at least {least:g}, got {got:g}"
                )
            check_size(float(column.max()), most, f"{where}: {name}", "lower the value")
        what = f"{where}: the number of requests"
        check_size(len(self), documents.MOST_REQUESTS, what, "send fewer requests")
        tokens, what = (
            float(self.output_tokens.sum()),
            f"{where}: the output tokens of all requests",
        )
        remedy = "send fewer requests, or shorter ones"
        check_size(tokens, documents.MOST_OUTPUT_TOKENS, what, remedy)
        bad = np.flatnonzero(~(self.timeout_s > 0))
        if len(bad):
            raise self._fault(
                f"timeout_s of request {bad[0]} must be positive, or infinite for a client that "
                f"waits, got {self.timeout_s[bad[0]]}"
            )
        if self.concurrency is not None and self.concurrency < 1:
            raise self._fault(f"concurrency must be at least 1, got {self.concurrency}")
        if not (self.warmup_requests >= 0 and self.warmup_s >= 0):
            got = f"{self.warmup_requests} requests and {self.warmup_s:g} s"
            raise self._fault(f"warmup_requests and warmup_s must be 0 or more, got {got}")

    def _check_turns(self) -> None:
        """Check that each request has at most one follower."""
        later = np.flatnonzero(~self.starts)
        before = self.follows[later]
        bad = (before >= later) | (self.stage[before] != self.stage[later])
        if bad.any():
            r = int(later[bad.argmax()])
            raise self._fault(
                f"request {r} follows request {self.follows[r]}, which is not an earlier request "
                "of the same stage"
            )
        twice = later[np.bincount(before, minlength=1)[before] > 1] if len(later) else later
        if len(twice):
            raise self._fault(
                f"two requests follow request {self.follows[twice[0]]}, expected at most one: "
                "correct follows of one of the two"
            )

    def _check_starts(self) -> None:
        """Check that due times never decrease in the order in which requests are sent."""
        if self.stages_wait:
            return
        if (given := len(self.stage_starts_s)) != self.stages:
            raise self._fault(
                f"stage_starts_s must have a start time for each of {self.stages} stages, got "
                f"{given}"
            )
        due = np.array(self.stage_starts_s)[self.stage] + self.offset_s
        starts = np.flatnonzero(self.starts)
        early = np.flatnonzero(np.diff(due[starts]) < 0)
        if len(early):
            before, r = starts[early[0]], starts[early[0] + 1]
            raise self._fault(
                f"request {r} of stage {self.stage[r]} is due at {due[r]:g} s, before "
                f"request {before} of the previous stage at {due[before]:g} s: start the stage "
                "later"
            )

    def _check_order(self) -> None:
        starts = np.flatnonzero(self.starts)
        offset, stage = self.offset_s[starts], self.stage[starts]
        gaps, steps = np.diff(offset, prepend=np.inf), np.diff(stage, prepend=-1)
        bad = starts[(steps < 0) | (steps > 1) | ((steps == 0) & (gaps < 0))]
        if len(bad):
            raise self._fault(
                f"request {bad[0]} is out of order: sort requests by stage (0, 1, ... without a "
                "gap) and by offset_s inside a stage"
            )
        self._check_turns()
        late = np.flatnonzero(self.shares_with >= np.arange(len(self)))
        if len(late):
            raise self._fault(
                f"request {late[0]} shares tokens with request {self.shares_with[late[0]]}, which "
                f"is not sent earlier: sort the requests, or name an earlier request"
            )


#: Default of an empty cell, minimum and maximum, by column of a workload.
COLUMNS: dict[str, tuple[float, float, float]] = {
    "prompt_tokens": (1, 1, documents.MOST_REQUEST_TOKENS),
    "output_tokens": (1, 0, documents.MOST_REQUEST_TOKENS),
    "offset_s": (0.0, 0.0, documents.MOST_SECONDS),
    "stage": (0, -np.inf, np.inf),
    "shares_with": (-1, -np.inf, np.inf),
    "shared_tokens": (0, 0, np.inf),
    "transferred_tokens": (0, 0, np.inf),
    "timeout_s": (np.inf, 0.0, np.inf),
    "follows": (-1, -1, np.inf),
}


# Workloads from a few numbers: open loops, closed loops, shared prefixes.


def open_loop(
    stages: Sequence[arrivals.Stage],
    prompt_tokens: int,
    output_tokens: int,
    *,
    gaps: arrivals.Gaps = arrivals.POISSON,
    length_range: tuple[float, float] = (1.0, 1.0),
    timeout_s: float = np.inf,
    seed: int = 0,
    name: str = "open loop",
) -> Workload:
    """Return a load of unique prompts at given rates, independent of latency (open loop).

    Args:
        stages: Load stages in order; a stage does not wait for earlier requests to end.
        prompt_tokens: Nominal prompt length in tokens.
        output_tokens: Nominal output length in tokens; may be 0.
        gaps: Distribution of the gaps between arrivals.
        length_range: Minimum and maximum multiple of the nominal lengths, uniform in between.
        timeout_s: Time in seconds after which a client disconnects.
        seed: Random seed.
        name: Name of the workload in output.
    """
    rng = arrivals.random_draws(seed)
    offset, stage = arrivals.stage_arrivals(stages, gaps, rng)
    n = len(offset)
    return Workload(
        name,
        arrivals.draw_range(prompt_tokens, length_range, n, rng),
        arrivals.draw_range(output_tokens, length_range, n, rng, least=0),
        offset,
        stage,
        timeout_s=np.full(n, timeout_s),
        stage_starts_s=arrivals.stage_starts([s.duration_s for s in stages], offset, stage),
    )


def closed_loop(
    concurrency: int,
    requests: int,
    prompt_tokens: int,
    output_tokens: int,
    *,
    length_range: tuple[float, float] = (1.0, 1.0),
    timeout_s: float = np.inf,
    seed: int = 0,
    name: str = "closed loop",
) -> Workload:
    """Return a load of clients that send a request when their last request ends (closed loop).

    All clients start at time 0. They send requests from one common queue, as in vLLM's
    ``benchmark_serving --max-concurrency``.
    """
    if requests < 1:
        raise PinnError(f"a closed loop must have at least 1 request, got {requests}")
    arrivals.check_requests(requests)
    rng = arrivals.random_draws(seed)
    return Workload(
        name,
        arrivals.draw_range(prompt_tokens, length_range, requests, rng),
        arrivals.draw_range(output_tokens, length_range, requests, rng, least=0),
        np.zeros(requests),
        timeout_s=np.full(requests, timeout_s),
        concurrency=concurrency,
    )


@dataclass(frozen=True)
class PromptGroups:
    """Fixed set of prompts in groups; the prompts of a group share a prefix.

    Attributes:
        groups: Number of groups.
        prompts_per_group: Number of prompts in each group.
        shared_tokens: Tokens of a group's shared prefix.
        question_tokens: Tokens of each prompt after the prefix, unique to the prompt.
        length_range: Minimum and maximum multiple of the nominal length, uniform in between.
            Tokenizing the text again yields 2 to 5 % more tokens than the nominal length.
    """

    groups: int
    prompts_per_group: int
    shared_tokens: int
    question_tokens: int
    length_range: tuple[float, float] = (1.0, 1.0)

    def __len__(self) -> int:
        return self.groups * self.prompts_per_group

    def __post_init__(self) -> None:
        if self.groups < 1 or self.prompts_per_group < 1:
            got = f"{self.groups} and {self.prompts_per_group}"
            raise PinnError(f"groups and prompts_per_group must be at least 1, got {got}")
        if min(self.shared_tokens, self.question_tokens) < 0:
            got = " and ".join(map(documents.written, (self.shared_tokens, self.question_tokens)))
            raise PinnError(f"shared_tokens and question_tokens must be 0 or more, got {got}")
        # Prompt lengths need no check here, because Python itself rejects lengths that are too
        # large.
        count, remedy = self.groups * self.prompts_per_group, "lower groups x prompts_per_group"
        documents.check_size(
            count, documents.MOST_REQUESTS, "the number of different prompts", remedy
        )


def shared_prefix(
    stages: Sequence[arrivals.Stage],
    prompts: PromptGroups,
    output_tokens: int,
    *,
    gaps: arrivals.Gaps = arrivals.POISSON,
    timeout_s: float = np.inf,
    stage_gap_s: float | None = None,
    seed: int = 0,
    name: str = "shared prefix",
) -> Workload:
    """Return a load that sends a fixed set of prompts repeatedly, in one shuffled order.

    Prompts of a group share their first tokens, and each prompt repeats. With prefix caching only
    the first use of a prompt needs a prefill.

    Args:
        stages: Load stages, one after the other.
        prompts: Set of prompts.
        output_tokens: Number of tokens that each request generates.
        gaps: Distribution of the gaps between arrivals.
        timeout_s: Time in seconds after which a client disconnects.
        stage_gap_s: Time in seconds between the end of a stage and the start of the next; None if
            stages do not wait for earlier requests to end.
        seed: Random seed.
        name: Name of the workload in output.
    """
    rng = arrivals.random_draws(seed)
    offset, stage = arrivals.stage_arrivals(stages, gaps, rng)
    nominal = prompts.shared_tokens + prompts.question_tokens
    lengths = arrivals.draw_range(nominal, prompts.length_range, len(prompts), rng)
    order = rng.permutation(len(prompts))
    prompt = order[np.arange(len(offset)) % len(prompts)]
    tokens = lengths[prompt]
    prefix = np.minimum(prompts.shared_tokens, tokens)
    return Workload(
        name,
        tokens,
        arrivals.draw_range(output_tokens, (1.0, 1.0), len(offset), rng, least=0),
        offset,
        stage,
        **share_prompts(prompt // prompts.prompts_per_group, prefix, prompt, tokens),
        timeout_s=np.full(len(offset), timeout_s),
        stages_wait=stage_gap_s is not None,
        stage_gap_s=stage_gap_s or 0.0,
        stage_starts_s=arrivals.stage_starts([s.duration_s for s in stages], offset, stage),
    )
