"""Simulated engine whose step times are computed from coefficients, for tests and scores.

The engine schedules as vLLM does with chunked prefill: decodes first, then prompts up to the token
and request limits. A prompt that shares a prefix with an earlier one is computed only after the
prefix.
"""

from dataclasses import dataclass, field
from operator import eq

import numpy as np
from jaxtyping import Float

from pinn.calibration.measuring import batch_features
from pinn.engines.deployment import Deployment
from pinn.measurements.program.batches import Limits, Wanted
from pinn.measurements.program.table import Step

#: Step times are computed at multiples of this number of context tokens and interpolated linearly
#: in between.
_GRID = 256

#: Duration, in seconds, of a step without work.
_IDLE_S = 1e-4


@dataclass
class _Decodes:
    """Group of decode requests that share one context length."""

    names: list[str]
    context: int
    left: int


@dataclass
class _Prompt:
    name: str
    ids: list[int]
    outputs: int
    done: int = 0


@dataclass
class SimulatedEngine:
    """Simulated engine that :class:`pinn.measurements.program.session.Session` can measure.

    Attributes:
        deployment: Deployment of the engine.
        beta: Step time coefficients of the engine, in SI units.
        limits: Maximum tokens and requests of the engine's steps.
        noise: Relative standard deviation of a step's time.
        random: Random number generator of the noise.
    """

    deployment: Deployment
    beta: Float[np.ndarray, " step_features"]
    limits: Limits
    noise: float = 0.01
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    _now: float = 0.0
    _count: int = 0
    _decodes: list[_Decodes] = field(default_factory=list)
    _prompts: list[_Prompt] = field(default_factory=list)
    _known: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    _times: dict[tuple[int, ...], float] = field(default_factory=dict)

    def clock(self) -> float:
        """Return the simulated time in seconds."""
        return self._now

    def submit(self, prompt: list[int], outputs: int) -> str:
        """Add a request, and return the name that identifies it."""
        self._count += 1
        name = str(self._count)
        self._prompts.append(_Prompt(name, prompt, outputs, self._shared(prompt)))
        return name

    def drop(self, names: list[str] | None = None) -> None:
        """Abort the named requests, or all requests for None."""
        if names is None:
            self._prompts, self._decodes = [], []
            return
        gone = set(names)
        self._prompts = [prompt for prompt in self._prompts if prompt.name not in gone]
        for group in self._decodes:
            group.names = [name for name in group.names if name not in gone]
        self._decodes = [group for group in self._decodes if group.names]

    def step(self) -> list[Step]:
        """Run one step, and return its record."""
        decodes = sum(len(group.names) for group in self._decodes)
        context = sum(len(group.names) * group.context for group in self._decodes)
        tokens, chunks = self.limits.budget - decodes, []
        for prompt in self._prompts[: max(self.limits.max_num_seqs - decodes, 0)]:
            new = min(len(prompt.ids) - prompt.done, tokens)
            if new <= 0:
                break
            chunks.append((prompt, new))
            tokens -= new
        if not decodes and not chunks:
            self._now += _IDLE_S
            return []
        added, cached = sum(n for _, n in chunks), sum(p.done for p, _ in chunks)
        seconds = self._seconds(decodes, context, len(chunks), added, cached)
        seconds *= float(np.exp(self.noise * self.random.standard_normal()))
        step = Step(self._now, seconds, seconds, len(chunks), added, cached, 0, decodes, context, 0)
        self._now += seconds
        for group in self._decodes:
            group.context += 1
            group.left -= 1
        self._advance(chunks)
        self._decodes = [group for group in self._decodes if group.left > 0]
        return [step]

    def _advance(self, chunks: list[tuple[_Prompt, int]]) -> None:
        """Mark chunks of prompts as computed; a request with a complete prompt starts to decode."""
        fresh: dict[tuple[int, int], list[str]] = {}
        for prompt, new in chunks:
            prompt.done += new
            if prompt.done < len(prompt.ids):
                continue
            self._known[tuple(prompt.ids[: self.limits.block])] = prompt.ids
            if prompt.outputs > 1:
                fresh.setdefault((len(prompt.ids), prompt.outputs - 1), []).append(prompt.name)
        self._prompts = [p for p in self._prompts if p.done < len(p.ids)]
        self._decodes += [_Decodes(names, *key) for key, names in fresh.items()]

    def _shared(self, prompt: list[int]) -> int:
        """Return how many tokens of a prompt are cached.

        Only whole blocks are cached, and never the whole prompt.
        """
        block = self.limits.block
        other = self._known.get(tuple(prompt[:block])) if self.limits.shares else None
        alike = [*map(eq, prompt[:-1], other or ()), False]
        return alike.index(False) // block * block

    def _seconds(self, decodes: int, context: int, prompts: int, tokens: int, cached: int) -> float:
        """Return the step time of a batch in seconds.

        Times are interpolated between two multiples of ``_GRID`` context tokens.
        """
        place = context / decodes / _GRID if decodes else 0.0
        low = int(place)
        near, far = (
            self._time(decodes, at * _GRID, prompts, tokens, cached)
            for at in (low, low + 1 if place > low else low)
        )
        return near + (place - low) * (far - near)

    def _time(self, *batch: int) -> float:
        if batch not in self._times:
            decodes, context, prompts, tokens, cached = batch
            each = max(prompts, 1)
            wanted = Wanted(decodes, context, prompts, tokens / each, cached / each)  # type: ignore[arg-type]
            features = batch_features(self.deployment, [wanted], self.beta)
            self._times[batch] = (features @ self.beta).item()
        return self._times[batch]
