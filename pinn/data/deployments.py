"""From a row of observations or serving runs to the deployment that was measured."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any

import pandas as pd

from pinn.data.engine_scripts import WAIT_SHARE
from pinn.specs.catalog import load_model
from pinn.specs.deployment import Deployment
from pinn.specs.gpu_catalog import load_gpu
from pinn.specs.precision_override import with_precision
from pinn.specs.sampling import GREEDY
from pinn.specs.serving import SGLANG, TRTLLM, VLLM, ServingSpec

Row = Mapping[Hashable, Any] | pd.Series

#: Rows whose requests waited for memory are refused, so any share will do that holds the others.
MEMORY_SHARE = {SGLANG: 0.97, TRTLLM: 0.97}
#: Builds that are no release, such as gpt-oss-dev, get the defaults of the table's own release.
RELEASE = re.compile(r"\d+\.\d+")


def observed_deployment(row: Row) -> Deployment:
    """The deployment of a row of :func:`pinn.data.table.read_observations`.

    The benchmark turns prefix caching off, asks for temperature 0 (as vLLM's own did when it was
    made of that), and leaves the other flags at their defaults. Equal rows share one object.

    Raises:
        PinnError: If the model, the GPU or the precision is unknown, or they do not fit together.
    """
    return _observed(
        str(row["model"]),
        str(row["gpu"]),
        str(row["precision"]),
        int(row["tensor_parallel_size"]),
        int(row["data_parallel_size"]),
        bool(row["enable_expert_parallel"]),
        str(row["kv_cache_dtype"]),
        int(row["max_num_batched_tokens"]),
        int(row["max_cudagraph_capture_size"]),
        str(row["moe_backend"]),
        int(row["poll_interval"]),
        int(row["prompt_wait_steps"]),
        str(row["engine"]),
        "" if row["engine"] == VLLM else str(row["engine_version"]),
    )


def observed_deployments(rows: pd.DataFrame) -> dict[str, Deployment]:
    """Deployments of observations by row id."""
    return {str(row["row_id"]): observed_deployment(row) for _, row in rows.iterrows()}


def run_deployment(row: Row) -> Deployment:
    """The deployment of a row of :func:`pinn.data.serving_runs.read_serving_runs`.

    The number formats are those of the model's config. The load generator asks for no sampling
    settings, so the model's own hold. Equal rows share one object.

    Raises:
        PinnError: If the model or the GPU is unknown, or they do not fit together.
    """
    return _run(
        str(row["config"]),
        str(row["model"]),
        str(row["gpu"]),
        int(row["tensor_parallel_size"]),
        int(row["max_num_batched_tokens"]),
        _given(row["max_num_seqs"]),
        _given(row["max_model_len"]),
    )


def _given(value: float) -> int | None:
    return None if pd.isna(value) else int(value)


@cache
def _observed(
    model: str,
    gpu: str,
    precision: str,
    tp: int,
    dp: int,
    expert_parallel: bool,
    kv_cache_dtype: str,
    max_num_batched_tokens: int,
    max_cudagraph_capture_size: int,
    moe_backend: str,
    poll_interval: int,
    prompt_wait_steps: int,
    engine: str,
    engine_version: str,
) -> Deployment:
    own: dict[str, Any]
    if engine == VLLM:
        own = {
            "tensor_parallel_size": tp,
            "data_parallel_size": dp,
            "enable_expert_parallel": expert_parallel,
        }
    else:
        own = {
            "engine": engine,
            "engine_version": engine_version if RELEASE.match(engine_version) else "",
            "tensor_parallel_size": tp * dp,
            "enable_dp_attention": dp > 1,
            "ep_size": tp * dp if expert_parallel else 1,
            "cudagraph_padding": True,
            "gpu_memory_utilization": MEMORY_SHARE[engine],
        }
        if engine == SGLANG:
            polling = {"scheduler_recv_interval": poll_interval} if poll_interval > 1 else {}
            own |= {"data_parallel_size": dp} | polling
        elif prompt_wait_steps and dp > 1:
            own["attention_dp_timeout_iters"] = prompt_wait_steps
        elif prompt_wait_steps:
            own["batch_wait_timeout_iters"] = prompt_wait_steps
            own["batch_wait_max_tokens_ratio"] = WAIT_SHARE
    return Deployment(
        model=with_precision(load_model(model), precision),
        gpu=load_gpu(gpu),
        serving=ServingSpec(
            enable_prefix_caching=False,
            kv_cache_dtype=kv_cache_dtype,
            max_num_batched_tokens=max_num_batched_tokens,
            max_cudagraph_capture_size=max_cudagraph_capture_size,
            moe_backend=moe_backend,
            override_generation_config=GREEDY,
            **own,
        ),
    )


@cache
def _run(
    config: str,
    name: str,
    gpu: str,
    tp: int,
    max_num_batched_tokens: int,
    max_num_seqs: int | None,
    max_model_len: int | None,
) -> Deployment:
    return Deployment(
        model=load_model(config, published_as=name),
        gpu=load_gpu(gpu),
        serving=ServingSpec(
            tensor_parallel_size=tp,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
        ),
    )
