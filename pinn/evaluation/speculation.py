"""TPOT by acceptance rate, for measurements that do not record multi-token prediction (MTP).

The measurements record neither the number of draft tokens nor their acceptance rate. The printed
table shows which acceptance rate would explain the measured TPOT. Times are computed for the closed
loop's mean step, without a simulation. In this step, B requests decode, each halfway through its
output. A request completes after output / E steps, where ``output`` is its number of output tokens
and E its mean number of tokens per step. On average, a step therefore also computes B E / output
prompts.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.common.files import json_text
from pinn.common.screen import Grid
from pinn.engines.deployment import Deployment
from pinn.evaluation.engines import HeldOut, part_grid, with_coefficients
from pinn.measurements.deployments.measured import MeasuredDeployment
from pinn.physics.batch_sums import uniform_sums
from pinn.specs.serving import SGLANG
from pinn.surrogate.deployment_features import deployment_features
from pinn.surrogate.step_features import step_time

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)


def speculating(one: MeasuredDeployment, tokens: int, acceptance: float) -> Deployment:
    """Return a row's deployment with multi-token prediction of ``tokens`` draft tokens per step."""
    serving = replace(one.served.serving, speculative_acceptance=str(acceptance))
    if serving.engine == SGLANG:
        drafted = replace(
            serving,
            speculative_config="EAGLE",
            speculative_num_steps=tokens,
            speculative_eagle_topk=1,
            speculative_num_draft_tokens=tokens + 1,
            max_num_seqs=one.concurrency,
        )
    else:
        config = {"decoding_type": "MTP", "num_nextn_predict_layers": tokens}
        drafted = replace(serving, speculative_config=json_text(config))
    return replace(one.served, serving=drafted)


def mean_tpot_s(
    deployment: Deployment, beta: Float[np.ndarray, " step_features"], one: MeasuredDeployment
) -> float:
    """Return the time per output token in an average step of a row's closed loop, in seconds."""
    drafts, workload = deployment.recipe.speculation, one.workload
    tokens = 1.0 if drafts is None else drafts.tokens_per_step
    prompt, output = float(workload.prompt_tokens.mean()), float(workload.output_tokens.mean())
    batch = one.concurrency / deployment.recipe.data_parallel_size
    sums = uniform_sums(
        decode_requests=batch,
        decode_context=prompt + output / 2,
        prefill_requests=np.array([0.0, 1.0]),
        prefill_tokens=prompt,
        window=deployment.model.window_tokens,
    )
    alone, beside = step_time(deployment_features(deployment, sums), beta)
    prompts = batch * tokens / output
    return float((alone + prompts * (beside - alone)) / tokens)


def score_speculating(
    rows: pd.DataFrame, of: HeldOut, tokens: int, acceptances: Sequence[float] = ACCEPTANCES
) -> pd.DataFrame:
    """Predict every row's TPOT without draft tokens, and with them at each acceptance rate.

    Args:
        rows: Rows as ``pinn.training.data.engine_deployments.read_speculating`` returns them.
        of: Predictor of coefficients for each row's deployment.
        tokens: Number of draft tokens per step.
        acceptances: Acceptance rates of a draft token to try.

    Returns:
        The rows with ``tpot_s_plain`` and ``tpot_s_ACCEPTANCE``, seconds.
    """
    found = []
    for one, latency in with_coefficients(rows, of):
        own = (one.served, *(speculating(one, tokens, rate) for rate in acceptances))
        found.append([mean_tpot_s(deployment, latency.beta, one) for deployment in own])
    names = [f"tpot_s_{name}" for name in ("plain", *acceptances)]
    return rows.assign(**dict(zip(names, np.array(found).T, strict=True)))


def speculating_grid(scores: pd.DataFrame) -> Grid:
    """Return TPOT errors by engine, model, GPU and number format, a column per acceptance rate."""
    names = [str(c).removeprefix("tpot_s_") for c in scores.columns if str(c).startswith("tpot_s_")]
    return part_grid(scores, {name: (f"tpot_s_{name}", "tpot_s") for name in names})
