"""Calibration to benchmark results by fitting simulated loads to measured metrics."""

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from pinn.calibration import posterior
from pinn.calibration.calibrate import Verdict, judge, judgements
from pinn.calibration.calibrated import ServerCalibration
from pinn.calibration.load_range import benchmark_range, mean_in_flight
from pinn.calibration.posterior import TIME_NOISE, TTFT_NOISE, Posterior
from pinn.calibration.prior import Prior
from pinn.common import progress
from pinn.common.numbers import amount
from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.measurements import estimate
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun
from pinn.measurements.benchmarks.loads import benchmark_figures, benchmark_workload
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.metric_features import WHOLE_RUN, figure_features
from pinn.simulator.run import Run
from pinn.simulator.simulate import measured_job, simulate_many
from pinn.simulator.workloads.workload import Workload
from pinn.surrogate.step_features import STEP_FEATURES

# Benchmark metrics as linear functions of the coefficients, computed from simulations of the loads.
#
# With fixed batches, a mean latency is a sum of one term per coefficient. In a closed loop the
# batches hardly change with the coefficients. In an open loop, slower steps also enlarge batches,
# so a metric changes ``gain`` times as much as with fixed batches. An additional simulation with
# longer times determines the gain.

#: Metrics to fit by type of latency, in order of preference. Only the first metric present in a
#: file is fitted: other percentiles of the same latency add little information, and an E2E latency
#: is the sum of TTFT and ITLs.
_FIRST = ("ttft_mean_s", "ttft_p50_s")
_BETWEEN = ("tpot_mean_s", "itl_mean_s", "tpot_p50_s", "itl_p50_s")
_WHOLE = ("e2e_mean_s", "e2e_p50_s")
_RATES = ("output_tokens_per_s", "requests_per_s")

#: A gain is the change of a metric relative to its change with fixed batches. ``_NUDGE``: factor on
#: all times in the additional simulation that measures gains. ``_MOST_GAIN``: maximum gain, because
#: metrics near saturation reveal little about step times.
_NUDGE, _MOST_GAIN = 1.05, 4.0

#: ``_PERCENTILE``: pattern of the names of percentile metrics, such as ``ttft_p99_s``.
#: ``_ERROR_COLUMNS``: columns of the table of measured and predicted metrics.
_PERCENTILE = re.compile(r"_p\d+_s$")
_ERROR_COLUMNS = ("run", "load", "figure", "measured", "before", "after")

_ALL = slice(None)

#: Number of random seeds with which a load is simulated to estimate its sampling noise (an
#: assumption).
_DRAWS = 5

Runs = Sequence[BenchmarkRun]
Vector = Float[np.ndarray, " coefficients"]


@dataclass(frozen=True)
class FigureRows:
    """``n`` metrics of benchmark runs, linearized at the simulated coefficients.

    Attributes:
        names: Names of the metrics, such as ``ttft_mean_s``.
        run: Index of the benchmark run to which each metric belongs.
        measured: Measured values of the metrics, in seconds or per second.
        simulated: Simulated values of the metrics, in seconds or per second.
        features: Derivative of each metric with respect to each coefficient.
        noise: Relative standard deviation of each metric.
    """

    names: tuple[str, ...]
    run: Int[np.ndarray, " n"]
    measured: Float[np.ndarray, " n"]
    simulated: Float[np.ndarray, " n"]
    features: Float[np.ndarray, "n coefficients"]
    noise: Float[np.ndarray, " n"]


def fitted_figures(run: BenchmarkRun) -> list[str]:
    """Return the names of the metrics of a benchmark run to which coefficients are fitted.

    Raises:
        PinnError: If the run has no metric that can be fitted.
    """
    kinds = [next((n for n in kind if n in run.figures), None) for kind in (_FIRST, _BETWEEN)]
    found = [name for name in kinds if name]
    for others in (_WHOLE, _RATES):
        if len(found) < len(kinds):
            found += [name for name in others if name in run.figures][:1]
    if not found:
        raise PinnError(
            f"{run.name} has only the metrics {', '.join(run.figures)}, expected a latency "
            "or a throughput that depends on step times: give a file with such a metric"
        )
    return found


