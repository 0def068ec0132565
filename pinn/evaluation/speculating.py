"""Deployments whose multi-token prediction nobody marked, for a range of acceptance.

Neither the tokens drafted nor their acceptance is known, and nothing is fitted: the table shows
which acceptance would explain what was measured. Times are those of the mean step of the closed
loop, without a simulator: B decodes halfway through their outputs and, as each request ends after
output / E steps that give it E tokens, B E / output prompts beside them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.coefficients.surrogate import predict_coefficients
from pinn.coefficients.trained_network import TrainedNetwork
from pinn.data.measured_deployments import MeasuredDeployment, measured_deployment
from pinn.evaluation.metrics import error_summary
from pinn.physics.batch_sums import uniform_sums
from pinn.physics.speculation import deployment_features
from pinn.specs.deployment import Deployment
from pinn.specs.serving import SGLANG

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
PART = ["engine", "model", "gpu", "precision"]


def speculating(one: MeasuredDeployment, tokens: int, acceptance: float) -> Deployment:
    """The deployment of a row with so many tokens drafted by the model's own layer."""
    flags: dict[str, Any] = {"speculative_acceptance": str(acceptance)}
    if one.served.serving.engine == SGLANG:
        flags |= {
            "speculative_config": "EAGLE",
            "speculative_num_steps": tokens,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": tokens + 1,
            "max_num_seqs": one.concurrency,
        }
    else:
        config = {"decoding_type": "MTP", "num_nextn_predict_layers": tokens}
        flags["speculative_config"] = json.dumps(config)
    return replace(one.served, serving=replace(one.served.serving, **flags))


def mean_tpot_s(
    deployment: Deployment, beta: Float[np.ndarray, " step_features"], one: MeasuredDeployment
) -> float:
    """Time per output token of the mean step of a row's closed loop."""
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
    alone, beside = deployment_features(deployment, sums) @ beta
    prompts = batch * tokens / output
    return float((alone + prompts * (beside - alone)) / tokens)


def score_speculating(
    rows: pd.DataFrame,
    network: TrainedNetwork,
    left_out: Mapping[str, TrainedNetwork],
    tokens: int,
    acceptances: Sequence[float] = ACCEPTANCES,
) -> pd.DataFrame:
    """Time every row without drafts, and with them at each acceptance.

    Args:
        rows: As ``pinn.data.engine_deployments.read_speculating`` gives them.
        network: For models that no network learned from.
        left_out: Model -> the network that never saw its deployments.
        tokens: Drafted in a step.
        acceptances: Of each of them.

    Returns:
        The rows with ``tpot_s_plain`` and ``tpot_s_ACCEPTANCE``.
    """
    found = []
    for _, row in rows.iterrows():
        one = measured_deployment(row)
        chosen = left_out.get(one.deployment.model.name, network)
        beta = predict_coefficients(chosen, [one.deployment]).beta[0]
        own = (one.served, *(speculating(one, tokens, rate) for rate in acceptances))
        found.append([mean_tpot_s(deployment, beta, one) for deployment in own])
    names = [f"tpot_s_{name}" for name in ("plain", *acceptances)]
    return rows.assign(**dict(zip(names, np.array(found).T, strict=True)))


def speculating_lines(scores: pd.DataFrame) -> Iterator[str]:
    """Median / mean absolute error (bias) of TPOT in %, as Markdown: a column per acceptance."""
    names = [str(c).removeprefix("tpot_s_") for c in scores.columns if str(c).startswith("tpot_s_")]
    yield "| " + " | ".join([*PART, "rows", *names]) + " |"
    yield "|" + "---|" * len(PART) + "---:|" * (1 + len(names))
    whole = scores.assign(model="all", gpu="all", precision="all")
    for table in (whole, scores):
        for key, part in table.groupby(PART, sort=True):
            cells = [_cell(part[f"tpot_s_{name}"], part["tpot_s"]) for name in names]
            yield "| " + " | ".join([*map(str, key), str(len(part)), *cells]) + " |"


def _cell(predicted: pd.Series, measured: pd.Series) -> str:
    figures = error_summary(predicted.to_numpy(), measured.to_numpy())
    return f"{figures['median']:.1f} / {figures['mean']:.1f} ({figures['bias']:+.1f})"
