"""From a row of observations or serving runs to the deployment that was measured."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any

import pandas as pd

from pinn.data.launch_facts import SERVING_FLAGS
from pinn.specs.catalog import load_model
from pinn.specs.deployment import Deployment
from pinn.specs.flags import given_flags
from pinn.specs.gpu_catalog import load_gpu
from pinn.specs.precision_override import with_precision
from pinn.specs.sampling import GREEDY
from pinn.specs.serving import SGLANG, VLLM, ServingSpec

Row = Mapping[Hashable, Any] | pd.Series

#: Builds that are no release, such as gpt-oss-dev, get the defaults of the table's own release.
RELEASE = re.compile(r"\d+\.\d+")


def observed_deployment(row: Row) -> Deployment:
    """The deployment of a row of :func:`pinn.data.table.read_observations`.

    Every flag is the row's; an empty one was not passed and is the default of the row's release.
    The benchmark asks for temperature 0 (as vLLM's own did when it was made of that). Equal rows
    share one object.

    Raises:
        PinnError: If the model, the GPU, the precision or a flag is unknown, or they do not fit
            together.
    """
    passed = tuple((name, str(row[name])) for name in SERVING_FLAGS if row.get(name, "") != "")
    version = str(row["engine_version"])
    return _observed(
        str(row["model"]),
        str(row["gpu"]),
        str(row["precision"]),
        int(row["tensor_parallel_size"]),
        int(row["data_parallel_size"]),
        bool(row["enable_expert_parallel"]),
        str(row["engine"]),
        version if RELEASE.match(version) else "",
        passed,
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
        str(row["engine_version"]),
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
    engine: str,
    engine_version: str,
    passed: tuple[tuple[str, str], ...],
) -> Deployment:
    layout: dict[str, Any]
    if engine == VLLM:
        layout = {
            "tensor_parallel_size": tp,
            "data_parallel_size": dp,
            "enable_expert_parallel": expert_parallel,
        }
    else:
        layout = {
            "tensor_parallel_size": tp * dp,
            "data_parallel_size": dp if engine == SGLANG else 1,
            "enable_dp_attention": dp > 1,
            "ep_size": tp * dp if expert_parallel else 1,
        }
    return Deployment(
        model=with_precision(load_model(model), precision),
        gpu=load_gpu(gpu),
        serving=ServingSpec(
            engine=engine,
            engine_version=engine_version,
            override_generation_config=GREEDY,
            **layout,
            **given_flags(ServingSpec, dict(passed), f"a row of {model} on {gpu}"),
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
    engine_version: str,
) -> Deployment:
    return Deployment(
        model=load_model(config, published_as=name),
        gpu=load_gpu(gpu),
        serving=ServingSpec(
            tensor_parallel_size=tp,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            engine_version=engine_version,
        ),
    )