def simulated_rows(
    runs: Runs, deployment: Deployment, coefficients: Vector, engine: EngineSpec | None = None
) -> FigureRows:
    """Simulate every run with the given coefficients, and return its linearized metrics.

    Raises:
        PinnError: If the simulated server completes none of a run's requests.
    """
    near, far = (_latency(deployment, factor * coefficients) for factor in (1.0, _NUDGE))
    names = [fitted_figures(run) for run in runs]

    def served(run: BenchmarkRun, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return a run's simulated metrics, and d log metric / d log coefficient for each."""
        job = measured_job(deployment, benchmark_workload(run), near, engine)
        simulated = job.run()
        values = _values(simulated, names)
        pairs = [(WHOLE_RUN, _behind(name)) for name in names]
        added = np.hstack(figure_features(near, simulated, pairs)) * coefficients
        sign = np.array([-1.0 if name in _RATES else 1.0 for name in names])
        shares = sign[:, None] * added / added.sum(axis=1, keepdims=True)
        if run.load.rate_per_s is None and not run.load.offsets_s:
            return values, shares  # closed loop: batches hardly change, so the gain is 1
        gain = np.abs(np.log(_values(replace(job, latency=far).run(), names) / values))
        gain = np.nan_to_num(gain / np.log(_NUDGE), nan=_MOST_GAIN)
        return values, shares * np.minimum(gain, _MOST_GAIN)[:, None]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(served, runs, names))
    values = np.concatenate([each for each, _ in found])
    if not np.isfinite(values).all():
        raise PinnError(
            "the simulated server completes no request of a benchmark run: check the "
            "server's flags and the run's load"
        )
    flat = [(at, name) for at, of_run in enumerate(names) for name in of_run]
    noise = [TTFT_NOISE if name.startswith("ttft") else TIME_NOISE for _, name in flat]
    safe = np.where(coefficients > 0, coefficients, np.inf)
    return FigureRows(
        tuple(name for _, name in flat),
        np.array([at for at, _ in flat]),
        np.array([runs[at].figures[name] for at, name in flat]),
        values,
        np.concatenate([shares for _, shares in found]) * values[:, None] / safe,
        np.array(noise),
    )


def _latency(deployment: Deployment, coefficients: Vector) -> LinearLatency:
    beta, alpha = np.split(coefficients, [len(STEP_FEATURES)])
    return LinearLatency(deployment, beta, alpha)


def _values(run: Run, names: list[str]) -> np.ndarray:
    return np.array(list(benchmark_figures(run, names).values()))


def noise_of_draws(
    runs: Runs, deployment: Deployment, coefficients: Vector, engine: EngineSpec | None = None
) -> Float[np.ndarray, " n"]:
    """Return the relative standard deviation of each metric over simulated samples of its load.

    Benchmark files mostly state distributions of lengths and gaps, so the simulated load is a
    different random sample than the measured load. The result is 0 for a deterministic load.
    """
    latency, found = _latency(deployment, coefficients), []
    for run in runs:
        names = fitted_figures(run)
        drawn = [benchmark_workload(run, seed) for seed in range(_DRAWS)]
        if all(_are_equal(drawn[0], other) for other in drawn[1:]):
            found.append(np.zeros(len(names)))
            continue
        served = simulate_many([measured_job(deployment, load, latency, engine) for load in drawn])
        figures = [_values(each, names) for each in served]
        found.append(np.sqrt(2) * np.log(figures).std(axis=0, ddof=1))
    return np.concatenate(found)


def _are_equal(one: Workload, other: Workload) -> bool:
    columns = ("prompt_tokens", "output_tokens", "offset_s")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)


def _behind(figure: str) -> str:
    """Return the latency that determines a metric, such as E2E latency for throughput."""
    if figure in _RATES:
        return "e2e_mean_s"
    return "itl_mean_s" if figure.startswith(("tpot", "itl")) else figure


#: Maximum of 7 simulations per load. The fit stops earlier if metrics change by less than 0.5 %.
_ROUNDS = estimate.Rounds(most=7, tolerance=0.005, whole=7, by_largest=True)


@dataclass(frozen=True)
class BenchmarkCalibration(ServerCalibration):
    """Calibration of a server to its benchmarks.

    Attributes:
        errors: Columns ``run``, ``load``, ``figure``, ``measured``, ``before`` and ``after``, one
            row for each fitted metric.
        held_out: Columns as in ``errors``; ``after`` is predicted by a fit to all loads except the
            row's. Empty if there is only one load.
        left_alone: Metrics that were not fitted because their held-out error increased while that
            of other metrics decreased.
        overloaded: Names of the fitted runs in which the server was overloaded.
        percentiles: Columns as in ``held_out``, one row for each measured percentile that was not
            fitted. Empty if there is only one load.
    """

    errors: pd.DataFrame
    held_out: pd.DataFrame
    left_alone: tuple[str, ...] = ()
    overloaded: tuple[str, ...] = ()
    percentiles: pd.DataFrame = field(default_factory=pd.DataFrame)


