"""Measured deployments and loads, from rows of two tables: observations and serving runs."""

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pandas as pd

from pinn.engines.deployment import Deployment
from pinn.measurements.benchmarks.inferencex import LENGTH_RANGE
from pinn.measurements.deployments.launch_facts import SERVING_FLAGS, UNKNOWN
from pinn.simulator.workloads.workload import Workload, closed_loop
from pinn.specs.catalog import load_model
from pinn.specs.flags import FlagValue, given_flags, specified
from pinn.specs.gpu import load_gpu
from pinn.specs.model import GREEDY
from pinn.specs.model_variants import with_precision
from pinn.specs.serving import SGLANG, VLLM, ServingSpec

# Row of the table of observations or of serving runs, which describes a deployment.

Row = Mapping[Hashable, Any] | pd.Series
#: Engine flags as pairs of name and value, so that they are hashable.
Flags = tuple[tuple[str, FlagValue], ...]

#: Pattern of an engine release. For builds without a release, such as gpt-oss-dev, the default of
#: the flag ``engine_version`` is assumed.
RELEASE = re.compile(r"\d+\.\d+")


def observed_deployment(row: Row) -> Deployment:
    """Return the deployment of a row of ``observations.read_observations``.

    An empty flag means the default of the row's engine release. Like vLLM's benchmark client, from
    which it is derived, the benchmark requests temperature 0. Equal rows share one object.

    Raises:
        PinnError: If the model, the GPU, the precision or a flag is unknown, or flags are
            incompatible.
    """
    passed = tuple((name, str(row[name])) for name in SERVING_FLAGS if row.get(name, "") != "")
    version = str(row["engine_version"])
    flags = _layout(row) | {"engine_version": version if RELEASE.match(version) else ""}
    names = str(row["model"]), str(row["gpu"]), str(row["precision"])
    return _observed(*names, tuple(flags.items()), passed)


def _layout(row: Row) -> dict[str, FlagValue]:
    """Return the flags for a row's engine and parallelism, as values by flag name."""
    engine, is_expert_parallel = str(row["engine"]), bool(row["enable_expert_parallel"])
    tp, dp = int(row["tensor_parallel_size"]), int(row["data_parallel_size"])
    if engine == VLLM:
        layout = {"tensor_parallel_size": tp, "data_parallel_size": dp}
        return {"engine": engine, **layout, "enable_expert_parallel": is_expert_parallel}
    return {
        "engine": engine,
        "tensor_parallel_size": tp * dp,
        "data_parallel_size": dp if engine == SGLANG else 1,
        "enable_dp_attention": dp > 1,
        "ep_size": tp * dp if is_expert_parallel else 1,
    }


def observed_deployments(rows: pd.DataFrame) -> dict[str, Deployment]:
    """Return a mapping of each observation's row id to its deployment."""
    return {str(row["row_id"]): observed_deployment(row) for _, row in rows.iterrows()}


def run_deployment(row: Row) -> Deployment:
    """Return the deployment of a row of ``serving_runs.read_serving_runs``.

    The number formats are those of the model's config. The load generator sends no sampling
    settings, so those of the model's generation_config.json apply. Equal rows share one object.

    Raises:
        PinnError: If the model or the GPU is unknown, or flags are incompatible.
    """
    sizes = ("tensor_parallel_size", "max_num_batched_tokens", "max_num_seqs", "max_model_len")
    flags: dict[str, FlagValue] = {name: int(row[name]) for name in sizes if not pd.isna(row[name])}
    flags["engine_version"] = str(row["engine_version"])
    names = str(row["config"]), str(row["model"]), str(row["gpu"])
    return _run(*names, tuple(flags.items()))


@cache
def _observed(model: str, gpu: str, precision: str, flags: Flags, passed: Flags) -> Deployment:
    ran = with_precision(load_model(model), precision), load_gpu(gpu)
    given = given_flags(ServingSpec, dict(passed), f"a row of {model} on {gpu}")
    flags_given = {"override_generation_config": GREEDY, **dict(flags), **given}
    return Deployment(*ran, specified(ServingSpec, flags_given))


@cache
def _run(config: str, name: str, gpu: str, flags: Flags) -> Deployment:
    model = load_model(config, published_as=name)
    return Deployment(model, load_gpu(gpu), specified(ServingSpec, dict(flags)))


# Load of a row in the table of observations: its benchmark's closed loop.
#
# Clients keep the stated number of requests in flight and send all first requests at once. Warm-up
# requests have already ended and are not simulated. With a prefix cache, the warm-up leaves one
# cached prompt.

#: Assumed share of GPU memory for SGLang and TensorRT-LLM if the flag is unknown.
_ROOMY_SHARE = 0.97


@dataclass(frozen=True)
class MeasuredDeployment:
    """Row of the table of observations as a deployment, a load and the measured latencies.

    Attributes:
        row_id: Name of the row.
        deployment: Deployment without the flags in ``LOAD_FLAGS``, so that rows that differ only in
            load have equal deployments.
        served: Deployment with all flags, as measured.
        workload: Requests that the clients sent.
        tpot_s: Measured mean time per output token after the first, in seconds.
        ttft_s: Measured mean TTFT, in seconds.
    """

    row_id: str
    deployment: Deployment
    served: Deployment
    workload: Workload
    tpot_s: float
    ttft_s: float

    @property
    def concurrency(self) -> int:
        """Return the number of requests that the clients keep in flight."""
        return self.workload.concurrency or 0


def measured_deployments(observations: pd.DataFrame) -> list[MeasuredDeployment]:
    """Return the rows of a table of observations as measured deployments, in order.

    Args:
        observations: Table of ``observations.read_observations``.
    """
    return [measured_deployment(row) for _, row in observations.iterrows()]


def measured_deployment(row: Row) -> MeasuredDeployment:
    """Return one row of a table of observations as a measured deployment."""
    served = observed_deployment(row)
    if row["facts"] == UNKNOWN:
        served = replace(served, serving=_roomy(served.serving, row))
    shared = replace(served.serving, max_num_seqs=None, max_model_len=None)
    name, clients = str(row["row_id"]), int(row["concurrency"])
    lengths = int(row["prompt_tokens"]), int(row["output_tokens"])
    prompts = int(row["prompts_per_client"]) * clients
    load = closed_loop(clients, prompts, *lengths, length_range=LENGTH_RANGE, name=name)
    times_s = float(row["tpot_s"]), float(row["ttft_s"])
    return MeasuredDeployment(name, replace(served, serving=shared), served, load, *times_s)


def _roomy(serving: ServingSpec, row: Row) -> ServingSpec:
    """Return flags that provide enough KV cache for a row's requests, if its flags are unknown.

    Rows whose requests waited for memory are filtered out, so any sufficient values are correct.
    """
    longest = int(row["prompt_tokens"]) + int(row["output_tokens"])
    share = serving.gpu_memory_utilization if serving.engine == VLLM else _ROOMY_SHARE
    return replace(serving, max_model_len=longest, gpu_memory_utilization=share)
