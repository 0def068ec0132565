"""Fit of the four parameters with which llm-d's variant autoscaler describes a model on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls

from pinn.common import JsonObject
from pinn.common.numbers import number
from pinn.engines.engine_spec import EngineSpec
from pinn.memory.kv_cache import kv_layout
from pinn.memory.kv_layout import max_model_len
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.batch import Batch
from pinn.units import MILLISECOND

#: ``_CONTEXTS``: decode contexts for the linear fit of the ITL. ``_SHORTEST``: minimum prompt
#: length for the linear fit of the prefill time. Both are in tokens.
_CONTEXTS, _SHORTEST = (256, 1024, 4096), 32
#: ``_BATCHES``: maximum number of decode batches per context in the fit of the ITL. ``_LENGTHS``:
#: maximum number of prompt lengths in the fit of the prefill time.
_BATCHES, _LENGTHS = 32, 16


@dataclass(frozen=True)
class Line:
    """Straight line fitted to the step times of batches, with its relative errors.

    Attributes:
        constant_ms: Time in milliseconds where the line's variable is 0.
        slope_ms: Time in milliseconds per unit of the line's variable.
        median_error: Median absolute relative error over the batches, as a fraction.
        worst_error: Maximum relative error, line / surrogate - 1.
        worst_at: Batch with the maximum error, described as text.
        over: Range of the fitted batches, described as text.
    """

    constant_ms: float
    slope_ms: float
    median_error: float
    worst_error: float
    worst_at: str
    over: str

    def __str__(self) -> str:
        """Return the line's median and maximum errors as text."""
        worst = f"worst {100 * self.worst_error:+.0f} % at {self.worst_at}"
        return f"median APE {100 * self.median_error:.1f} %, {worst}"


@dataclass(frozen=True)
class Autoscaler:
    """Parameters of a variant (a model on an accelerator): linear fits of ITL and prefill time.

    ``ITL = alpha + beta x batch`` and ``prefill time = gamma + delta x prompt tokens x batch``,
    both in milliseconds, where ``batch`` is the number of requests in a step.

    Attributes:
        decode: ITL as a linear function of the decodes in a step, with alpha and beta.
        prefill: Prefill time as a linear function of prompt tokens x batch, with gamma and delta.
        most_requests: Maximum number of running requests per replica.
    """

    decode: Line
    prefill: Line
    most_requests: int

    @property
    def parameters(self) -> dict[str, float]:
        """Return alpha, beta, gamma and delta, in milliseconds."""
        values = (
            self.decode.constant_ms, self.decode.slope_ms,
            self.prefill.constant_ms, self.prefill.slope_ms,
        )  # fmt: skip
        return dict(zip(("alpha", "beta", "gamma", "delta"), values, strict=True))

    def to_json(self) -> JsonObject:
        """Return the content of ``autoscaler.json``."""
        return {
            **self.parameters,
            "unit": "ms",
            "laws": {
                "itl": "alpha + beta x batch",
                "prefill": "gamma + delta x prompt tokens x batch",
            },
            "max_batch_size": self.most_requests,
            "errors": {name: _facts(line) for name, line in self._lines.items()},
        }

    def lines(self) -> list[str]:
        """Return both formulas with their errors, as lines of text to print."""
        p = {name: number(value) for name, value in self.parameters.items()}
        return [
            f"ITL (ms) = {p['alpha']} + {p['beta']} x batch: {self.decode}",
            f"prefill (ms) = {p['gamma']} + {p['delta']} x tokens x batch: {self.prefill}",
        ]

    @property
    def _lines(self) -> dict[str, Line]:
        return {"itl": self.decode, "prefill": self.prefill}


def _facts(line: Line) -> JsonObject:
    return {
        "median_ape": line.median_error,
        "worst": line.worst_error,
        "worst_at": line.worst_at,
        "over": line.over,
    }