def calibrate_to_benchmarks(
    runs: Runs, deployment: Deployment, prior: Prior, engine: EngineSpec | None = None
) -> BenchmarkCalibration:
    """Fit the coefficients to runs, and evaluate the fit on each held-out load.

    If some metrics improve on held-out loads and others become worse, only the improved metrics are
    fitted.

    Args:
        runs: Benchmark runs of one server.
        deployment: Deployment of the server.
        prior: Coefficients before the calibration.
        engine: Scheduler settings of the server; None for the engine's defaults.

    Raises:
        PinnError: If a run has no metric to fit, or the simulated server completes none of its
            requests.
    """
    found = _calibrate(runs, runs, deployment, prior, engine)
    worse = _worse_figures(found.held_out)
    fewer = [replace(run, figures=_without(run.figures, worse)) for run in runs]
    fewer = [run for run in fewer if run.figures]
    if not worse or not fewer:
        return found
    alone = _calibrate(fewer, runs, deployment, prior, engine)
    served = simulated_rows(runs, deployment, alone.posterior.mean, engine)
    now = found.held_out.assign(after=served.simulated)
    others = now[now["figure"].isin(worse)]
    held_out = pd.concat([alone.held_out, others], ignore_index=True)
    facts = alone.facts | {"held_out": held_out.to_dict("records")}
    return replace(alone, held_out=held_out, facts=facts, left_alone=worse)


def _worse_figures(held_out: pd.DataFrame) -> tuple[str, ...]:
    """Return metrics whose error on held-out loads increased, if other metrics improved."""
    words = {
        str(figure): judge(
            "", *((rows[side] / rows["measured"] - 1).to_numpy() for side in ("before", "after"))
        ).word
        for figure, rows in held_out.groupby("figure", sort=False)
    }
    worse = tuple(figure for figure, word in words.items() if word == "worse")
    return worse if "better" in words.values() else ()


def _without(figures: Mapping[str, float], worse: Collection[str]) -> dict[str, float]:
    """Return the metrics except E2E latency, rates, and the latencies in ``worse``.

    E2E latency and request rates also depend on the latencies whose held-out errors increased.
    """
    kinds = {name.partition("_")[0] for name in worse}
    kinds |= {"e2e"} if kinds & {"ttft", "tpot", "itl"} else set()
    rates = _RATES if kinds else ()
    return {n: v for n, v in figures.items() if n.partition("_")[0] not in kinds and n not in rates}


def _calibrate(
    runs: Runs, measured: Runs, deployment: Deployment, prior: Prior, engine: EngineSpec | None
) -> BenchmarkCalibration:
    """Fit coefficients to the metrics of ``runs``, and check the percentiles of ``measured``."""
    progress.doing(f"fitting {amount(len(runs), 'run')}, by repeated simulation")
    served = partial(simulated_rows, deployment=deployment, engine=engine)
    before = served(runs, coefficients=prior.mean)
    drawn = noise_of_draws(runs, deployment, prior.mean, engine)
    before = replace(before, noise=np.hypot(before.noise, drawn))
    model = _Simulation(partial(served, runs), prior, before.noise)
    found = estimate.simulate_and_refit(model, prior.mean, before, _ROUNDS)
    after = found.rows
    fitted = replace(fit_rows(prior, after, found.accepted), mean=found.accepted)
    names, loads = zip(*((runs[i].name, runs[i].load.text) for i in before.run), strict=True)
    seconds = {"measured": before.measured, "before": before.simulated, "after": after.simulated}
    errors = pd.DataFrame({"run": names, "load": loads, "figure": before.names, **seconds})
    requests, context = _mean_step(runs)
    quantities = [
        *posterior.step_quantities(deployment, prior, fitted, requests, context),
        *posterior.scalar_quantities(prior, fitted, after.features / after.measured[:, None]),
    ]
    verdicts, predicted, fits = _left_out(runs, served, prior, before)
    percentiles = _percentiles(measured, deployment, engine, prior.mean, fits)
    held_out = errors.assign(after=predicted) if len(predicted) else errors.iloc[:0]
    sources = [{"path": run.name, "tool": run.tool} for run in runs]
    facts = {"sources": sources, "figures": errors.to_dict("records")}
    facts["held_out"] = held_out.to_dict("records")
    facts["held_out_percentiles"] = percentiles.to_dict("records")
    facts["loads"] = benchmark_range(measured)
    evaluated = (quantities, verdicts, facts, errors, held_out)
    overloaded = tuple(run.name for run in runs if run.overload)
    return BenchmarkCalibration(
        deployment, prior, fitted, *evaluated, overloaded=overloaded, percentiles=percentiles
    )


