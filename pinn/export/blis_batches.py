"""Batches of so many decodes, without and beside a prompt: what no load has to bring by chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pinn.export.blis_features import BlisSums, Timed, blis_features
from pinn.export.blis_model import blis_model
from pinn.memory.kv_layout import max_model_len
from pinn.physics import batch_sums
from pinn.simulator import linear_latency
from pinn.specs.batch import Batch
from pinn.surrogate import deployment_features as speculation
from pinn.units import MICROSECOND

#: Prompts of the loads that stand for any, the usual one in the middle, and their outputs. A step
#: with a prompt costs more from its first token on, for which BLIS has no term, so that a prompt
#: token costs the less the longer the prompt is. Prompts around 256 tokens would leave vLLM's
#: graphs within a few decodes more, which no vector follows.
PROMPTS, OUTPUT_TOKENS = (128, 384, 640, 1024, 2048), 256
#: Contexts of the guard's decodes over the length of a prompt.
_CONTEXTS = (0.5, 1.25, 3.0)
#: Every number of decodes up to here is in a guard, then about so many more.
_EACH, _SPREAD = 16, 60


@dataclass(frozen=True)
class Lengths:
    """Tokens of a request in the mean."""

    prompt: int
    output: int

    @property
    def context(self) -> int:
        """Half-way through the output."""
        return self.prompt + self.output // 2


def request_lengths(latency: linear_latency.LinearLatency) -> list[Lengths]:
    """Those of the steady loads, within the length that the model takes."""
    most = max_model_len(latency.deployment)
    output = min(OUTPUT_TOKENS, max(most // 8, 1))
    prompts = {min(prompt, max(most // 2, 1)) for prompt in PROMPTS}
    return [Lengths(prompt, output) for prompt in sorted(prompts)]


def timed(latency: linear_latency.LinearLatency, batches: Sequence[Batch]) -> Timed:
    """Batches, each of one data-parallel replica and of prompts that are computed at once."""
    deployment = latency.deployment
    sums = batch_sums.sum_batches(batches, deployment.model.window_tokens)
    # Each prompt has the same number of tokens, all new: t (S + t / 2) with t = S.
    reach = 1.5 * sums.prefill_tokens**2 / np.maximum(sums.prefill_requests, 1)
    found, model = BlisSums.of(sums, sums.decode_context, reach), blis_model(deployment)
    seconds = speculation.deployment_features(deployment, sums) @ latency.beta
    return Timed(blis_features(model, found.scaled(model.data_parallel)), seconds / MICROSECOND)


def step_us(
    latency: linear_latency.LinearLatency, decodes: float, lengths: Lengths, *, prompt: bool = False
) -> float:
    """A step of so many decodes, beside a prompt or not; between whole numbers a straight line."""
    low = max(int(decodes), 1)
    beside = Batch.prefill(int(prompt), lengths.prompt)
    batches = [Batch.decode(n, lengths.context) + beside for n in (low, low + 1)]
    first, second = timed(latency, batches).step_us.tolist()
    return first + max(decodes - low, 0.0) * (second - first)


@dataclass(frozen=True)
class Guard:
    """Batches of so many decodes, beside a prompt or not.

    Attributes:
        batches: What BLIS and the surrogate make of them.
        shapes: Decodes and prompt tokens of each.
    """

    batches: Timed
    shapes: Float[np.ndarray, "batches 2"]

    def within(self, least: float, most: float) -> Guard:
        """Those from so few to so many decodes."""
        decodes = self.shapes[:, 0]
        rows = np.flatnonzero((decodes >= np.floor(least)) & (decodes <= np.ceil(most)))
        return Guard(self.batches[rows], self.shapes[rows])


def guard(latency: linear_latency.LinearLatency, lengths: Lengths) -> Guard:
    """Batches of one decode to as many as may run.

    Contexts are half, 1.25 times and three times a prompt, which stands beside the decodes or not;
    shorter where the model or the step's tokens ask for it.
    """
    prompt = lengths.prompt
    longest, recipe = max_model_len(latency.deployment) - 1, latency.deployment.recipe
    most = recipe.max_requests
    spread = np.geomspace(1, most, _SPREAD).round().astype(int)
    counts = sorted({*spread.tolist(), *range(1, min(most, _EACH) + 1)})
    shapes, batches = [], []
    for n in counts:
        for new in {0, min(prompt, recipe.token_budget - n)}:
            decodes = n - (new > 0 and n == most)
            if new < 0 or decodes < 1:
                continue
            for share in _CONTEXTS:
                context = min(round(share * prompt), longest)
                shapes.append((decodes, new))
                batches.append(Batch.decode(decodes, context) + Batch.prefill(int(new > 0), new))
    return Guard(timed(latency, batches), np.array(shapes, float))
