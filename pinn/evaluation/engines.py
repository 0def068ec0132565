"""Errors on other engines, and on servers that speculate."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.common.files import find_checkpoint, json_text
from pinn.common.screen import Grid
from pinn.engines.deployment import Deployment
from pinn.evaluation.metrics import error_summary, error_text
from pinn.physics.batch_sums import uniform_sums
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.simulate import Job
from pinn.specs.serving import SGLANG
from pinn.surrogate.checkpoint import load_checkpoint
from pinn.surrogate.deployment_features import deployment_features
from pinn.surrogate.inference import NetworkWeights
from pinn.surrogate.surrogate import predict_coefficients
from pinn.training.data import engine_deployments, released
from pinn.training.data.deployments import MeasuredDeployment, measured_deployment
from pinn.training.serving_rows import mean_times

# Networks of the checkpoint on measured deployments of other engines, models left out.
#
# A row's model is left out: the network that predicts it learned from no deployment of that
# model. Models that no network ever learned from are predicted by the checkpoint itself; kernels
# of their shapes may have taught it.

#: What a line of the table is about.
PART = ["engine", "model", "gpu", "precision"]
METHODS = ("network", "aiconfigurator")
OTHER_CAMPAIGN = "other campaign, unknown client: TPOT only"


def engine_rows() -> pd.DataFrame:
    """Every row that is scored; ``apart`` says why one does not count among its engine's."""
    other = engine_deployments.read_other_campaign()[0].assign(apart=OTHER_CAMPAIGN)
    parts = [
        engine_deployments.read_engines()[0],
        engine_deployments.read_other_attention()[0],
        other,
    ]
    return pd.concat(parts, ignore_index=True)


def networks(checkpoint: Path | None = None) -> tuple[NetworkWeights, dict[str, NetworkWeights]]:
    """The checkpoint's network, and by left-out model those in the folder ``left_out`` beside it.

    Warns where there are none: the checkpoint itself may have learned from the rows.

    Raises:
        PinnError: If there is no checkpoint.
    """
    path = find_checkpoint(checkpoint)
    left_out = {}
    for fold in sorted((path.parent / "left_out").glob("*.safetensors")):
        loaded = load_checkpoint(fold)
        left_out[loaded.metadata["excluded"]["models"][0]] = loaded.network
    if not left_out:
        warnings.warn(
            f"{path.parent / 'left_out'} has no network that never saw a model: {path.name} "
            "predicts every row, and may have learned from some of their models",
            stacklevel=2,
        )
    return load_checkpoint(path).network, left_out


def score_engines(
    rows: pd.DataFrame,
    network: NetworkWeights,
    left_out: Mapping[str, NetworkWeights],
    workers: int | None = None,
) -> pd.DataFrame:
    """Simulate every row's benchmark.

    Args:
        rows: As :func:`engine_rows` gives them.
        network: For models that no network learned from.
        left_out: Model -> the network that never saw its deployments.
        workers: Threads.

    Returns:
        The rows with ``METHOD_tpot_s`` and ``METHOD_ttft_s`` for each of ``METHODS``; NaN where
        the peer has no answer.
    """
    jobs = [
        Job(one.served, one.workload, LinearLatency(one.served, beta, alpha))
        for one, beta, alpha in _with_coefficients(rows, network, left_out)
    ]
    means = mean_times(jobs, workers)
    peer = released.released_predictions().set_index("row_id").reindex(rows["row_id"])
    return rows.assign(
        network_tpot_s=means.tpot_s,
        network_ttft_s=means.ttft_s,
        aiconfigurator_tpot_s=peer["tpot_s"].to_numpy(),
        aiconfigurator_ttft_s=peer["ttft_s"].to_numpy(),
    )


def _with_coefficients(
    rows: pd.DataFrame, network: NetworkWeights, left_out: Mapping[str, NetworkWeights]
) -> Iterator[tuple[MeasuredDeployment, Float[np.ndarray, " beta"], Float[np.ndarray, " alpha"]]]:
    """Each row's deployment, with beta and alpha by what never saw its model."""
    for _, row in rows.iterrows():
        one = measured_deployment(row)
        chosen = left_out.get(one.deployment.model.name, network)
        found = predict_coefficients(chosen, [one.deployment])
        yield one, found.beta[0], found.alpha[0]


