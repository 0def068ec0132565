"""Scores of calibration on servers in public data: fitted to one part, scored on the rest.

A calibration to step summaries of one server is scored on later times, on other loads, and on a
prompt that is in no fit. For measured serving runs, one load of a server is used for calibration,
and its other loads are scored. The prior is predicted by the network trained without the model or,
if there is none, by the checkpoint in use.
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from calibration_scores.left_out import left_out_network
from pinn.calibration import benchmarks, calibrate
from pinn.calibration.calibrate import BetaSettings, Intervals
from pinn.calibration.posterior import Posterior
from pinn.calibration.prior import Prior, all_features, checkpoint_prior
from pinn.common.files import find_checkpoint
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun, Lengths, Load, SharedPrefix
from pinn.measurements.runs.measured_runs import PROMPT_RANGE, MeasuredRun, read_measured_runs
from pinn.measurements.runs.serving_runs import workload
from pinn.measurements.traces import ingestion, trace_tables
from pinn.specs.batch import parse_batch
from pinn.specs.serving import ServingSpec
from pinn.surrogate.step_features import overlapped
from pinn.surrogate.surrogate import Surrogate, batch_features
from pinn.surrogate.uncertainty.quantiles import NORMAL_QUANTILE


def prior_of(deployment: Deployment, network: Path | None = None) -> Prior:
    """Return the prior of a deployment from the checkpoint, with the mean of ``network`` if given.

    Raises:
        PinnError: If the checkpoint has no intervals.
    """
    checkpoint = find_checkpoint(None)
    coefficients = Surrogate.load(network or checkpoint).coefficients([deployment])
    prior, missing = checkpoint_prior(checkpoint, deployment, coefficients)
    if missing:
        raise PinnError(missing)
    return prior


# Scores on public step summaries.

#: Server on which the public step summaries were recorded.
_TARGET = trace_tables.Target(
    "codellama/CodeLlama-34b-Instruct-hf",
    "H100",
    ServingSpec(tensor_parallel_size=2, max_num_batched_tokens=2048, max_num_seqs=128),
)

_SEEDS, _PROMPT_SEEDS = 5, 10
_PROMPT = "1 prefill 4000 @ 0"


def read_public_steps() -> tuple[Deployment, Intervals, Prior]:
    """Return the server of the public step summaries: deployment, trace intervals and prior.

    Raises:
        PinnError: If PINN_STEPS_DIR is not a folder that contains the file.
    """
    folder = os.environ.get("PINN_STEPS_DIR", "")
    found = sorted(Path(folder).glob("*codellama*.parquet")) if folder else []
    if not found:
        raise PinnError(
            f"the folder {folder!r} has no step summaries: set PINN_STEPS_DIR to the folder of the "
            "step summaries"
        )
    with tempfile.TemporaryDirectory() as scratch:
        traces = ingestion.ingest_steps(found[0], Path(scratch) / "tables", _TARGET)
        deployment = traces.deployment()
        prior = prior_of(deployment)
        intervals = calibrate.read_intervals(traces, deployment, prior.beta)
    return deployment, intervals, prior


def score_steps() -> tuple[pd.DataFrame, dict[str, float]]:
    """Return a table of step time errors (%) and step time shifts, and the largest shift.

    A shift is the change of an unmeasured prompt's step time by a calibration, divided by the
    half-width of its interval.
    """
    deployment, intervals, prior = read_public_steps()
    later = (("windows", 50), ("windows", 500), ("singles", None), ("both", 50), ("both", 500))
    features = batch_features(deployment, [parse_batch(_PROMPT)])
    prompt = all_features(overlapped(features, prior.beta))
    moves = [
        {
            "fitted": f"{kind}, {budget}",
            "tested": f"move of {_PROMPT} over its half-width, worst of {_PROMPT_SEEDS}",
            "after": _move(prompt, prior, _fits(intervals, prior, kind, budget, _PROMPT_SEEDS)),
        }
        for kind, budget in product(("windows", "both"), (10, 50, 500))
    ]
    rows = [_later(intervals, prior, *fitted) for fitted in later]
    table = pd.DataFrame([*rows, *_halves(intervals, prior), *moves])
    return table, {"worst_move": max(move["after"] for move in moves)}


def _fits(
    pool: Intervals, prior: Prior, kind: str, budget: int | None, seeds: int = _SEEDS
) -> list[Posterior]:
    """Return the posteriors of fits to random trace intervals of one type, one for each seed."""
    settings = (BetaSettings(kind, budget, seed) for seed in range(seeds))
    return [calibrate.calibrate_to(calibrate.chosen(pool, each), prior) for each in settings]


def _errors(rows: Intervals, fits: Sequence[Prior]) -> list[float]:
    """Return the median absolute percentage error of the intervals' times, for each fit."""
    return [100 * np.median(np.abs(rows.features @ fit.beta / rows.seconds - 1)) for fit in fits]


def _later(intervals: Intervals, prior: Prior, kind: str, budget: int | None) -> dict[str, object]:
    last = intervals.of_part(calibrate.TEST)
    tests = {"windows": last.take(last.is_window), "singles": last.take(last.is_single)}
    name = kind if kind in tests else "windows"
    fits = _fits(intervals, prior, kind, budget, _SEEDS if budget else 1)
    return {
        "fitted": f"{kind}, {budget or 'all'}",
        "tested": f"last 20 %, {name}",
        "before": _errors(tests[name], [prior])[0],
        "after": np.median(_errors(tests[name], fits)),
        "singles": np.median(_errors(tests["singles"], fits)),
    }


