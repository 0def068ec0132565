"""Batches on a grid of decodes and prompts, which bound errors where a load has few batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Int

from pinn.export.blis_features import BlisSums, Timed, blis_features
from pinn.export.blis_model import blis_model
from pinn.memory.kv_layout import max_model_len
from pinn.physics import batch_sums
from pinn.simulator import linear_latency
from pinn.specs.batch import Batch
from pinn.surrogate import deployment_features as speculation
from pinn.units import MICROSECOND

#: Prompt lengths of the standard loads, the usual one in the middle, and their output lengths. A
#: step with a prompt costs more from the prompt's first token on, for which BLIS has no term. The
#: cost of a prompt token therefore falls with the length of the prompt, and with the prompts that
#: share a step: of as many decodes, shorter outputs bring more. Prompts around 256 tokens would
#: leave vLLM's graphs within a few more decodes, which no vector can follow.
PROMPTS, OUTPUTS = (128, 384, 640, 2048), (64, 512)
#: Contexts of the guard's decodes, as multiples of the length of a prompt.
_CONTEXTS = (0.5, 1.25, 3.0, 8.0)
#: A guard has every number of decodes up to the first value, and about as many more as the second.
_EACH, _SPREAD = 16, 60
#: Most prompts in a step of a guard.
MOST_PROMPTS = 8


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
    prompts = {min(prompt, max(most // 2, 1)) for prompt in PROMPTS}
    outputs = {min(output, max(most // 8, 1)) for output in OUTPUTS}
    return [Lengths(prompt, output) for prompt in sorted(prompts) for output in sorted(outputs)]


def timed(latency: linear_latency.LinearLatency, batches: Sequence[Batch]) -> Timed:
    """Return features and step times of batches of one replica, whose prompts run in one step."""
    deployment = latency.deployment
    sums = batch_sums.sum_batches(batches, deployment.model.window_tokens)
    # Each prompt has the same number of tokens, all new: t (S + t / 2) with t = S.
    reach = 1.5 * sums.prefill_tokens**2 / np.maximum(sums.prefill_requests, 1)
    found, model = BlisSums.of(sums, sums.decode_context, reach), blis_model(deployment)
    seconds = speculation.deployment_features(deployment, sums) @ latency.beta
    return Timed(blis_features(model, found.scaled(model.data_parallel)), seconds / MICROSECOND)


def step_us(
    latency: linear_latency.LinearLatency, decodes: float, lengths: Lengths, prompts: float = 0.0
) -> float:
    """Return the microseconds of a step, linear between whole numbers of decodes and of prompts."""
    n, k = max(int(decodes), 1), int(prompts)
    batches = [
        Batch.decode(n + more, lengths.context) + Batch.prefill(k + beside, lengths.prompt)
        for more in (0, 1)
        for beside in (0, 1)
    ]
    few, many = timed(latency, batches).step_us.reshape(2, 2) @ (1 - prompts + k, prompts - k)
    return float(few + max(decodes - n, 0.0) * (many - few))


@dataclass(frozen=True)
class Guard:
    """Batches of given numbers of decodes, with and without prompts.

    Attributes:
        batches: BLIS's features and the surrogate's step times of the batches.
        shapes: Decodes, prompts, and tokens of each prompt of each batch.
    """

    batches: Timed
    shapes: Int[np.ndarray, "batches 3"]

    def within(self, least: float, most: float, prompts: int) -> Guard:
        """Return the batches with ``least`` to ``most`` decodes and up to ``prompts`` prompts."""
        decodes = self.shapes[:, 0]
        inside = (decodes >= np.floor(least)) & (decodes <= np.ceil(most))
        rows = np.flatnonzero(inside & (self.shapes[:, 1] <= prompts))
        return Guard(self.batches[rows], self.shapes[rows])


def guard(latency: linear_latency.LinearLatency, lengths: Lengths) -> Guard:
    """Return batches of one decode to as many as may run, with none to ``MOST_PROMPTS`` prompts.

    Contexts are half, 1.25 times and three times a prompt. Lengths are cut to the limits of the
    model; a prompt alone is cut to the limit of a step's tokens, more prompts have to fit.
    """
    prompt = lengths.prompt
    longest, recipe = max_model_len(latency.deployment) - 1, latency.deployment.recipe
    most = recipe.max_requests
    spread = np.geomspace(1, most, _SPREAD).round().astype(int)
    counts = sorted({*spread.tolist(), *range(1, min(most, _EACH) + 1)})
    shapes, batches = [], []
    for n, prompts in product(counts, range(MOST_PROMPTS + 1)):
        new = min(prompt, recipe.token_budget - n) if prompts == 1 else prompt
        decodes = min(n, most - prompts)
        if new < 1 or decodes < 1 or prompts * new > recipe.token_budget - decodes:
            continue
        for share in _CONTEXTS:
            context = min(round(share * prompt), longest)
            shapes.append((decodes, prompts, new if prompts else 0))
            batches.append(Batch.decode(decodes, context) + Batch.prefill(prompts, new))
    return Guard(timed(latency, batches), np.array(shapes))
