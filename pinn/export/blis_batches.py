"""Batches on a grid of decodes and prompts, which bound errors where a load has few batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Bool, Int

from pinn.export.blis_features import BlisSums, Timed, blis_features
from pinn.export.blis_model import blis_model
from pinn.memory.kv_layout import max_model_len
from pinn.physics import batch_sums
from pinn.simulator import linear_latency
from pinn.specs.batch import Batch
from pinn.surrogate import deployment_features as speculation
from pinn.surrogate.step_features import step_time
from pinn.units import MICROSECOND

#: Prompt lengths of the standard loads, the usual one in the middle, and their output length. A
#: step with a prompt launches kernels from the prompt's first token on, for which BLIS has no term.
#: The cost of a prompt token therefore falls with the length of the prompt. Prompts around 256
#: tokens would leave vLLM's graphs within a few more decodes, which no vector can follow.
PROMPTS, OUTPUT_TOKENS = (128, 384, 640, 1024, 2048), 256
#: Contexts of the guard's decodes, as multiples of the length of a prompt.
_CONTEXTS = (0.5, 1.25, 3.0)
#: Number of decodes up to which a guard has every number, and about how many larger numbers it
#: has.
_EACH, _SPREAD = 16, 60
#: Most prompts in a step of a guard.
MOST_PROMPTS = 4


@dataclass(frozen=True)
class Lengths:
    """Mean prompt and output tokens of a request."""

    prompt: int
    output: int

    @property
    def context(self) -> int:
        """Return the tokens of context half-way through the output."""
        return self.prompt + self.output // 2


def request_lengths(latency: linear_latency.LinearLatency) -> list[Lengths]:
    """Return the lengths of the steady loads, within the length that the model takes."""
    most = max_model_len(latency.deployment)
    output = min(OUTPUT_TOKENS, max(most // 8, 1))
    prompts = {min(prompt, max(most // 2, 1)) for prompt in PROMPTS}
    return [Lengths(prompt, output) for prompt in sorted(prompts)]


def timed(latency: linear_latency.LinearLatency, batches: Sequence[Batch]) -> Timed:
    """Return features and step times of batches of one replica, whose prompts run in one step."""
    deployment = latency.deployment
    sums = batch_sums.sum_batches(batches, deployment.model.window_tokens)
    # Each prompt has the same number of tokens, all new: t (S + t / 2) with t = S.
    reach = 1.5 * sums.prefill_tokens**2 / np.maximum(sums.prefill_requests, 1)
    found, model = BlisSums.of(sums, sums.decode_context, reach), blis_model(deployment)
    seconds = step_time(speculation.deployment_features(deployment, sums), latency.beta)
    return Timed(blis_features(model, found.scaled(model.data_parallel)), seconds / MICROSECOND)


def step_us(
    latency: linear_latency.LinearLatency, decodes: float, lengths: Lengths, *, prompt: bool = False
) -> float:
    """Return the microseconds of a step with ``decodes``, linear between whole numbers."""
    low = max(int(decodes), 1)
    beside = Batch.prefill(int(prompt), lengths.prompt)
    batches = [Batch.decode(n, lengths.context) + beside for n in (low, low + 1)]
    first, second = timed(latency, batches).step_us.tolist()
    return first + max(decodes - low, 0.0) * (second - first)


@dataclass(frozen=True)
class Guard:
    """Batches of given numbers of decodes, with and without prompts.

    Attributes:
        batches: BLIS's features and the surrogate's step times of the batches.
        shapes: Decodes, prompts and tokens of each prompt of each batch.
    """

    batches: Timed
    shapes: Int[np.ndarray, "batches 3"]

    def within(self, least: float, most: float) -> Guard:
        """Return the batches with ``least`` to ``most`` decodes."""
        decodes = self.shapes[:, 0]
        return self.take((decodes >= np.floor(least)) & (decodes <= np.ceil(most)))

    def with_prompts(self, least: int, most: int) -> Guard:
        """Return the batches with ``least`` to ``most`` prompts."""
        prompts = self.shapes[:, 1]
        return self.take((prompts >= least) & (prompts <= most))

    def take(self, rows: Bool[np.ndarray, " batches"]) -> Guard:
        """Return the batches of some rows."""
        return Guard(self.batches[np.flatnonzero(rows)], self.shapes[rows])


def guard(latency: linear_latency.LinearLatency, lengths: Lengths) -> Guard:
    """Return batches of one decode to as many as may run.

    Contexts are half, 1.25 times and three times a prompt. Each batch exists without a prompt, with
    one, which is cut to a step's tokens, and with up to ``MOST_PROMPTS`` whole ones that fit.
    """
    prompt = lengths.prompt
    longest, recipe = max_model_len(latency.deployment) - 1, latency.deployment.recipe
    most = recipe.max_requests
    spread = np.geomspace(1, most, _SPREAD).round().astype(int)
    counts = sorted({*spread.tolist(), *range(1, min(most, _EACH) + 1)})
    shapes, batches = [], []
    for n, prompts in product(counts, range(MOST_PROMPTS + 1)):
        decodes = min(n, most - prompts)
        left = recipe.token_budget - decodes
        new = min(prompt, left) if prompts == 1 else prompt
        if decodes < 1 or new < 1 or prompts * new > left:
            continue
        for share in _CONTEXTS:
            context = min(round(share * prompt), longest)
            shapes.append((decodes, prompts, new if prompts else 0))
            batches.append(Batch.decode(decodes, context) + Batch.prefill(prompts, new))
    return Guard(timed(latency, batches), np.array(shapes))
