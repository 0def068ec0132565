"""Measured serving runs: what ran, what was sent and what its clients saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pinn.data.deployments import run_deployment
from pinn.data.serving_runs import Workload as Load
from pinn.data.serving_runs import read_serving_runs, workload_names
from pinn.data.workload_files import find_workloads
from pinn.errors import PinnError
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.load import load_workload
from pinn.simulator.workloads.synthetic import shared_prefix
from pinn.simulator.workloads.workload import Workload
from pinn.specs.deployment import Deployment
from pinn.specs.files.read_report import ReadReport

#: Key of the whole run beside its stages ``0``, ``1``, ...
WHOLE_RUN = "all"

#: What clients report of a stage, in seconds. ITL is (E2E - TTFT) / (output tokens - 1).
FIGURES = (
    "e2e_mean_s",
    "e2e_p90_s",
    "e2e_p99_s",
    "ttft_mean_s",
    "ttft_p90_s",
    "ttft_p99_s",
    "itl_mean_s",
)

#: Tokenizers make 2 to 5 % more tokens of a text than it was cut to, as the prompt lengths of load
#: generators' reports show beside what was asked for; where in between is not known.
PROMPT_RANGE = (1.02, 1.05)

#: The load generator's pause between stages (inference-perf, ``load.interval``: 1 by default).
STAGE_GAP_S = 1.0


@dataclass(frozen=True)
class MeasuredRun:
    """A serving run.

    Attributes:
        name: Name in its source.
        deployment: What ran.
        load_name: Name of its load.
        rates_per_s: Mean rate of each stage.
        workload: What clients sent.
        measured: Stage (``0``, ``1``, ... and ``all``) -> figure -> seconds; names of ``FIGURES``,
            those that the source has.
        failed_share: Stage -> share of requests that failed; 0 where the source tells nothing.
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
        """The load stages that were measured, in order."""
        return tuple(sorted(stage for stage in self.measured if stage != WHOLE_RUN))


def read_measured_runs(
    path: Path, model_configs: Path | None = None, seed: int = 0, engine_version: str = ""
) -> tuple[tuple[MeasuredRun, ...], ReadReport]:
    """Read a CSV of serving runs, see ``pinn.data.serving_runs``.

    Its column ``workload`` names built-in loads, or workload files from the CSV's folder on.

    Args:
        path: The file, or a folder that holds just one CSV.
        model_configs: Folder of ``<model>/config.json`` for models that the catalogue lacks.
        seed: Of the arrival times and prompt lengths.
        engine_version: vLLM's release where the CSV names none, see ``read_serving_runs``.

    Raises:
        PinnError: If the file cannot be used.
    """
    file = csv_of(path)
    workloads = find_workloads(workload_names(file), file.parent)
    rows, report = read_serving_runs(file, model_configs, workloads, engine_version)
    runs = [
        _run(name, of_run, workloads[str(of_run["workload"].iloc[0])], seed)
        for name, of_run in rows.groupby("run", sort=True)
    ]
    return tuple(runs), report


def csv_of(path: Path) -> Path:
    """The file itself, or the only CSV of a folder.

    Raises:
        PinnError: If the folder holds none or several.
    """
    if not path.is_dir():
        return path
    found = sorted(path.glob("*.csv"))
    if len(found) != 1:
        raise PinnError(f"{path} holds {len(found)} CSV files: name the one of the serving runs")
    return found[0]


def _run(name: object, rows: pd.DataFrame, load: Load, seed: int) -> MeasuredRun:
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
        run_deployment(first),
        load.name,
        tuple(rates_per_s),
        load_workload(load.file, seed) if load.file is not None else sent_workload(load, seed),
        measured,
        dict.fromkeys(measured, 0.0),
    )


def sent_workload(load: Load, seed: int = 0) -> Workload:
    """What the load generator sends: stages of exponential gaps over a hundred repeating prompts.

    A stage opens when every request of the one before has ended.
    """
    return shared_prefix(
        [Stage(stage.rate_per_s, stage.duration_s) for stage in load.stages],
        groups=load.groups,
        prompts_per_group=load.prompts_per_group,
        shared_tokens=load.shared_prefix_tokens,
        question_tokens=load.prompt_tokens - load.shared_prefix_tokens,
        output_tokens=load.output_tokens,
        prompt_range=PROMPT_RANGE,
        stages_wait=True,
        stage_gap_s=STAGE_GAP_S,
        seed=seed,
        name=load.name,
    )