@dataclass(frozen=True)
class _Simulation:
    """Simulation of benchmark loads with given coefficients, for ``pinn.measurements.estimate``.

    Attributes:
        served: Function that takes ``coefficients`` and returns the simulated metrics of all runs.
        prior: Coefficients before the calibration.
        noise: Relative standard deviation of each metric.
    """

    served: Callable[..., FigureRows]
    prior: Prior
    noise: Float[np.ndarray, " n"]

    def simulate(self, coefficients: Vector) -> FigureRows:
        """Return the metrics of all runs, simulated with these coefficients."""
        return replace(self.served(coefficients=coefficients), noise=self.noise)

    def refit(self, rows: FigureRows, at: Vector) -> Vector:
        """Return the most probable coefficients, given metrics simulated at ``at``."""
        return fit_rows(self.prior, rows, at).mean

    def misfit(self, rows: FigureRows, at: Vector) -> float:
        """Return -2 x log posterior density of the coefficients, up to an additive constant."""
        away = (rows.simulated / rows.measured - 1) / self.noise
        return float(away @ away) + self.prior.distance_squared(at)


def fit_rows(
    prior: Prior, rows: FigureRows, at: Vector, keep: Bool[np.ndarray, " figures"] | slice = _ALL
) -> Posterior:
    """Fit coefficients to the metrics selected by ``keep``.

    The metrics were simulated with the coefficients ``at`` and linearized around them.
    """
    features = rows.features[keep]
    offset = rows.simulated[keep] - features @ at
    return posterior.fit_posterior(prior, features, rows.measured[keep], rows.noise[keep], offset)


def _left_out(
    runs: Runs, served: Callable[..., FigureRows], prior: Prior, rows: FigureRows
) -> tuple[list[Verdict], Float[np.ndarray, " n"], dict[str, Vector]]:
    """Return changes in held-out error, and each load's metrics from a fit to all other loads.

    The last result contains the coefficients of these fits, by the description of the held-out
    load. If there is only one load, all results are empty.
    """
    of_row = np.array([run.load.text for run in runs])[rows.run]
    each_load = list(dict.fromkeys(of_row))
    if len(each_load) < 2:
        return [], np.zeros(0), {}
    fits: dict[str, Vector] = {}
    simulated, spread = rows.simulated.copy(), rows.noise.copy()
    for load in progress.counted(each_load, "evaluating held-out load"):
        out = of_row == load
        fitted = fit_rows(prior, rows, prior.mean, ~out)
        fits[load] = fitted.mean
        found = served([run for run in runs if run.load.text == load], coefficients=fitted.mean)
        simulated[out] = found.simulated
        spread[out] = np.hypot(fitted.deviation(found.features) / found.simulated, rows.noise[out])
    before = np.hypot(prior.deviation(rows.features) / rows.simulated, rows.noise)
    # Group the metrics by load, because errors of metrics of the same load are correlated. Noisy
    # metrics have lower weights.
    order = np.concatenate([np.flatnonzero(of_row == load) for load in each_load])
    ratios = [each[order] / rows.measured[order] for each in (rows.simulated, simulated)]
    spreads, weight = [before[order], spread[order]], TIME_NOISE / rows.noise[order]
    return judgements("each load, held out", ratios, spreads, weight), simulated, fits


def _percentiles(
    runs: Runs,
    deployment: Deployment,
    engine: EngineSpec | None,
    before: Vector,
    fits: Mapping[str, Vector],
) -> pd.DataFrame:
    """Return measured percentiles that are not fitted, and their predictions, as a table.

    Args:
        runs: Benchmark runs with all their metrics.
        deployment: Deployment of the server.
        engine: Scheduler settings of the server.
        before: Coefficients before the calibration.
        fits: Coefficients fitted to all other loads, by the description of a load.
    """
    rows = []
    for run in runs:
        fitted = fitted_figures(run)
        names = [n for n in run.figures if _PERCENTILE.search(n) and n not in fitted]
        if names and run.load.text in fits:
            latencies = (_latency(deployment, each) for each in (before, fits[run.load.text]))
            load = benchmark_workload(run)
            jobs = [measured_job(deployment, load, latency, engine) for latency in latencies]
            sides = [_values(each, names) for each in simulate_many(jobs)]
            rows += [
                (run.name, run.load.text, name, run.figures[name], *predicted)
                for name, *predicted in zip(names, *sides, strict=True)
            ]
    return pd.DataFrame(rows, columns=list(_ERROR_COLUMNS))


def _mean_step(runs: Runs) -> tuple[float, float]:
    """Return the mean number of requests in a decode step, and their mean context in tokens.

    The number of requests follows from Little's law.
    """
    context = [run.load.prompt.mean + run.load.output.mean / 2 for run in runs]
    return float(np.mean([mean_in_flight(run) for run in runs])), float(np.mean(context))