def _halves(intervals: Intervals, prior: Prior) -> list[dict[str, object]]:
    """Return errors of fits to steps with few requests on steps with many, and vice versa."""
    anytime = replace(intervals, part=np.zeros_like(intervals.part))
    rows = []
    for kind, mask in (("windows", intervals.is_window), ("singles", intervals.is_single)):
        of_kind = anytime.take(mask)
        upper = of_kind.sums.requests > np.median(of_kind.sums.requests)
        for (name, train), budget in product((("lower", ~upper), ("upper", upper)), (50, 500)):
            test = of_kind.take(~train)
            rows.append({
                "fitted": f"{kind}, {budget}, {name} half of the loads", "tested": "the other",
                "before": _errors(test, [prior])[0],
                "after": max(_errors(test, _fits(of_kind.take(train), prior, kind, budget))),
            })  # fmt: skip
    return rows


def _move(features: np.ndarray, prior: Prior, fits: Sequence[Posterior]) -> float:
    """Return the largest shift of a step time by a calibration, in half-widths of its interval.

    Both the change and the half-width are on a logarithmic scale.
    """
    before = features @ prior.mean
    half = [NORMAL_QUANTILE * fit.spread(features) for fit in fits]
    moves = [np.abs(np.log(features @ fit.mean / before)) for fit in fits]
    return float(np.max(np.divide(moves, half)))


# Scores on measured serving runs.

#: Simulated duration of a stage: a number of seconds, or a multiple of a request's latency if that
#: is longer. In a steady state, longer simulations have the same means.
_SECONDS, _LATENCIES = 120.0, 10.0


def score_runs() -> tuple[pd.DataFrame, dict[str, float]]:
    """Return E2E latency errors (%) of each load, before and after a fit to another load."""
    path = os.environ.get("PINN_SERVING_RUNS")
    if not path:
        raise PinnError(
            "PINN_SERVING_RUNS is not set: set the variable to the path of the CSV file of serving "
            "runs"
        )
    configs = os.environ.get("PINN_MODEL_CONFIGS")
    servers: dict[Deployment, list[BenchmarkRun]] = {}
    for run in read_measured_runs(Path(path), Path(configs) if configs else None)[0]:
        servers.setdefault(run.deployment, []).extend(_stages(run))
    several = {server: loads for server, loads in servers.items() if len(loads) > 1}
    table = pd.concat([_server(*each) for each in several.items()], ignore_index=True)
    apart = table.groupby("model")["before"].agg(np.ptp).idxmax()
    print(f"shown apart, since its loads contradict each other most: {apart}")
    figures: dict[str, float] = {}
    for name, is_part in (("others", table["model"] != apart), ("apart", table["model"] == apart)):
        part = table[is_part]
        before, after = part["before"].abs(), part["after"].abs()
        figures |= {f"{name}_n": len(part), f"{name}_before_median": float(before.median())}
        figures |= {f"{name}_median": float(after.median()), f"{name}_worst": float(after.max())}
    return table, figures


def _stages(run: MeasuredRun) -> list[BenchmarkRun]:
    """Return each stage (period with one request rate) of a serving run as a benchmark run."""
    sent = workload(run.load_name)
    low, high = (share * sent.prompt_tokens for share in PROMPT_RANGE)
    prefix = SharedPrefix(sent.groups, sent.prompts_per_group, sent.shared_prefix_tokens)
    found = []
    for stage in run.stages:
        rate, figures = run.rates_per_s[int(stage)], run.measured[stage]
        count = max(int(rate * max(_SECONDS, _LATENCIES * figures["e2e_mean_s"])), 100)
        lengths = Lengths((low + high) / 2, low, high), Lengths(sent.output_tokens)
        load = Load(count, *lengths, rate_per_s=rate, prefix=prefix)
        kept = {"ttft_mean_s": figures["ttft_mean_s"], "tpot_mean_s": figures["itl_mean_s"],
                "e2e_mean_s": figures["e2e_mean_s"]}  # fmt: skip
        found.append(BenchmarkRun(f"{run.name} {rate:g}/s", "serving run", load, kept, count))
    return found


def _server(deployment: Deployment, loads: Sequence[BenchmarkRun]) -> pd.DataFrame:
    left_out = left_out_network(deployment.model)
    prior = prior_of(deployment, left_out if left_out.is_file() else None)
    before = pd.DataFrame({
        "model": deployment.model.name, "calibrated on": "", "scored": [x.name for x in loads],
        "before": _e2e_errors(loads, deployment, prior),
    })  # fmt: skip
    tables = []
    for i, train in enumerate(loads):
        found = benchmarks.calibrate_to_benchmarks([train], deployment, prior).posterior
        after = _e2e_errors(loads, deployment, found)
        tables.append(before.assign(**{"calibrated on": train.name, "after": after}).drop(index=i))
    return pd.concat(tables)


def _e2e_errors(loads: Sequence[BenchmarkRun], deployment: Deployment, found: Prior) -> np.ndarray:
    """Return signed errors of E2E latency in percent.

    E2E latency is TTFT plus TPOT for each output token after the first.
    """
    # The simulated metrics are the TTFT and the TPOT of each load in turn.
    figures = benchmarks.simulated_rows(loads, deployment, found.mean).simulated
    first, between = figures.reshape(-1, 2).T
    gaps = np.array([load.load.output.mean - 1 for load in loads])
    measured = np.array([load.figures["e2e_mean_s"] for load in loads])
    return 100 * ((first + gaps * between) / measured - 1)
