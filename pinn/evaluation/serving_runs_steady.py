"""Mean ITL of a load stage without a simulation: one batch, in the model's own steady state.

At a constant rate as many requests decode at a time as arrive while one is served (Little's law);
a token sees that many others in its batch beside its own request, and the batch in turn decides how
long serving takes. Nothing of the measured latencies goes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.data.measured_runs import MeasuredRun
from pinn.errors import PinnError
from pinn.physics.costs import StepCosts, step_costs
from pinn.physics.step import step_features
from pinn.physics.uniform_batches import UniformBatches
from pinn.specs.deployment import Deployment

#: Prompt tokens computed per request whose prompt is in the prefix cache: what lies beyond its
#: last whole block, and the block that has to be computed again when it ends with one. An
#: assumption; over all lengths they are 8.5 on average.
UNCACHED_TOKENS = 12.0

_ROUNDS = 200


def steady_itl_seconds(
    deployment: Deployment,
    beta: Float[np.ndarray, " step_features"],
    rate_per_s: float,
    prompt_tokens: float,
    output_tokens: int,
) -> float:
    """Mean step time at which arrivals and decodes balance.

    A step shares its batch with the prefills of the requests that arrived during the one before,
    Poisson in number.

    Args:
        deployment: What serves.
        beta: Its coefficients.
        rate_per_s: Requests per second.
        prompt_tokens: Mean prompt length; prompts are in the prefix cache.
        output_tokens: Tokens that each request generates.

    Raises:
        PinnError: If the rate is not positive.
    """
    if not rate_per_s > 0:
        raise PinnError(f"a steady state needs a positive rate, got {rate_per_s} req/s")
    costs, window = step_costs([deployment]), deployment.model.window_tokens
    context = prompt_tokens + output_tokens / 2
    seconds = 1e-3
    for _ in range(_ROUNDS):
        others = rate_per_s * output_tokens * seconds
        decodes = min(1 + others, deployment.recipe.max_requests)
        new = _mean_step(costs, window, beta, decodes, context, prompt_tokens, rate_per_s * seconds)
        if abs(new / seconds - 1) < 1e-9:
            return new
        seconds = (seconds + new) / 2  # halfway, so that large batches do not swing
    return seconds


def _mean_step(
    costs: StepCosts,
    window: int | None,
    beta: np.ndarray,
    decodes: float,
    context: float,
    prompt_tokens: float,
    arrivals: float,
) -> float:
    """Mean over steps with and without prefills, ``arrivals`` per step on average."""
    share = 1 - np.exp(-arrivals)
    two = np.ones(2)
    prefills = np.array([0.0, arrivals / share])
    batches = UniformBatches(
        decodes * two,
        context * two,
        prefills,
        UNCACHED_TOKENS * (prefills > 0),
        (prompt_tokens - UNCACHED_TOKENS) * (prefills > 0),
    )
    steps = step_features(costs, batches.sums(window)) @ beta
    return float((1 - share) * steps[0] + share * steps[1])


def score_steady_states(
    runs: Sequence[MeasuredRun], betas: Mapping[str, Sequence[Float[np.ndarray, " step_features"]]]
) -> pd.DataFrame:
    """Errors of the steady-state ITL.

    Args:
        runs: What was measured.
        betas: Method -> coefficients of each run.

    Returns:
        One row per run and stage: ``run``, ``model``, ``stage``, ``rate_per_s``, ``measured_s``
        and per method ``METHOD_s`` and ``METHOD_percent``.
    """
    rows = []
    for i, run in enumerate(runs):
        load = run.workload
        for stage in run.stages:
            measured, rate = run.measured[stage]["itl_mean_s"], run.rates_per_s[int(stage)]
            row = {
                "run": run.name,
                "model": run.deployment.model.name,
                "stage": stage,
                "rate_per_s": rate,
                "measured_s": measured,
            }
            for method, of_runs in betas.items():
                predicted = steady_itl_seconds(
                    run.deployment,
                    of_runs[i],
                    rate,
                    float(load.prompt_tokens.mean()),
                    int(load.output_tokens[0]),
                )
                row[f"{method}_s"] = predicted
                row[f"{method}_percent"] = 100 * (predicted / measured - 1)
            rows.append(row)
    return pd.DataFrame(rows)
