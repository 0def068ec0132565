"""Result of a simulated fleet: its clients' latencies, and its GPUs in use over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from pinn.common import Json, JsonObject
from pinn.common.files import replace_atomically
from pinn.common.numbers import number
from pinn.common.screen import Grid, page, say
from pinn.engines.labels import hardware_label
from pinn.simulator import statistics
from pinn.simulator.fleets.run import FleetRun, gpu_hours, gpu_spans, mean_gpus
from pinn.simulator.fleets.spec import RESEND, FleetSpec
from pinn.simulator.goodput import latencies_s
from pinn.simulator.pools import Pool
from pinn.simulator.report import LATENCIES, print_latencies, served_facts
from pinn.simulator.result import Reported, Served, finite_values, load_facts
from pinn.simulator.run import RequestRecords, Run, write_requests
from pinn.simulator.servers import server_statistics, server_table
from pinn.simulator.statistics import Metrics

if TYPE_CHECKING:
    import pandas as pd

#: ``_PERIODS``: number of rows in the table of metrics over time. ``_BINS``: number of time bins in
#: the plot.
_PERIODS, _BINS = 12, 144
_HOUR_S = 3600.0
_NO_INTERVALS = "prediction errors of whole fleets were never measured"


@dataclass(frozen=True, repr=False, eq=False)
class FleetSimulation(Served):
    """Result of a simulated fleet that serves a workload.

    Attributes:
        found: Records of the fleet's run.
        kinds: Deployment of each kind of server, and its initial number of servers.
        spec: Start-up time, failures and autoscaler.
        about: Description of each kind of server, for the JSON output.
        reported: Latency percentiles to print, and SLO limits to check.
    """

    found: FleetRun
    kinds: Sequence[Pool]
    spec: FleetSpec
    about: Sequence[Mapping[str, Json]] = ()
    reported: Reported = field(default_factory=Reported)

    @property
    def run(self) -> Run:
        """Requests as clients see them, and the steps of all servers."""
        return self.found.run

    @cached_property
    def metrics(self) -> Metrics:
        """Return the clients' metrics, and ``gpu_hours``, ``gpus_mean`` and ``gpus_max``."""
        found = statistics.client_statistics(self.run, None, self.reported.percentiles)
        found |= {
            "gpu_hours": gpu_hours(self.spans),
            "gpus_mean": self._mean,
            "gpus_max": self._most,
        }
        if self.spec.failures:
            found |= {"resent_requests": self.found.resent, "lost_requests": self.found.lost}
        return found

    @cached_property
    def spans(self) -> Float[np.ndarray, "spans 3"]:
        """Return (begin in s, end in s, number of GPUs) of each span in which a server is on."""
        return gpu_spans(self.found, [pool.gpus // pool.engine.replicas for pool in self.kinds])

    @property
    def _end_s(self) -> float:
        return float(self.run.requests.finish_s.max())

    @property
    def _is_long(self) -> bool:
        """Return whether the run is long enough to show its times in hours."""
        return self._end_s >= 4 * _HOUR_S

    @property
    def _mean(self) -> float:
        return _HOUR_S * gpu_hours(self.spans) / self._end_s if self._end_s > 0 else float("nan")

    @property
    def _most(self) -> int:
        moments = np.unique(self.spans[:, 0])
        on = (self.spans[None, :, 0] <= moments[:, None]) & (
            moments[:, None] < self.spans[None, :, 1]
        )
        return int((on * self.spans[None, :, 2]).sum(1).max(initial=0))

    @cached_property
    def servers(self) -> list[Metrics]:
        """Return the metrics of each server, ordered by kind, with ``gpu_hours`` and ``starts``."""
        found: list[Metrics] = []
        first = 0
        for k, run in enumerate(self.found.kinds):
            mine = self.found.kind == k
            records = _of(run.requests, mine, first)
            # ``single`` includes the metrics that are computed only for a single server.
            own = replace(run, requests=records)
            found += server_statistics(own, self.reported.percentiles, single=True)
            first += run.replicas
        for server, metrics in zip(self.found.servers, found, strict=True):
            gpus = self.kinds[server.kind].gpus // self.kinds[server.kind].engine.replicas
            metrics |= {
                "kind": server.kind,
                "starts": len(server.on),
                "gpu_hours": sum(end - begin for begin, end in server.on) * gpus / _HOUR_S,
            }
        return found

    def over_time(self, edges_s: Float[np.ndarray, " edges"]) -> list[Metrics]:
        """Return request rate, GPUs in use, requests that miss the SLO, and TTFT of each period.

        ``edges_s`` are the bounds of the periods, in seconds. A request belongs to the period in
        which it was sent.
        """
        r = self.run.requests
        gpus = mean_gpus(self.spans, edges_s)
        place = np.clip(np.digitize(r.arrival_s, edges_s) - 1, 0, len(edges_s) - 2)
        slo = self.reported.slo
        beyond = None if slo is None or slo.goodput is None else ~slo.met(latencies_s(self.run))
        found = []
        for i in range(len(edges_s) - 1):
            mine = place == i
            done = mine & r.finished
            row: Metrics = {
                "begin_s": float(edges_s[i]),
                "end_s": float(edges_s[i + 1]),
                "rate_per_s": float(mine.sum() / (edges_s[i + 1] - edges_s[i])),
                "gpus_mean": float(gpus[i]),
                "not_served": int((mine & ~r.finished).sum()),
                "ttft_p99_ms": 1e3 * float(np.percentile(r.ttft_s[done], 99))
                if done.any()
                else float("nan"),
            }
            if beyond is not None:
                row["beyond_slo"] = int((mine & beyond).sum())
            found.append(row)
        return found

    @property
    def periods(self) -> list[Metrics]:
        """Return metrics over time: one row per hour, or per twelfth of a shorter load."""
        end = self._end_s
        width = _HOUR_S if self._is_long else end / _PERIODS
        return self.over_time(np.append(np.arange(0.0, end, width), end)) if end > 0 else []

    def to_json(self) -> JsonObject:
        """Return the JSON document that ``pinn simulate --fleet --json`` writes."""
        kinds: list[JsonObject] = [
            {"replicas": pool.engine.replicas, "gpus": pool.gpus, "deployment": about}
            for pool, about in zip(self.kinds, self.about or [{}] * len(self.kinds), strict=True)
        ]
        return finite_values(
            {
                **self.metrics,
                "overloaded": self.overloaded,
                **load_facts(self.run, self.goodput),
                "kinds": kinds,
                "servers": self.servers,
                "over_time": self.periods,
                "gpu_spans": self.spans.tolist(),
                "intervals": {"missing": _NO_INTERVALS},
                "assumptions": self.assumptions,
            }
        )

    @property
    def assumptions(self) -> list[str]:
        """Return the assumptions of a fleet simulation, one clause each."""
        found = ["there is one router, and routing takes no time"]
        if self.spec.failures:
            found.append(
                "requests in flight on a failing server are resent immediately and start again"
                if self.spec.in_flight == RESEND
                else "requests in flight on a failing server are lost"
            )
        if self.spec.failures or self.spec.autoscaler:
            found += [
                "GPU hours include the time when a server starts or drains, but not its downtime",
                "a request waits at the router while no server accepts requests",
            ]
        return found

    def requests(self) -> pd.DataFrame:
        """Return one row per request, with the kind of server that served the request."""
        from pinn.simulator.run import request_table

        found: pd.DataFrame = request_table(self.run).to_pandas()
        return found.assign(kind=self.found.kind)

    def write_requests(self, path: Path) -> None:
        """Write the table of requests to a Parquet file."""
        write_requests(self.run, path, {"kind": self.found.kind})

    def print_report(self) -> None:
        """Print latencies, servers, GPUs over time, and assumptions."""
        if self.goodput is not None:
            say(f"{self.goodput.sentence}.")
        fleet = " + ".join(
            f"{pool.engine.replicas} x {hardware_label(pool.deployment)}" for pool in self.kinds
        )
        model = self.kinds[0].deployment.model.title
        parts = (f"{model} on {fleet}", self.run.workload.name, self.overloaded)
        say(", ".join(filter(None, parts)))
        print_latencies(self.run, self.metrics, LATENCIES, {}, self.reported.shown)
        facts = served_facts(self.run, self.metrics)
        facts["GPUs"] = (
            f"{number(self.metrics['gpu_hours'])} GPU hours; {number(self._mean)} GPUs on average, "
            f"{self._most} at most"
        )
        if self.spec.failures:
            facts["failures"] = f"{self.found.resent:,} requests resent, {self.found.lost:,} lost"
        table = Grid.of("", "", text=2)
        for name, text in facts.items():
            table.add(name, text)
        page().print(table)
        labels = [
            f"{i} {self.kinds[server.kind].deployment.gpu.name}"
            for i, server in enumerate(self.found.servers)
        ]
        page().print(server_table(self.servers, labels))
        if self.spec.autoscaler or self.spec.failures or self.run.workload.stages > 1:
            page().print(self._table())
        say(f"Assumed: {'; '.join(self.assumptions)}.")
        say(f"No intervals: {_NO_INTERVALS}.")

    def _table(self) -> Grid:
        has_slo = self.reported.slo is not None and self.reported.slo.goodput is not None
        hours = self._is_long
        heading = "hour" if hours else "from (s)"
        beyond = ["beyond SLO"] * has_slo
        table = Grid.of(heading, "requests/s", "GPUs", "TTFT p99 (ms)", "not served", *beyond)
        for row in self.periods:
            table.add(
                f"{row['begin_s'] / _HOUR_S:.0f}" if hours else number(row["begin_s"]),
                number(row["rate_per_s"]),
                number(row["gpus_mean"]),
                number(row["ttft_p99_ms"]),
                *(f"{row[name]:,}" for name in ("not_served", "beyond_slo") if name in row),
            )
        return table

    def timeline(self, path: str | Path) -> None:
        """Write a PNG plot of rate, GPUs, TTFT, and requests that miss the SLO over time.

        Raises:
            OSError: If the file cannot be written.
        """
        from matplotlib.figure import Figure

        rows = self.over_time(np.linspace(0.0, self._end_s, _BINS + 1))
        unit_s, unit = (_HOUR_S, "h") if self._is_long else (1.0, "s")
        moments = [row["begin_s"] / unit_s for row in rows]
        has_slo = "beyond_slo" in rows[0]
        missed = {"beyond the SLO": "beyond_slo"} if has_slo else {"not served": "not_served"}
        panels = {
            "requests/s": "rate_per_s", "GPUs": "gpus_mean", "TTFT p99 (ms)": "ttft_p99_ms",
            **missed,
        }  # fmt: skip
        figure = Figure(figsize=(11, 2.1 * len(panels)), layout="constrained")
        axes = figure.subplots(len(panels), 1, sharex=True)
        for axis, (label, name) in zip(axes, panels.items(), strict=True):
            axis.step(moments, [row[name] for row in rows], where="post")
            axis.set_ylabel(label)
            axis.set_ylim(bottom=0)
            axis.grid(alpha=0.25)
        axes[-1].set_xlabel(f"time ({unit})")
        figure.suptitle(f"{self.run.workload.name}: {number(self.metrics['gpu_hours'])} GPU hours")
        replace_atomically(Path(path), lambda to: figure.savefig(to, format="png", dpi=110))


def _of(records: RequestRecords, mine: np.ndarray, first_rank: int) -> RequestRecords:
    """Return the records of the requests selected by mask ``mine``: those of one kind of server.

    Replicas are numbered from 0; ``first_rank`` is the index of the kind's first replica.
    """
    columns = {
        name: value[mine] if np.ndim(value) else value for name, value in vars(records).items()
    }
    return RequestRecords(**columns | {"replica": columns["replica"] - first_rank})
