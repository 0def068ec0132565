"""A small engine whose step times are known, to write traces of which the truth is known.

It schedules as vLLM v1 does: running requests first, then waiting ones in order of arrival, prompts
cut to the token budget; if the KV cache is full, the request that was scheduled last loses its
blocks and starts again. It has no prefix cache: a prompt's cached part is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pinn.specs.batch import Batch


@dataclass(frozen=True)
class Arrival:
    """A request as it is sent.

    Attributes:
        time_s: When it arrives.
        prompt_tokens: Length of its prompt.
        output_tokens: Tokens it generates, at least 1.
        cached_tokens: Of the prompt, what the prefix cache holds; below ``prompt_tokens``.
    """

    time_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True)
class Moment:
    """An event of a request: QUEUED, SCHEDULED, FIRST_TOKEN, PREEMPTED or FINISHED."""

    label: str
    time_s: float
    step: int
    prefill_done: int
    prefill_total: int
    decode_done: int
    preemptions: int


@dataclass(frozen=True)
class Part:
    """A request's part in a step."""

    request: int
    new_tokens: int
    cached_tokens: int
    is_prefill: bool
    output_tokens: int


@dataclass(frozen=True)
class EngineStep:
    """One step as it ran."""

    step_id: int
    start_s: float
    duration_s: float
    parts: tuple[Part, ...]
    waiting: int
    finished: int
    preempted: int
    blocks_used: int

    @property
    def batch(self) -> Batch:
        """Return the batch that the step ran."""
        return Batch(
            tuple(p.new_tokens for p in self.parts),
            tuple(p.cached_tokens for p in self.parts),
            tuple(p.is_prefill for p in self.parts),
        )


@dataclass(frozen=True)
class EngineRun:
    """All that happened, times on the engine's clock.

    Attributes:
        arrivals: The requests in order of arrival.
        moments: Events of each request.
        steps: The steps.
        blocks: Size of the KV cache.
        block_size: Tokens per block.
    """

    arrivals: tuple[Arrival, ...]
    moments: tuple[tuple[Moment, ...], ...]
    steps: tuple[EngineStep, ...]
    blocks: int
    block_size: int


@dataclass(frozen=True)
class EngineLimits:
    """vLLM's limits."""

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 128
    blocks: int = 20_000
    block_size: int = 16


@dataclass
class _Running:
    request: int
    total: int  # tokens to prefill: the prompt, after a preemption also what was generated
    done: int  # tokens whose keys are cached
    outputs: int = 0
    preemptions: int = 0


@dataclass
class _State:
    arrivals: Sequence[Arrival]
    limits: EngineLimits
    moments: list[list[Moment]]
    now: float = 0.0
    step_id: int = 0
    arriving: deque[int] = field(default_factory=deque)
    waiting: deque[_Running] = field(default_factory=deque)
    running: list[_Running] = field(default_factory=list)

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)

    def blocks_used(self) -> int:
        return sum(self.blocks_of(r.done) for r in self.running)

    def note(self, label: str, r: _Running, time_s: float) -> None:
        done = min(r.done, r.total)
        moment = Moment(label, time_s, self.step_id, done, r.total, r.outputs, r.preemptions)
        self.moments[r.request].append(moment)


def run_engine(
    arrivals: Sequence[Arrival],
    step_seconds: Callable[[Batch], float],
    limits: EngineLimits | None = None,
) -> EngineRun:
    """Serve requests until all have ended.

    Args:
        arrivals: In order of time.
        step_seconds: Duration of a step that runs a batch.
        limits: vLLM's limits.
    """
    limits = limits or EngineLimits()
    state = _State(arrivals, limits, [[] for _ in arrivals], arriving=deque(range(len(arrivals))))
    steps = []
    while state.arriving or state.waiting or state.running:
        _receive(state)
        parts, preempted = _schedule(state)
        used, waiting = state.blocks_used(), len(state.waiting)
        batch = Batch(
            tuple(p.new_tokens for p in parts),
            tuple(p.cached_tokens for p in parts),
            tuple(p.is_prefill for p in parts),
        )
        start, duration = state.now, step_seconds(batch)
        state.now += duration
        finished = _finish(state, parts)
        steps.append(
            EngineStep(
                state.step_id, start, duration, tuple(parts), waiting, finished, preempted, used
            )
        )
        state.step_id += 1
    moments = tuple(tuple(m) for m in state.moments)
    return EngineRun(tuple(arrivals), moments, tuple(steps), limits.blocks, limits.block_size)


def _receive(state: _State) -> None:
    """Queue what has arrived; an idle engine waits for the next request."""
    if not state.waiting and not state.running:
        state.now = max(state.now, state.arrivals[state.arriving[0]].time_s)
    while state.arriving and state.arrivals[state.arriving[0]].time_s <= state.now:
        request = state.arriving.popleft()
        arrival = state.arrivals[request]
        queued = _Running(request, arrival.prompt_tokens, 0)
        state.waiting.append(queued)
        state.note("QUEUED", queued, state.now)


def _schedule(state: _State) -> tuple[list[Part], int]:
    """The parts of the next step, and how many requests were preempted for it."""
    limits, parts, preempted = state.limits, [], 0
    budget = limits.max_num_batched_tokens
    free = limits.blocks - state.blocks_used()
    position = 0
    while position < len(state.running) and budget > 0:
        r = state.running[position]
        new = min(budget, max(r.total - r.done, 1))
        needed = state.blocks_of(r.done + new) - state.blocks_of(r.done)
        while needed > free and position < len(state.running):
            last = state.running.pop()
            free += state.blocks_of(last.done)
            preempted += 1
            _preempt(state, last)
        if position == len(state.running):
            break  # it lost its own place
        free -= needed
        budget -= new
        parts.append(_part(r, new))
        position += 1
    while (
        state.waiting and budget > 0 and not preempted and len(state.running) < limits.max_num_seqs
    ):
        r = state.waiting[0]
        cached = state.arrivals[r.request].cached_tokens if not r.preemptions else 0
        new = min(budget, r.total - cached)
        needed = state.blocks_of(cached + new)
        if needed > free:
            break
        state.waiting.popleft()
        r.done = cached
        free -= needed
        budget -= new
        state.note("SCHEDULED", r, state.now)
        state.running.append(r)
        parts.append(_part(r, new))
    for part in parts:
        r = next(r for r in state.running if r.request == part.request)
        r.done += part.new_tokens
    return parts, preempted


def _part(r: _Running, new: int) -> Part:
    return Part(r.request, new, r.done, r.done < r.total, r.outputs)


def _preempt(state: _State, r: _Running) -> None:
    state.note("PREEMPTED", r, state.now)
    r.preemptions += 1
    r.total, r.done = state.arrivals[r.request].prompt_tokens + r.outputs, 0
    state.waiting.appendleft(r)


def _finish(state: _State, parts: list[Part]) -> int:
    """Hand out the tokens of a step; how many requests ended with it."""
    finished = 0
    scheduled = {p.request for p in parts}
    for r in list(state.running):
        if r.request not in scheduled or r.done < r.total:
            continue
        r.outputs += 1
        if r.outputs == 1:
            state.note("FIRST_TOKEN", r, state.now)
        if r.outputs == state.arrivals[r.request].output_tokens:
            state.note("FINISHED", r, state.now)
            state.running.remove(r)
            finished += 1
    return finished
