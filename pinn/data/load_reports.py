"""Runs as inference-perf leaves them: a folder with its config and one report per load stage.

``exp-config.yaml`` (model, tensor_parallelism, max_num_batched_tokens, max_num_seqs,
max_model_len, and any other flag of vLLM by its name) says what served it; the GPU stands nowhere
and has to be given.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from pinn.data.measured_runs import PROMPT_RANGE, WHOLE_RUN, MeasuredRun
from pinn.data.serving_runs import ASSUMED_RELEASE, model_config
from pinn.errors import PinnError
from pinn.simulator.workloads.inference_perf import read_inference_perf
from pinn.simulator.workloads.yaml_file import check, read_mapping
from pinn.specs.catalog import load_model
from pinn.specs.deployment import Deployment
from pinn.specs.documents import read_json
from pinn.specs.flags import given_flags
from pinn.specs.gpu_catalog import load_gpu
from pinn.specs.serving import ServingSpec

_SERVER, _CONFIG = Path("exp-config.yaml"), Path("results") / "config.yaml"
_REMEDY = "give the folder that inference-perf wrote"

#: Figure -> where a stage's report has it: (latency, statistic).
_PLACES = {
    "e2e_mean_s": ("request_latency", "mean"),
    "e2e_p90_s": ("request_latency", "p90"),
    "e2e_p99_s": ("request_latency", "p99"),
    "ttft_mean_s": ("time_to_first_token", "mean"),
    "ttft_p90_s": ("time_to_first_token", "p90"),
    "ttft_p99_s": ("time_to_first_token", "p99"),
}


class _Server(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    model: str
    tensor_parallelism: int = Field(ge=1)
    max_model_len: int = Field(ge=1)
    max_num_batched_tokens: int = Field(ge=1)
    max_num_seqs: int = Field(ge=1)


class _Outcome(BaseModel):
    count: int = Field(ge=0)
    latency: dict[str, dict[str, float] | None] = Field(default_factory=dict)


class _Stage(BaseModel):
    successes: _Outcome
    failures: _Outcome


def is_load_report(path: Path) -> bool:
    """Whether a folder is one that inference-perf wrote."""
    return (path / _SERVER).is_file() and (path / _CONFIG).is_file()


def read_load_report(
    path: Path, gpu: str, model_configs: Path | None = None, seed: int = 0
) -> MeasuredRun:
    """Read one run.

    The generator counts output tokens by tokenizing the text again and finds fewer than were
    generated, so ITL is taken from E2E, TTFT and the requested number of tokens. A server's file
    without ``engine_version`` is taken for one of ``ASSUMED_RELEASE``.

    Args:
        path: The run's folder.
        gpu: Name or datasheet of the GPU that it ran on.
        model_configs: Folder of ``<model>/config.json`` for models that the catalogue lacks.
        seed: Of the arrival times and prompt lengths.

    Raises:
        PinnError: If a file is missing or cannot be used.
    """
    if not is_load_report(path):
        raise PinnError(f"{path} lacks {_SERVER} or {_CONFIG}: {_REMEDY}")
    named = read_mapping(path / _SERVER)
    server = check(_Server, named, path / _SERVER, _REMEDY)
    flags = given_flags(ServingSpec, named, str(path / _SERVER))
    config = read_mapping(path / _CONFIG)
    workload = read_inference_perf(config, path / _CONFIG, seed, PROMPT_RANGE)
    stages = config["load"]["stages"]
    reports = {str(i): _stage(path, i) for i in range(len(stages))}
    if len(reports) == 1:
        reports[WHOLE_RUN] = reports["0"]
    output = int(workload.output_tokens[0])
    deployment = Deployment(
        load_model(model_config(server.model, model_configs), published_as=server.model),
        load_gpu(gpu),
        ServingSpec(
            **{
                "tensor_parallel_size": server.tensor_parallelism,
                "engine_version": ASSUMED_RELEASE,
                **flags,
            }
        ),
        force=True,  # it ran
    )
    return MeasuredRun(
        path.name,
        deployment,
        path.name,
        tuple(float(stage["rate"]) for stage in stages),
        workload,
        {name: _figures(report, output) for name, report in reports.items()},
        {name: _failed_share(report) for name, report in reports.items()},
    )


def _stage(path: Path, index: int) -> _Stage:
    place = path / "results" / f"stage_{index}_lifecycle_metrics.json"
    try:
        values = read_json(place)
    except PinnError as error:
        raise PinnError(f"{error}; {_REMEDY}") from error
    return check(_Stage, values, place, _REMEDY)


def _figures(report: _Stage, output_tokens: int) -> dict[str, float]:
    figures = {}
    for name, (latency, statistic) in _PLACES.items():
        found = report.successes.latency.get(latency)
        if found and statistic in found:
            figures[name] = found[statistic]
    if {"e2e_mean_s", "ttft_mean_s"} <= figures.keys() and output_tokens > 1:
        gap = figures["e2e_mean_s"] - figures["ttft_mean_s"]
        figures["itl_mean_s"] = gap / (output_tokens - 1)
    return figures


def _failed_share(report: _Stage) -> float:
    total = report.successes.count + report.failures.count
    return report.failures.count / total if total else 0.0
