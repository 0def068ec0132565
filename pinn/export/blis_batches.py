"""Grid of batches by number of decodes and prompts, whose errors are limited in a fit for BLIS."""

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

#: ``PROMPTS``: prompt lengths, in tokens, of the steady loads that coefficients are fitted to; the
#: middle one is typical. ``OUTPUT_TOKENS``: output length of these loads. Several lengths are
#: needed: BLIS has no term for eager launches, which any prompt causes, so its cost per prompt
#: token falls with the prompt's length. Lengths near 256 tokens are avoided: with a few decodes,
#: such steps exceed vLLM's CUDA graphs, and no coefficients reproduce this jump in the step time.
PROMPTS, OUTPUT_TOKENS = (128, 384, 640, 1024, 2048), 256
#: Decode contexts in the batches whose errors are limited, as multiples of the prompt length.
_CONTEXTS = (0.5, 1.25, 3.0)
#: Numbers of decodes in the batches whose errors are limited: every number up to ``_EACH``, and
#: about ``_SPREAD`` larger numbers.
_EACH, _SPREAD = 16, 60
#: Maximum number of prompts per step in the batches whose errors are limited.
MOST_PROMPTS = 4


@dataclass(frozen=True)
class Lengths:
    """Mean prompt length and mean output length of a load's requests, in tokens."""

    prompt: int
    output: int

    @property
    def context(self) -> int:
        """Return the context length, in tokens, of a request after half of its output."""
        return self.prompt + self.output // 2


def request_lengths(latency: linear_latency.LinearLatency) -> list[Lengths]:
    """Return the mean request lengths of steady loads, up to the model's maximum length."""
    most = max_model_len(latency.deployment)
    output = min(OUTPUT_TOKENS, max(most // 8, 1))
    prompts = {min(prompt, max(most // 2, 1)) for prompt in PROMPTS}
    return [Lengths(prompt, output) for prompt in sorted(prompts)]


def timed(latency: linear_latency.LinearLatency, batches: Sequence[Batch]) -> Timed:
    """Return BLIS's features and the surrogate's step times for batches.

    Each prompt of a batch is computed within that batch's step.
    """
    deployment = latency.deployment
    sums = batch_sums.sum_batches(batches, deployment.model.window_tokens)
    # t (S + t / 2) is BLIS's sum for a prompt with t new tokens and length S. These prompts have no
    # cached tokens, so t = S.
    reach = 1.5 * sums.prefill_tokens**2 / np.maximum(sums.prefill_requests, 1)
    found, model = BlisSums.of(sums, sums.decode_context, reach), blis_model(deployment)
    seconds = step_time(speculation.padded_features(deployment, sums), latency.beta)
    return Timed(blis_features(model, found.scaled(model.data_parallel)), seconds / MICROSECOND)


def step_us(
    latency: linear_latency.LinearLatency, decodes: float, lengths: Lengths, *, prompt: bool = False
) -> float:
    """Return the time in microseconds of a step with ``decodes`` decodes and, optionally, a prompt.

    Times between integer numbers of decodes are interpolated.
    """
    low = max(int(decodes), 1)
    beside = Batch.prefill(int(prompt), lengths.prompt)
    batches = [Batch.decode(n, lengths.context) + beside for n in (low, low + 1)]
    first, second = timed(latency, batches).step_us.tolist()
    return first + max(decodes - low, 0.0) * (second - first)


@dataclass(frozen=True)
class Guard:
    """Batches whose step time errors are limited in a fit of BLIS's coefficients.

    Attributes:
        batches: BLIS's features and the surrogate's step times for the batches.
        shapes: Number of decodes, number of prompts and tokens per prompt of each batch,
            ``[batches, 3]``.
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
        """Return the batches that a mask, one value per batch, selects."""
        return Guard(self.batches[np.flatnonzero(rows)], self.shapes[rows])


def guard(latency: linear_latency.LinearLatency, lengths: Lengths) -> Guard:
    """Return the batches whose step time errors are limited in a fit.

    They have 1 to the maximum number of decodes. Contexts are 0.5, 1.25 and 3 times a prompt's
    length. Each number of decodes occurs without a prompt, with one prompt (truncated to the token
    budget), and with up to ``MOST_PROMPTS`` complete prompts.
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