def engine_table(scores: pd.DataFrame) -> pd.DataFrame:
    """Errors by engine, model, GPU and format, and by engine.

    Args:
        scores: As :func:`score_engines` gives them.

    Returns:
        One row per part, method and metric: ``apart``, ``PART`` ("all" in the engine's own line),
        ``method``, ``metric`` and the figures of :func:`pinn.evaluation.metrics.error_summary`.
        The other campaign's TTFT is not scored.
    """
    lines = []
    for (apart, *key), part in _parts(scores, ["apart", *PART]):
        about = {"apart": apart, **dict(zip(PART, key, strict=True))}
        metrics = ("tpot",) if apart == OTHER_CAMPAIGN else ("tpot", "ttft")
        for metric, method in product(metrics, METHODS):
            scored = part[part[f"{method}_{metric}_s"].notna()]
            if len(scored):
                predicted = scored[f"{method}_{metric}_s"].to_numpy()
                summary = error_summary(predicted, scored[f"{metric}_s"].to_numpy())
                lines.append({**about, "method": method, "metric": metric, **summary})
    # An engine's own line first.
    return pd.DataFrame(lines).sort_values(["apart", "engine"], kind="stable", ignore_index=True)


def _parts(scores: pd.DataFrame, by: list[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """All rows of an engine, then those of each model, GPU and format."""
    for table in (scores.assign(model="all", gpu="all", precision="all"), scores):
        yield from table.groupby(by, sort=True)


def engine_lines(table: pd.DataFrame) -> Iterator[str]:
    """The table as Markdown: a line per part, ``median / mean (bias)`` per method and metric."""
    columns = [f"{method} {metric.upper()}" for metric in ("tpot", "ttft") for method in METHODS]
    for apart, of_apart in table.groupby("apart", sort=True):
        yield f"\n{str(apart) or 'measured deployments, model left out'}\n"
        grid = Grid.of(*PART, "rows", *columns, text=len(PART))
        for key, part in of_apart.groupby(PART, sort=False):
            named = zip(part["method"], part["metric"].str.upper(), part.itertuples(), strict=True)
            found = {f"{method} {metric}": row for method, metric, row in named}
            cells = [_cell(found.get(column), int(part["n"].max())) for column in columns]
            grid.add(*map(str, key), str(part["n"].max()), *cells)
        yield grid.markdown()


def _cell(figures: Any, rows: int) -> str:
    if figures is None:
        return "-"
    text = error_text(figures._asdict())
    return text if figures.n == rows else f"{text} of {figures.n}"


# Deployments whose multi-token prediction nobody marked, for a range of acceptance.
#
# Neither the tokens drafted nor their acceptance is known, and nothing is fitted: the table
# shows which acceptance would explain what was measured. Times are those of the mean step of the
# closed loop, without a simulator: B decodes halfway through their outputs and, as each request
# ends after output / E steps that give it E tokens, B E / output prompts beside them.

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)


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
        flags["speculative_config"] = json_text(config)
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
    network: NetworkWeights,
    left_out: Mapping[str, NetworkWeights],
    tokens: int,
    acceptances: Sequence[float] = ACCEPTANCES,
) -> pd.DataFrame:
    """Time every row without drafts, and with them at each acceptance.

    Args:
        rows: As ``pinn.training.data.engine_deployments.read_speculating`` gives them.
        network: For models that no network learned from.
        left_out: Model -> the network that never saw its deployments.
        tokens: Drafted in a step.
        acceptances: Of each of them.

    Returns:
        The rows with ``tpot_s_plain`` and ``tpot_s_ACCEPTANCE``.
    """
    found = []
    for one, beta, _ in _with_coefficients(rows, network, left_out):
        own = (one.served, *(speculating(one, tokens, rate) for rate in acceptances))
        found.append([mean_tpot_s(deployment, beta, one) for deployment in own])
    names = [f"tpot_s_{name}" for name in ("plain", *acceptances)]
    return rows.assign(**dict(zip(names, np.array(found).T, strict=True)))


def speculating_table(scores: pd.DataFrame) -> str:
    """Median / mean absolute error (bias) of TPOT in %, as Markdown: a column per acceptance."""
    names = [str(c).removeprefix("tpot_s_") for c in scores.columns if str(c).startswith("tpot_s_")]
    grid = Grid.of(*PART, "rows", *names, text=len(PART))
    for key, part in _parts(scores, PART):
        measured = part["tpot_s"].to_numpy()
        found = (error_summary(part[f"tpot_s_{name}"].to_numpy(), measured) for name in names)
        grid.add(*map(str, key), str(len(part)), *map(error_text, found))
    return grid.markdown()
