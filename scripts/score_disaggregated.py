"""Score measured deployments with disaggregated prefill/decode, in their steady state.

    python scripts/score_disaggregated.py
    python scripts/score_disaggregated.py --every 8 --out pools.csv

Prints median / mean absolute percentage error and bias of TPOT and TTFT by engine, model, GPU and
whether decode ranks are data-parallel. Each model is held out, and nothing is fitted to these rows.
"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import typer

from pinn.common.files import ReadReport, file_sha256
from pinn.common.screen import Grid
from pinn.common.tables import write_frame
from pinn.engines.deployment import Deployment
from pinn.evaluation.engines import HeldOut, networks
from pinn.evaluation.metrics import error_summary
from pinn.measurements.benchmarks.inferencex import LENGTH_RANGE, PROMPTS_PER_CONCURRENCY
from pinn.measurements.deployments import measured as deployments
from pinn.measurements.deployments import silicon as sample
from pinn.planning.screening import step_seconds
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.catalog import load_model
from pinn.specs.serving import DEEPEP, SGLANG, TRTLLM
from pinn.training.data import engine_deployments, silicon

# Reader of the measured P/D deployments of ``silicon_sample.csv``.
#
# The rows come from the public benchmark of :mod:`pinn.training.data.engine_deployments`, behind
# NVIDIA Dynamo. A row is a closed loop whose concurrency counts the requests of all servers. Only
# the database dump states the number of servers, so only its rows can be simulated. Many rows state
# Dynamo's release, so engines get the defaults of the table's default release. Rows with
# speculative decoding (MTP) are not marked and use the same images as other rows, so some rows may
# include it.

POOLS = ("prefill", "decode")

#: Number of matrix rows that share a scale in block formats. A slice of an expert must contain
#: whole blocks.
_BLOCK = 128
#: GPUs for which SGLang's scripts keep the model's own KV cache format; all other scripts set fp8.
_PLAIN_CACHE = ("h100_sxm", "h200_sxm")
#: Number of GPUs per machine. SGLang servers on more GPUs are assumed to exchange tokens by DeepEP,
#: as ``--moe-a2a-backend`` in the wide-EP recipes of 2025 and 2026 states (not rechecked since).
_MACHINE_RANKS = 8
#: ``--chunked-prefill-size`` in SGLang's aggregated scripts (``data/engines/launch_facts.csv``), by
#: number format and GPU. All other SGLang servers, and vLLM servers, have their engine's default.
_CHUNKS = {
    ("nvfp4", "b200_sxm"): 16384,
    ("fp8_block", "b200_sxm"): 32768,
    ("fp8_block", "h200_sxm"): 32768,
}
_USUAL_TOKENS = 8192
#: Share of GPU memory for weights and KV cache, large enough for all requests, because rows in
#: which requests waited for memory are excluded.
_MEMORY_SHARE = 0.97
#: ``_TRTLLM_TOKENS``: TensorRT-LLM's default ``max_num_tokens``. ``_SPARE_TOKENS``: number of
#: tokens by which its scripts' token budgets exceed decodes plus a prompt, and of which the budgets
#: are multiples. If a step with all decodes had no room for a prompt, some prompts would starve.
_TRTLLM_TOKENS, _SPARE_TOKENS = 8192, 64
#: Number of tokens by which ``--max-model-len`` exceeds prompt plus output, as in the benchmark's
#: workflow.
_MODEL_LEN_MARGIN = 200

_LAYOUT = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "num_workers")


def without_workers(rows: pd.DataFrame) -> pd.Series:
    """Mark the rows that do not state the number of servers of each pool.

    Their batch sizes are unknown.
    """
    return rows[[f"{pool}_num_workers" for pool in POOLS]].isna().any(axis=1)


#: Filters of rows, by reason for refusing a row, in order of application.
DISAGGREGATED_FILTERS = {
    "file of another campaign (harrli)": silicon.from_other_campaign,
    "duplicate of a measurement in another dump": engine_deployments.copy_of_a_row,
    "number of servers not named": without_workers,
}


class MeasuredPools(NamedTuple):
    """Prefill and decode servers of one measured row.

    Attributes:
        prefill: Deployment of a prefill server.
        prefill_workers: Number of prefill servers.
        decode: Deployment of a decode server.
        decode_workers: Number of decode servers.
    """

    prefill: Deployment
    prefill_workers: int
    decode: Deployment
    decode_workers: int


def read_disaggregated() -> tuple[pd.DataFrame, ReadReport]:
    """Read the measured rows with known pools.

    Returns:
        One row per load in SI units: ``row_id``, ``model``, ``gpu``, ``precision``, ``engine``,
        lengths, ``concurrency``, ``ttft_s``, ``tpot_s``, and for each pool ``POOL_tp_size``,
        ``_attention_dp_size``, ``_moe_tp_size``, ``_moe_ep_size`` and ``_num_workers``; and the
        counts of rows read and refused.

    Raises:
        PinnError: If the measurements cannot be read.
    """
    path, version = sample.sample_file(None)
    raw = sample.read_csv(path)
    chosen = raw[raw["mode"] == "disagg"]
    columns = [f"{pool}_{name}" for pool in POOLS for name in _LAYOUT]
    decoded = sample.decode(chosen).join(chosen[columns])
    one_name = decoded["model"].replace("deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1")
    kept, dropped = sample.apply_filters(decoded.assign(model=one_name), DISAGGREGATED_FILTERS)
    named = sample.named(kept.assign(tensor_parallel_size=kept["decode_tp_size"]))
    rows = named.astype(dict.fromkeys(columns, "int64")).reset_index(drop=True)
    refused = {"not disaggregated": len(raw) - len(chosen), **dropped}
    return rows, ReadReport(path.name, version, file_sha256(path), len(raw), len(rows), refused)


def measured_pools(row: pd.Series) -> MeasuredPools:
    """Return the prefill and decode servers of a row of :func:`read_disaggregated`."""
    prefill, decode = ((_server(row, pool), int(row[f"{pool}_num_workers"])) for pool in POOLS)
    return MeasuredPools(*prefill, *decode)


def _server(row: pd.Series, pool: str) -> Deployment:
    """Return one server of a pool, with the flags of its engine's aggregated scripts.

    The aggregated scripts launch servers that do both prefill and decode. The CUDA graphs of a
    decode server cover at least its share of the clients. A prefill server of TensorRT-LLM has the
    engine's default token budget, since the aggregated scripts set a budget for decodes with one
    prompt.
    """
    tp, dp = int(row[f"{pool}_tp_size"]), int(row[f"{pool}_attention_dp_size"])
    share = -(-int(row["concurrency"]) // (int(row["decode_num_workers"]) * dp))
    clients = share if pool == "decode" else 1
    prompt = int(row["prompt_tokens"])
    plain = row["engine"] == SGLANG and row["gpu"] in _PLAIN_CACHE
    flags = {
        **row.to_dict(),
        "tensor_parallel_size": tp,
        "data_parallel_size": dp,
        "enable_expert_parallel": _spreads_experts(row, pool),
        "engine_version": "",
        "kv_cache_dtype": "auto" if plain else "fp8",
        "enable_prefix_caching": "no",
        "max_model_len": prompt + int(row["output_tokens"]) + _MODEL_LEN_MARGIN,
        "max_num_batched_tokens": _USUAL_TOKENS,
        "max_cudagraph_capture_size": 512,
    }
    if row["engine"] in (SGLANG, TRTLLM):
        flags |= {"gpu_memory_utilization": _MEMORY_SHARE, "cudagraph_padding": "yes"}
    if row["engine"] == SGLANG:
        budget = _CHUNKS.get((row["precision"], row["gpu"]), _USUAL_TOKENS)
        flags["max_num_batched_tokens"] = budget
        flags["max_cudagraph_capture_size"] = max(512 if tp >= 4 else 256, clients)
    elif row["engine"] == TRTLLM:
        room = -(-(clients + prompt + _SPARE_TOKENS) // _SPARE_TOKENS) * _SPARE_TOKENS
        if pool == "prefill":
            room = max(_TRTLLM_TOKENS, prompt + _SPARE_TOKENS)
        elif "DeepSeek" not in row["model"]:
            room = max(_TRTLLM_TOKENS, room)
        flags |= {"max_num_batched_tokens": room, "max_cudagraph_capture_size": clients}
    deployment = deployments.observed_deployment(flags)
    if row["engine"] == SGLANG and dp > _MACHINE_RANKS:
        serving = replace(deployment.serving, moe_a2a_backend=DEEPEP)
        deployment = replace(deployment, serving=serving)
    return deployment


def _spreads_experts(row: pd.Series, pool: str) -> bool:
    """Return whether a pool distributes whole experts over its GPUs instead of slicing each one.

    It does so if the row states expert parallelism, or if slices would cut through the blocks of a
    number format. SGLang's rows with attention data parallelism over 32 GPUs state 32 slices of
    each expert; a width of 2048 would leave half a block to each slice.
    """
    if row[f"{pool}_moe_ep_size"] > 1:
        return True
    moe = load_model(str(row["model"])).moe
    return moe is not None and moe.width / row[f"{pool}_moe_tp_size"] % _BLOCK != 0


# Measured P/D deployments: predicted decode TPOT and TTFT.
#
# Simulating all rows would be slow, because they have thousands of clients on dozens of GPUs. The
# steady state of a row is therefore computed by the laws of closed queueing networks (Denning and
# Buzen, "The operational analysis of queueing network models", 1978). ``C`` clients send at the
# rate
#
#     X = min(C / (prefill + n x step(B)),  prompts per second that the prefill pool computes)
#
# where ``prefill`` is the time of a prompt, ``n`` the number of output tokens, ``step(B)`` the time
# of a decode step, and ``B = X x n x step(B) / ranks`` the number of requests on each decode rank
# (Little's law). All times are in seconds. TPOT is ``step(B)``. A client waits ``C / X - n x
# step(B)`` for its first token, except for its first request: all first requests are sent at once,
# so each waits for half of them on average. Transfers and the API server are ignored.

#: Mean prompt or output length relative to the nominal length.
_LENGTH = sum(LENGTH_RANGE) / 2
_HALVINGS = 40


class SteadyState(NamedTuple):
    """Mean metrics of a benchmark run in its steady state.

    Attributes:
        tpot_s: Time per output token in seconds.
        ttft_s: Time to first token in seconds.
        batch: Mean number of decode requests in a step of each decode rank.
    """

    tpot_s: float
    ttft_s: float
    batch: float


def score_pools(rows: pd.DataFrame, of: HeldOut) -> pd.DataFrame:
    """Return the rows with TPOT and TTFT predicted by a network trained without the row's model.

    The columns are ``network_tpot_s`` and ``network_ttft_s``. Nothing is fitted to the rows.

    Args:
        rows: Rows from :func:`read_disaggregated`.
        of: Predictor of coefficients that excludes each row's model.
    """
    states = []
    for _, row in rows.iterrows():
        pools = measured_pools(row)
        state = steady_state(
            pools,
            *of.latencies([pools.prefill, pools.decode]),
            clients=int(row["concurrency"]),
            prompt_tokens=_LENGTH * row["prompt_tokens"],
            output_tokens=_LENGTH * row["output_tokens"],
        )
        states.append(state)
    tpot_s, ttft_s, _ = np.array(states).T
    return rows.assign(network_tpot_s=tpot_s, network_ttft_s=ttft_s)


def steady_state(
    pools: MeasuredPools,
    prefill: LinearLatency,
    decode: LinearLatency,
    *,
    clients: int,
    prompt_tokens: float,
    output_tokens: float,
) -> SteadyState:
    """Solve for the steady state of both pools in a closed loop, by bisection of the decode batch.

    A larger decode batch makes steps longer, so clients send requests less often.

    Args:
        pools: Servers of both pools.
        prefill: Latency model of a prefill server.
        decode: Latency model of a decode server.
        clients: Number of clients in the closed loop.
        prompt_tokens: Mean prompt length in tokens.
        output_tokens: Mean output length in tokens.
    """
    ranks = pools.decode_workers * pools.decode.recipe.data_parallel_size
    prompt_s, prompts_per_s = _prefill_pool(pools, prefill, prompt_tokens)
    context = prompt_tokens + output_tokens / 2

    def rate_per_s(answer_s: float) -> float:
        return min(clients / (prompt_s + answer_s), prompts_per_s)

    least, most = 0.0, clients / ranks
    for _ in range(_HALVINGS):
        batch = (least + most) / 2
        step_s = _decode_seconds(decode, batch, context)
        answer_s = output_tokens * step_s
        if rate_per_s(answer_s) * answer_s / ranks > batch:
            least = batch
        else:
            most = batch
    later_s = clients / rate_per_s(answer_s) - answer_s
    first_s = max(prompt_s, clients / 2 / prompts_per_s)
    share = 1 / PROMPTS_PER_CONCURRENCY
    return SteadyState(step_s, share * first_s + (1 - share) * later_s, batch)


def _prefill_pool(
    pools: MeasuredPools, latency: LinearLatency, prompt_tokens: float
) -> tuple[float, float]:
    """Return the time of a single prompt in seconds, and a busy prefill pool's prompts per second.

    A step of a busy server fills the token budget with prompts; a long prompt needs several steps.
    """
    recipe = pools.prefill.recipe
    together = max(recipe.token_budget // prompt_tokens, 1.0)
    ranks = pools.prefill_workers * recipe.data_parallel_size
    return (
        _prompt_seconds(latency, 1.0, prompt_tokens),
        ranks * together / _prompt_seconds(latency, together, prompt_tokens),
    )


def _prompt_seconds(latency: LinearLatency, requests: float, tokens: float) -> float:
    """Return the time in seconds of a step of ``requests`` whole prompts.

    For prompts longer than the token budget, return the time in seconds of all their steps.
    """
    budget = latency.deployment.recipe.token_budget
    cuts = np.arange(0.0, tokens, budget)
    chunks = {"prefill_tokens": np.minimum(tokens - cuts, budget), "prefill_cached": cuts}
    return float(step_seconds(latency, prefill_requests=requests, **chunks).sum())


def _decode_seconds(latency: LinearLatency, batch: float, context: float) -> float:
    """Return the time of a decode step of ``batch`` (at least 1) requests, in seconds."""
    requests = np.array([max(batch, 1.0)])
    return step_seconds(latency, decode_requests=requests, decode_context=context).item()


def pools_table(scores: pd.DataFrame) -> str:
    """Return a Markdown table of errors: all rows, by engine, and by type of decode server."""
    by = ["engine", "model", "gpu", "decode"]
    kinds = scores.assign(decode=np.where(scores["decode_attention_dp_size"] > 1, "DP", "TP"))
    engines = kinds.assign(model="all", gpu="all", decode="all")
    grid = Grid.of("engine", "model", "GPU", "decode ranks", "rows", "TPOT", "TTFT", text=4)
    for table in (engines.assign(engine="all"), engines, kinds):
        for key, part in table.groupby(by):
            measured, predicted = (
                part[[f"{name}tpot_s", f"{name}ttft_s"]].to_numpy().T for name in ("", "network_")
            )
            errors = map(error_summary, predicted, measured)
            grid.add(*map(str, key), str(len(part)), *map(str, errors))
    return grid.markdown()


def main(every: int = 1, checkpoint: Path | None = None, out: Path | None = None) -> None:
    """Print counts of refused rows and the table of errors; use only every ``every``-th row."""
    rows, report = read_disaggregated()
    for reason, count in report.refused.items():
        print(f"{count:6,}  {reason}")
    print(f"{report.accepted:6,}  of {report.read:,} rows are left\n")
    scores = score_pools(rows.iloc[::every], networks(checkpoint))
    print(pools_table(scores))
    if out is not None:
        write_frame(scores, out)


if __name__ == "__main__":
    typer.run(main)
