"""From a row of observations or serving runs to the deployment that was measured."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any

import pandas as pd

from pinn.sources.serving_runs import MAX_MODEL_LEN, MAX_NUM_SEQS
from pinn.specs.catalog import load_model
from pinn.specs.deployment import Deployment
from pinn.specs.gpu_catalog import load_gpu
from pinn.specs.precision_override import with_precision
from pinn.specs.sampling import GREEDY
from pinn.specs.serving import ServingSpec

Row = Mapping[Hashable, Any] | pd.Series

#: Engines that size their KV cache by other rules than vLLM's share of memory; the simulator's
#: estimate of vLLM's activations is too high for them. Rows whose requests waited for memory are
#: refused, so any share will do that holds the rest.
MEMORY_SHARE = {"sglang": 0.98, "trtllm": 0.98}


def observed_deployment(row: Row) -> Deployment:
    """The deployment of a row of :func:`pinn.observations.table.read_observations`.

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
        MEMORY_SHARE.get(str(row["engine"]), ServingSpec.gpu_memory_utilization),
    )


def observed_deployments(rows: pd.DataFrame) -> dict[str, Deployment]:
    """Deployments of observations by row id."""
    return {str(row["row_id"]): observed_deployment(row) for _, row in rows.iterrows()}


def run_deployment(row: Row) -> Deployment:
    """The deployment of a row of :func:`pinn.sources.serving_runs.read_serving_runs`.

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
    )


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
    memory_share: float,
) -> Deployment:
    return Deployment(
        model=with_precision(load_model(model), precision),
        gpu=load_gpu(gpu),
        serving=ServingSpec(
            tensor_parallel_size=tp,
            data_parallel_size=dp,
            enable_expert_parallel=expert_parallel,
            enable_prefix_caching=False,
            gpu_memory_utilization=memory_share,
            kv_cache_dtype=kv_cache_dtype,
            max_num_batched_tokens=max_num_batched_tokens,
            max_cudagraph_capture_size=max_cudagraph_capture_size,
            override_generation_config=GREEDY,
        ),
    )


@cache
def _run(config: str, name: str, gpu: str, tp: int, max_num_batched_tokens: int) -> Deployment:
    return Deployment(
        model=load_model(config, published_as=name),
        gpu=load_gpu(gpu),
        serving=ServingSpec(
            tensor_parallel_size=tp,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=MAX_NUM_SEQS,
            max_model_len=MAX_MODEL_LEN,
        ),
    )
