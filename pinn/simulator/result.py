"""Result of a simulated deployment under a workload: client metrics and their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pinn.common import Json, JsonObject
from pinn.common.screen import PrintedResult, page, printed, say
from pinn.engines.assumptions import assumption_lines
from pinn.engines.deployment import Deployment
from pinn.engines.labels import hardware_label, step_limits
from pinn.simulator.goodput import Goodput, goodput
from pinn.simulator.intervals import Intervals
from pinn.simulator.report import print_report, print_sensitivity
from pinn.simulator.run import Run, plot_timeline, request_table, write_requests
from pinn.simulator.sensitivity import Sensitivity
from pinn.simulator.servers import server_statistics, server_table
from pinn.simulator.slo import Slo
from pinn.simulator.statistics import PERCENTILES, Metrics, overload, run_statistics
from pinn.simulator.steady_state import SteadyState, steady_states

if TYPE_CHECKING:
    import pandas as pd


def finite_values(document: Mapping[str, Json]) -> JsonObject:
    """Return a JSON document in which null replaces NaN and infinity."""
    return {key: _finite(each) for key, each in document.items()}


def _finite(value: Json) -> Json:
    if isinstance(value, Mapping):
        return finite_values(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def load_facts(run: Run, met: Goodput | None) -> JsonObject:
    """Return the JSON values about the load, by key.

    The keys are ``steady_state`` and, if known, ``slo`` and ``reading``.
    """
    reading = run.workload.reading
    found: JsonObject = {"steady_state": [each.to_json() for each in steady_states(run)]}
    if met is not None:
        found["slo"] = met.to_json()
    if reading is not None:
        found["reading"] = {"accepted": reading.accepted, **asdict(reading)}
    return found


@dataclass(frozen=True)
class Reported:
    """Options of a simulation's report.

    Attributes:
        percentiles: Latency percentiles to print; default percentiles if empty.
        slo: Limits on latencies to check; None if there is no SLO.
    """

    percentiles: tuple[float, ...] = ()
    slo: Slo | None = None

    @property
    def shown(self) -> tuple[float, ...]:
        """Latency percentiles to print."""
        return self.percentiles or PERCENTILES

    def goodput(self, run: Run) -> Goodput | None:
        """Return the number and share of requests that meet the SLO; None without an SLO."""
        return None if self.slo is None else goodput(run, self.slo)


class Served(PrintedResult):
    """Simulation result of one server, two pools or a fleet under a load.

    Attributes:
        run: Requests as clients see them.
        reported: Percentiles to print, and limits to check.
    """

    reported: Reported

    if TYPE_CHECKING:

        @property
        def run(self) -> Run: ...  # noqa: D102

        def print_report(self) -> None: ...  # noqa: D102

    @cached_property
    def goodput(self) -> Goodput | None:
        """Number and share of requests that meet the SLO; None if there is no SLO."""
        return self.reported.goodput(self.run)

    @property
    def overloaded(self) -> str | None:
        """Sentence about servers that could not keep up with the load; None if they could."""
        return overload(self.run)

    def __str__(self) -> str:
        """Return the report that ``pinn simulate`` prints."""
        return printed(self.print_report)


_ENDS = "90 % intervals: from simulations at the bounds of step time and KV cache size."


@dataclass(frozen=True, repr=False, eq=False)
class Simulation(Served):
    """Result of a simulated deployment that serves a workload.

    Attributes:
        deployment: Deployment of the servers.
        run: Records of every request and step.
        intervals: Prediction intervals of the metrics; None if unknown.
        sensitivity: Sensitivity of a metric to the coefficients; None if not requested.
        about: Description of deployment and load for the JSON output.
        reported: Percentiles to print, and limits to check.
        calibrated: Whether the coefficients are calibrated to measurements of a server.
    """

    deployment: Deployment
    run: Run
    intervals: Intervals | None = None
    sensitivity: Sensitivity | None = None
    about: Mapping[str, Json] = field(default_factory=dict)
    reported: Reported = field(default_factory=Reported)
    calibrated: bool = False

    @cached_property
    def metrics(self) -> Metrics:
        """Return the metrics of latency (TTFT, TPOT, ITL, E2E), throughput, queueing and cache."""
        return run_statistics(self.run, None, self.reported.percentiles)

    @cached_property
    def stages(self) -> list[Metrics]:
        """Return the client-side metrics of each load stage."""
        stages = range(self.run.workload.stages)
        return [run_statistics(self.run, stage, self.reported.percentiles) for stage in stages]

    @cached_property
    def servers(self) -> list[Metrics]:
        """Return the metrics of each server; an empty list if there is one server."""
        return server_statistics(self.run, self.reported.percentiles)

    @cached_property
    def steady_states(self) -> list[SteadyState]:
        """Return the time span in which each load stage is in a steady state."""
        return steady_states(self.run)

    @cached_property
    def figures(self) -> JsonObject:
        """Return the result for JSON: metrics, ``stages``, ``slo``, ``intervals`` and more."""
        found: JsonObject = {**self.metrics, "stages": self.stages, "overloaded": self.overloaded}
        found |= load_facts(self.run, self.goodput)
        if self.servers:
            found["servers"] = self.servers
        if self.intervals is not None:
            found["intervals"] = self.intervals.to_json()
        if self.sensitivity is not None:
            found["sensitivity"] = self.sensitivity.to_json()
        return finite_values(found)

    def to_json(self) -> JsonObject:
        """Return the JSON document that ``pinn simulate --json`` writes."""
        return {**finite_values(self.about), **self.figures}

    def requests(self) -> pd.DataFrame:
        """Return one row per request: status, tokens, and the times of its events in seconds."""
        found: pd.DataFrame = request_table(self.run).to_pandas()
        return found

    def write_requests(self, path: Path) -> None:
        """Write the table of requests to a Parquet file."""
        write_requests(self.run, path)

    def timeline(self, path: str | Path) -> None:
        """Write a PNG plot of the run over time."""
        plot_timeline(self.run, Path(path))

    def print_report(self) -> None:
        """Print metrics, intervals and sensitivities as text."""
        parts = (
            f"{self.deployment.model.title} on {hardware_label(self.deployment)}",
            step_limits(self.deployment),
            self.run.workload.name,
            self.overloaded,
        )
        if self.goodput is not None:
            say(f"{self.goodput.sentence}.")
        say(", ".join(filter(None, parts)))
        for line in assumption_lines(self.deployment, self.calibrated):
            say(line)
        if self.run.workload.reading is not None:
            say(f"{self.run.workload.reading}.")
        ends = self.intervals.figures if self.intervals else {}
        print_report(self.run, self.metrics, ends, self.reported.shown)
        if self.servers:
            page().print(server_table(self.servers))
        for line in self._trust_lines():
            say(line)
        if self.sensitivity is not None:
            print_sensitivity(self.sensitivity)

    def _trust_lines(self) -> list[str]:
        """Return sentences about the reliability of the prediction."""
        found = self.intervals
        if found is None:
            return []
        if found.missing:
            return [f"No intervals: {found.missing}."]
        lines = [_ENDS, *self._edge_lines()]
        served = self.metrics["completed_requests"] / max(self.metrics["injected_requests"], 1)
        if found.slow_end_unserved > 1 - served:
            share = f"{100 * found.slow_end_unserved:.0f} %"
            lines.append(
                f"With step times at the upper bound of their interval, {share} of the requests "
                f"are not served in time."
            )
        return [*lines, str(found.distance["sentence"])]

    def _edge_lines(self) -> list[str]:
        """Return a warning if the run needs more KV cache than a real server may have; else []."""
        ends = self.intervals.kv_blocks if self.intervals else None
        held, blocks = round(self.metrics["kv_usage_max"] * self.run.kv_blocks), self.run.kv_blocks
        if ends is None or held <= ends[0]:
            return []
        return [
            f"The KV cache is nearly full: the run uses {held:,} of {blocks:,} predicted blocks; "
            f"a real server may have {ends[0]:,} to {ends[1]:,} blocks."
        ]
