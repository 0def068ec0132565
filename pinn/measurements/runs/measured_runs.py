"""Measured serving runs from CSV files and inference-perf reports, as deployments with loads."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from pinn.common.documents import read_json
from pinn.common.files import ReadReport
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.measurements.deployments import measured as deployments
from pinn.measurements.runs import serving_runs
from pinn.simulator.metric_features import WHOLE_RUN
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.load import load_workload
from pinn.simulator.workloads.workload import PromptGroups, Workload, shared_prefix
from pinn.simulator.workloads.yaml_spec import check, read_inference_perf, read_mapping
from pinn.specs.catalog import load_model
from pinn.specs.flags import given_flags
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec

# Measured serving runs: the deployment, its load, and the metrics measured by clients.

#: Keys (latency, statistic) in inference-perf's report of a stage, by metric.
_PLACES = {
    f"{name}_{statistic}_s": (latency, statistic)
    for name, latency in (("e2e", "request_latency"), ("ttft", "time_to_first_token"))
    for statistic in ("mean", "p90", "p99")
}
#: Names of the metrics that clients measure in a load stage, in seconds. ITL here is (E2E - TTFT) /
#: (output tokens - 1).
FIGURES = (*_PLACES, "itl_mean_s")

#: Range of the ratio of actual to nominal prompt lengths. According to load generators' reports, a
#: server's tokenizer yields 2 to 5 % more tokens than the length to which the generator cut the
#: text.
PROMPT_RANGE = (1.02, 1.05)

#: Pause of the load generator between two load stages, in seconds (default of ``load.interval`` in
#: inference-perf).
STAGE_GAP_S = 1.0


@dataclass(frozen=True)
class MeasuredRun:
    """Measured serving run: deployment, load, and latencies that clients measured.

    Attributes:
        name: Name of the run in its source.
        deployment: Deployment that was measured.
        load_name: Name of the run's load.
        rates_per_s: Mean request rate of each load stage, in requests per second.
        workload: Requests that clients sent.
        measured: Latencies in seconds by load stage (``0``, ``1``, ...; ``all`` for the whole run)
            and by metric, for the metrics in ``FIGURES`` that the source contains.
        failed_share: Share of requests that failed, by load stage; 0 if the source does not specify
            it.
    """

    name: str
    deployment: Deployment
    load_name: str
    rates_per_s: tuple[float, ...]
    workload: Workload
    measured: Mapping[str, Mapping[str, float]]
    failed_share: Mapping[str, float]

    @property
    def stages(self) -> tuple[str, ...]:
        """Return the names of the measured load stages (``0``, ``1``, ...), in order."""
        return tuple(sorted(stage for stage in self.measured if stage != WHOLE_RUN))


def read_measured_runs(
    path: Path, model_configs: Path | None = None, seed: int = 0
) -> tuple[tuple[MeasuredRun, ...], ReadReport]:
    """Read measured serving runs from a CSV file (``pinn.measurements.runs.serving_runs``).

    The column ``workload`` names built-in loads, or workload files relative to the CSV's folder.

    Args:
        path: CSV file, or a folder with exactly one CSV file.
        model_configs: Folder of ``<model>/config.json`` for models that are not in the catalog.
        seed: Seed of the arrival times and prompt lengths.

    Raises:
        PinnError: If the file is missing or invalid.
    """
    file = csv_of(path)
    workloads = serving_runs.find_workloads(file)
    rows, report = serving_runs.read_serving_runs(file, model_configs, workloads)
    runs = [
        _run(name, of_run, workloads[str(of_run["workload"].iloc[0])], seed)
        for name, of_run in rows.groupby("run", sort=True)
    ]
    return tuple(runs), report


def csv_of(path: Path) -> Path:
    """Return the file itself, or the only CSV file of a folder.

    Raises:
        PinnError: If the folder has no CSV file or several.
    """
    if not path.is_dir():
        return path
    found = sorted(path.glob("*.csv"))
    if len(found) != 1:
        raise PinnError(
            f"the folder {path} has {len(found)} CSV files, expected one: give the path of a file"
        )
    return found[0]


def _run(name: object, rows: pd.DataFrame, load: serving_runs.Workload, seed: int) -> MeasuredRun:
    first = rows.iloc[0]
    rates_per_s = [stage.rate_per_s for stage in load.stages]
    for row in rows[rows["stage"] != WHOLE_RUN].to_dict("records"):
        rates_per_s[int(row["stage"])] = float(row["rate_per_s"])
    measured = {
        str(row["stage"]): {figure: float(row[figure]) for figure in FIGURES}
        for row in rows.to_dict("records")
    }
    return MeasuredRun(
        str(name),
        deployments.run_deployment(first),
        load.name,
        tuple(rates_per_s),
        load_workload(load.file, seed) if load.file is not None else sent_workload(load, seed),
        measured,
        dict.fromkeys(measured, 0.0),
    )


def sent_workload(load: serving_runs.Workload, seed: int = 0) -> Workload:
    """Return the load generator's requests: Poisson arrivals of prompts that repeat.

    A stage begins when all requests of the previous stage have ended.
    """
    shared, own = load.shared_prefix_tokens, load.prompt_tokens - load.shared_prefix_tokens
    prompts = PromptGroups(load.groups, load.prompts_per_group, shared, own, PROMPT_RANGE)
    stages = [Stage(stage.rate_per_s, stage.duration_s) for stage in load.stages]
    return shared_prefix(
        stages, prompts, load.output_tokens, stage_gap_s=STAGE_GAP_S, seed=seed, name=load.name
    )


# Runs of inference-perf: a folder with its config and one report per load stage.
#
# ``exp-config.yaml`` describes the server: model, tensor_parallelism, max_num_batched_tokens,
# max_num_seqs, max_model_len, and any other flag of vLLM by its name. No file states the GPU, so
# the user must specify it.

_SERVER, _CONFIG = Path("exp-config.yaml"), Path("results") / "config.yaml"
_REMEDY = "give the folder that inference-perf wrote"


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
    """Return whether a folder contains the files of an inference-perf run."""
    return (path / _SERVER).is_file() and (path / _CONFIG).is_file()


def read_load_report(
    path: Path, gpu: str, model_configs: Path | None = None, seed: int = 0
) -> MeasuredRun:
    """Read one run of the load generator inference-perf.

    The generator re-tokenizes the text and counts fewer output tokens than were generated. ITL is
    therefore computed from E2E, TTFT and the requested number of output tokens. If the files do not
    specify ``engine_version``, the server is assumed to run vLLM ``ASSUMED_RELEASE``.

    Args:
        path: Folder of the run.
        gpu: Name or datasheet of the GPU.
        model_configs: Folder of ``<model>/config.json`` for models that are not in the catalog.
        seed: Seed of the arrival times and prompt lengths.

    Raises:
        PinnError: If a file is missing or invalid.
    """
    if not is_load_report(path):
        raise PinnError(f"the folder {path} lacks {_SERVER} or {_CONFIG}: {_REMEDY}")
    named = read_mapping(path / _SERVER)
    server = check(_Server, named, path / _SERVER, _REMEDY)
    flags = given_flags(ServingSpec, named, str(path / _SERVER))
    sent = read_mapping(path / _CONFIG)
    workload = read_inference_perf(sent, path / _CONFIG, seed, PROMPT_RANGE)
    stages = sent["load"]["stages"]
    reports = {str(i): _stage(path, i) for i in range(len(stages))}
    if len(reports) == 1:
        reports[WHOLE_RUN] = reports["0"]
    output = int(workload.output_tokens[0])
    flags.setdefault("tensor_parallel_size", server.tensor_parallelism)
    flags.setdefault("engine_version", serving_runs.ASSUMED_RELEASE)
    config = serving_runs.model_config(server.model, model_configs)
    model = load_model(config, published_as=server.model)
    # Skip compatibility checks, because the measured deployment is known to run.
    deployment = Deployment(model, load_gpu(gpu), ServingSpec(**flags), force=True)
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
