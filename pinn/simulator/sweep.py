"""Simulation of a load at several rates: metrics at each rate, and the highest rate served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pinn.common import JsonObject
from pinn.common.files import replace_atomically
from pinn.common.numbers import fixed
from pinn.common.screen import Grid, PrintedResult, page, printed, say
from pinn.simulator.goodput import Goodput
from pinn.simulator.result import Reported, finite_values
from pinn.simulator.statistics import Metrics, percentile_name
from pinn.units import MILLISECOND

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Served(Protocol):
    """Interface of the simulation result of a load at one request rate."""

    @property
    def metrics(self) -> Metrics:
        """Metrics that clients see."""

    @property
    def reported(self) -> Reported:
        """Latency percentiles to print, and SLO limits to check."""

    @property
    def goodput(self) -> Goodput | None:
        """Number and share of requests that meet the SLO; None if there is no SLO."""

    @property
    def overloaded(self) -> str | None:
        """Sentence about a server that could not keep up with the load; None if it could."""

    def to_json(self) -> JsonObject:
        """Return the JSON document of the result."""


@dataclass(frozen=True, repr=False, eq=False)
class RateSweep(PrintedResult):
    """Results of a load at several request rates.

    Attributes:
        rates_per_s: Request rates in requests per second, ascending.
        runs: Simulation result at each rate.
    """

    rates_per_s: Sequence[float]
    runs: Sequence[Served]

    @property
    def highest_rate_per_s(self) -> float | None:
        """Maximum rate up to which the server meets the SLO or, without an SLO, keeps up."""
        met = None
        for rate, run in zip(self.rates_per_s, self.runs, strict=True):
            if not _holds(run):
                break
            met = rate
        return met

    @property
    def _decided(self) -> bool:
        """Whether the highest rate is determined by an SLO, not by whether the server keeps up."""
        return any(run.goodput and run.goodput.met is not None for run in self.runs)

    @property
    def answer(self) -> str:
        """Sentence about the highest rate that the server can serve."""
        rates = ", ".join(f"{rate:g}" for rate in self.rates_per_s)
        highest = self.highest_rate_per_s
        does, up_to = ("meets the SLO", " up to") if self._decided else ("keeps up", " with")
        if highest is None and self._decided:
            return f"The server does not meet the SLO at any of {rates} requests/s"
        if highest is None:
            return f"The server does not keep up at any of {rates} requests/s"
        last = ", the highest" if highest == self.rates_per_s[-1] else ""
        return f"The server {does}{up_to} {highest:g} requests/s{last} of {rates}"

    @property
    def table(self) -> list[dict[str, float]]:
        """Metrics at each request rate, including ``rate_per_s`` and ``slo_attainment``."""
        return [
            {"rate_per_s": rate, **run.metrics}
            | ({"slo_attainment": run.goodput.attainment} if run.goodput else {})
            for rate, run in zip(self.rates_per_s, self.runs, strict=True)
        ]

    def to_json(self) -> JsonObject:
        """Return the JSON document that ``pinn simulate --json`` writes."""
        return finite_values(
            {
                "answer": self.answer,
                "highest_rate_per_s": self.highest_rate_per_s,
                "rates_per_s": list(self.rates_per_s),
                "runs": [run.to_json() for run in self.runs],
            }
        )

    def print_report(self) -> None:
        """Print the highest rate that the server can serve, and one row per rate."""
        say(f"{self.answer}.")
        on_each = any(run.goodput and run.goodput.each for run in self.runs)
        columns = [*self._latencies(("ttft", "tpot"), (99,)), ("E2E", "e2e_mean_ms")]
        ends = [*["within limits"] * on_each, "SLO met" if self._decided else "keeps up"]
        table = Grid.of("rate", "served/s", "tokens/s", *(name for name, _ in columns), *ends)
        for rate, run in zip(self.rates_per_s, self.runs, strict=True):
            found, met = run.metrics, run.goodput
            shares = [f"{100 * met.attainment:.1f} %"] if met and on_each else []
            speeds = fixed(found["responses_per_sec"]), f"{found['tokens_per_sec']:,.0f}"
            times = [fixed(found[key]) for _, key in columns]
            table.add(f"{rate:g}", *speeds, *times, *shares, "yes" if _holds(run) else "no")
        page().print(table)
        say("Rates in requests/s; latencies in ms, mean and percentiles.")
        for rate, run in zip(self.rates_per_s, self.runs, strict=True):
            if run.goodput is not None:
                say(f"At {rate:g} requests/s: {run.goodput.sentence}.")

    def _latencies(
        self, metrics: Sequence[str], percentiles: Sequence[float]
    ) -> list[tuple[str, str]]:
        """Return the heading and the metric's name for each latency column of the table.

        Each latency has a column for its mean, and one for each requested or default percentile.
        """
        shown = [percentile_name(p) for p in self.runs[0].reported.percentiles or percentiles]
        return [
            (name.upper() if of_all == "mean" else of_all, f"{name}_{of_all}_ms")
            for name in metrics
            for of_all in ("mean", *shown)
        ]

    def plot(self, path: str | Path) -> None:
        """Write a PNG plot of latencies, throughput and SLO attainment over the rates.

        Raises:
            OSError: If the file cannot be written.
        """
        from pinn.common.plots import log_scale, new_figure  # this import is slow

        figure, grid = new_figure(7, 2, 2)
        axes = grid.flat
        for axis, name in zip(axes, ("ttft", "tpot", "e2e"), strict=False):
            self._draw(axis, name)
            log_scale(axis)
        self._draw_throughput(axes[3])
        for axis in axes:
            axis.set_xlabel("requests/s sent")
            axis.grid(alpha=0.25)
            axis.legend(fontsize=8)
        figure.suptitle(self.answer)
        replace_atomically(Path(path), lambda target: figure.savefig(target, format="png", dpi=110))

    def _draw(self, axis: Axes, name: str) -> None:
        styles = cycle(("o-", "o--", "o:", "o-."))
        for (label, key), style in zip(self._latencies([name], (50, 99)), styles, strict=False):
            values = [run.metrics[key] for run in self.runs]
            axis.plot(self.rates_per_s, values, style, label=label)
        axis.set_ylabel(f"{name.upper()} (ms)")
        limits = next((run.goodput.limits_s for run in self.runs if run.goodput), {})
        if name in limits:
            axis.axhline(limits[name] / MILLISECOND, color="grey", lw=1, label="limit")

    def _draw_throughput(self, axis: Axes) -> None:
        served = [run.metrics["responses_per_sec"] for run in self.runs]
        axis.plot(self.rates_per_s, self.rates_per_s, color="grey", lw=1, label="sent")
        axis.plot(self.rates_per_s, served, "o-", label="served")
        good = [run.goodput.requests_per_s if run.goodput else np.nan for run in self.runs]
        if any(run.goodput for run in self.runs):
            axis.plot(self.rates_per_s, good, "o--", label="goodput")
        axis.set_ylabel("requests/s")
        axis.set_ylim(bottom=0)

    def __str__(self) -> str:
        """Return the report that ``pinn simulate --rate 1,2,4`` prints."""
        return printed(self.print_report)


def _holds(run: Served) -> bool:
    """Return whether a run meets its SLO or, without an SLO, whether servers keep up."""
    met = run.goodput.met if run.goodput else None
    return run.overloaded is None if met is None else met


def swept(rates_per_s: Sequence[float], serve: Callable[[float], Served]) -> RateSweep:
    """Serve a load at several rates, lowest rate first, and return the results."""
    rising = sorted(set(rates_per_s))
    return RateSweep(rising, [serve(rate) for rate in rising])