def fit_autoscaler(latency: LinearLatency) -> Autoscaler:
    """Fit the autoscaler's lines of ITL and prefill time to a deployment's step times.

    The fits minimize relative errors. The ITL is fitted to batches of one to the maximum number of
    decodes, at contexts of 256, 1,024 and 4,096 tokens as far as the KV cache allows. The prefill
    time is fitted to batches of identical prompts that fit in a step, and to single prompts of up
    to three quarters of the model's maximum length, processed in as many steps as needed.
    """
    recipe = latency.deployment.recipe
    decodes, prompts = _decodes(latency), _prompts(latency)
    decode_s = latency.step_times([Batch.decode(n, context) for n, context in decodes])
    prefill_s = [_prefill_s(latency, n, tokens) for n, tokens in prompts]
    contexts = sorted({context for _, context in decodes})
    most = max(n for n, _ in decodes)
    lengths_of_contexts = " to ".join(f"{tokens:,}" for tokens in contexts[::2])
    decode = _line(
        [n for n, _ in decodes], decode_s, [f"{n} decodes @ {c}" for n, c in decodes],
        f"1 to {most:,} decodes at contexts of {lengths_of_contexts} tokens",
    )  # fmt: skip
    lengths = [tokens for _, tokens in prompts]
    prefill = _line(
        [n * tokens for n, tokens in prompts], prefill_s, [f"{n} x {t} tokens" for n, t in prompts],
        f"prompts of {min(lengths):,} to {max(lengths):,} tokens",
    )  # fmt: skip
    return Autoscaler(decode, prefill, recipe.max_requests)


def _decodes(latency: LinearLatency) -> list[tuple[int, int]]:
    """Return the batches (number of decodes, context tokens) to which the ITL is fitted."""
    deployment, layout = latency.deployment, kv_layout(latency.deployment, EngineSpec())
    found, longest = [], max_model_len(deployment)
    for context in sorted({min(each, longest) for each in _CONTEXTS}):
        blocks = int(layout.request_blocks(context, deployment.recipe.block_tokens))
        most = max(min(deployment.recipe.max_requests, layout.blocks // max(blocks, 1)), 1)
        found += [(n, context) for n in _spread(1, most, _BATCHES)]
    return found


def _prompts(latency: LinearLatency) -> list[tuple[int, int]]:
    """Return the batches (number of prompts, tokens per prompt) of the fit of prefill times."""
    recipe, longest = latency.deployment.recipe, max(max_model_len(latency.deployment) * 3 // 4, 1)
    lengths = _spread(min(_SHORTEST, longest), longest, _LENGTHS)
    found = [(1, tokens) for tokens in lengths]
    return found + [
        (n, tokens)
        for tokens in lengths
        for n in (2, 4, 8, 16)
        if n * tokens <= recipe.token_budget and n <= recipe.max_requests
    ]


def _spread(low: int, high: int, count: int) -> list[int]:
    return sorted({*np.geomspace(low, high, count).round().astype(int).tolist()})


def _prefill_s(latency: LinearLatency, prompts: int, tokens: int) -> float:
    """Return the total time in seconds of computing ``prompts`` prompts of ``tokens`` tokens."""
    budget = latency.deployment.recipe.token_budget
    if prompts * tokens <= budget:
        return latency.step_time(Batch.prefill(prompts, tokens))
    chunks = [(done, min(budget, tokens - done)) for done in range(0, tokens, budget)]
    return float(latency.step_times([Batch.prefill(1, new, done) for done, new in chunks]).sum())


def _line(
    over: Sequence[float], seconds: Sequence[float] | np.ndarray, names: list[str], said: str
) -> Line:
    """Fit a line with non-negative coefficients to times, by least squares of relative errors."""
    x, y = np.array(over, float), np.array(seconds) / MILLISECOND
    (constant, slope), _ = nnls(np.column_stack([1 / y, x / y]), np.ones(len(y)))
    errors: Float[np.ndarray, " n"] = (constant + slope * x) / y - 1
    worst = int(np.abs(errors).argmax())
    return Line(
        float(constant),
        float(slope),
        float(np.median(np.abs(errors))),
        float(errors[worst]),
        names[worst],
        said,
    )
