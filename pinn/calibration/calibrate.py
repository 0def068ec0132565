"""Calibration of step coefficients (beta) to a trace's step times, and their held-out errors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int, Shaped

from pinn.calibration.posterior import Posterior, fit_posterior
from pinn.calibration.prior import Prior, all_features
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.measurements.traces.batches import each_sum
from pinn.measurements.traces.interval_batches import IntervalBatches, temporal_split
from pinn.measurements.traces.trace_tables import TraceTables
from pinn.physics.batch_sums import BatchSums
from pinn.surrogate.deployment_features import padded_features
from pinn.surrogate.step_features import overlapped

# Intervals between step starts as linear functions of the step coefficients (beta, in seconds per
# unit of a feature).
#
# A step lasts as long as the slower of kernel launching and GPU work. The coefficients before the
# fit determine which one is slower. The features of the other one are set to 0 (``overlapped``), so
# the step time is beta . features before and after the fit.

#: Minimum and maximum number of steps in an interval (window) for calibration and evaluation.
#: Shorter windows are mostly noise; longer windows average over changing batches. Both limits are
#: assumptions. The published trace in the evaluation data has one sample per ten steps.
WINDOW_STEPS = (5, 15)

PARTS = CALIBRATION, VALIDATION, TEST = "first 60 %", "next 20 %", "last 20 %"


@dataclass(frozen=True)
class Intervals:
    """``n`` intervals of a trace between starts of steps, with the mean step of each interval.

    Attributes:
        features: Step features, averaged over the steps of each interval. A step takes the longer
            of kernel launching and GPU work according to the coefficients before calibration;
            features of the shorter one are 0.
        seconds: Mean step time of each interval, in seconds.
        steps: Number of steps of each interval; 1 if the start times of adjacent steps are known.
        row: Row index of each interval in the cycle table.
        part: Index into ``PARTS``: the part of the run's time in which each interval lies.
        sums: Sums over a step's batch, such as tokens, averaged over the steps of each interval.
    """

    features: Float[np.ndarray, "n step_features"]
    seconds: Float[np.ndarray, " n"]
    steps: Float[np.ndarray, " n"]
    row: Int[np.ndarray, " n"]
    part: Int[np.ndarray, " n"]
    sums: BatchSums

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, index: Shaped[np.ndarray, " index"]) -> "Intervals":
        """Return the intervals that ``index`` selects, as a mask or as row numbers."""
        kept = {name: column[index] for name, column in vars(self).items() if name != "sums"}
        return Intervals(sums=each_sum(lambda values: values[index], self.sums), **kept)

    def of_part(self, name: str) -> "Intervals":
        """Return the intervals in one part of the trace's time, named as in ``PARTS``."""
        return self.take(self.part == PARTS.index(name))

    @property
    def is_single(self) -> Bool[np.ndarray, " n"]:
        """Return whether each interval has exactly one step."""
        return self.steps == 1

    @property
    def is_window(self) -> Bool[np.ndarray, " n"]:
        """Return whether each interval has 5 to 15 steps, the limits in :data:`WINDOW_STEPS`."""
        return (self.steps >= WINDOW_STEPS[0]) & (self.steps <= WINDOW_STEPS[1])


def read_intervals(
    traces: TraceTables, deployment: Deployment, beta: Float[np.ndarray, " step_features"]
) -> Intervals:
    """Return the usable intervals of a trace, each of one or more steps, as three parts by time.

    The parts are the first 60 %, the next 20 % and the last 20 % of the intervals.

    Args:
        traces: Ingested trace tables (steps, cycles, requests, snapshots).
        deployment: Deployment that was measured.
        beta: Step coefficients of the deployment before calibration, which determine whether kernel
            launching or GPU work takes longer.

    Raises:
        PinnError: If the tables have no steps, their step times are not usable, or no interval is
            usable.
    """
    _check_target(traces)
    parts = temporal_split(traces.cycles)
    rows = np.concatenate(parts)
    if not len(rows):
        raise PinnError(
            f"{traces.folder} has no usable interval between steps: see the "
            "report of 'pinn ingest' for the reasons, and trace for longer"
        )
    cycles = traces.cycles.iloc[rows]
    steps = cycles["steps"].to_numpy(float)
    batches = IntervalBatches(traces, deployment).of(rows)
    features = overlapped(padded_features(deployment, batches.sums), beta)

    def mean(values: np.ndarray) -> np.ndarray:
        """Return the mean over each interval's steps of a value that is given per step."""
        return np.bincount(batches.owner, batches.weight * values, minlength=len(steps)) / steps

    return Intervals(
        np.stack([mean(column) for column in features.T], axis=1),
        cycles["step_s"].to_numpy(float),
        steps,
        rows,
        np.repeat(np.arange(len(PARTS)), [len(part) for part in parts]),
        each_sum(mean, batches.sums),
    )


def _check_target(traces: TraceTables) -> None:
    tables = traces.manifest["tables"]
    if not tables.get("cycles", {}).get("rows"):
        held = ", ".join(f"{e['rows']} {name}" for name, e in tables.items() if e["rows"])
        raise PinnError(
            f"{traces.folder} has no intervals between engine steps (it has "
            f"{held or 'nothing'}): ingest traces with step summaries ('pinn "
            "ingest vllm' or 'pinn ingest steps'), or give benchmark files to "
            "'pinn calibrate --benchmarks'"
        )
    check = traces.manifest.get("targets", {}).get("step_s")
    if check and not check["is_target"]:
        raise PinnError(
            f"step times cannot be fitted to the column {check['column']}: {check['explanation']}"
        )


# Calibration of beta, a server's coefficients of step time, to measured step times.

#: Types of trace intervals to calibrate to: windows of several steps, single steps, or both.
KINDS = ("windows", "singles", "both")


@dataclass(frozen=True)
class BetaSettings:
    """Settings of the calibration of beta.

    Attributes:
        kind: Intervals to fit to: ``windows`` of 5 to 15 steps, ``singles`` or ``both``.
        budget: Number of intervals to fit to, chosen at random; None for all intervals.
        seed: Seed of the random choice.
    """

    kind: str = "both"
    budget: int | None = 500
    seed: int = 0


def candidates(intervals: Intervals, kind: str) -> Intervals:
    """Return the intervals of one type in the first 60 % of a trace's time.

    The types are ``windows`` (means of 5 to 15 steps), ``singles`` (one step) and ``both``.

    Raises:
        PinnError: If the type is unknown or has no intervals.
    """
    if kind not in KINDS:
        raise PinnError(
            f"the type of intervals {kind!r} is unknown: give --intervals, one of "
            f"{', '.join(KINDS)}"
        )
    first = intervals.of_part(CALIBRATION)
    masks = {"windows": first.is_window, "singles": first.is_single}
    found = first.take(masks.get(kind, first.is_window | first.is_single))
    if not len(found):
        others = " and ".join(f"{int(mask.sum())} {name}" for name, mask in masks.items())
        raise PinnError(
            f"there are no intervals of the type {kind} in the {CALIBRATION} of "
            f"the traces' time, which has {others}: choose another type with "
            "--intervals, or trace for longer"
        )
    return found


def chosen(intervals: Intervals, settings: BetaSettings) -> Intervals:
    """Return randomly chosen intervals to calibrate to, up to the budget, in chronological order.

    Raises:
        PinnError: If there are no intervals, or the budget is not positive.
    """
    pool = candidates(intervals, settings.kind)
    budget = len(pool) if settings.budget is None else settings.budget
    if budget < 1:
        raise PinnError(f"--budget must be at least 1 observation, got {budget}")
    draws = np.random.default_rng(settings.seed)
    return pool.take(np.sort(draws.choice(len(pool), min(budget, len(pool)), replace=False)))


def calibrate_to(used: Intervals, prior: Prior) -> Posterior:
    """Return the posterior of beta after a fit to intervals of a trace; alpha stays unchanged."""
    return fit_posterior(prior, all_features(used.features), used.seconds)


def error_table(
    intervals: Intervals, betas: dict[str, Float[np.ndarray, " features"]]
) -> pd.DataFrame:
    """Return relative errors of predicted mean step times, by part of the trace and interval type.

    Args:
        intervals: Intervals of a run.
        betas: Step coefficients (beta) in seconds per unit of a feature, by name, such as before
            and after calibration.

    Returns:
        Columns ``part``, ``kind`` (of interval), ``n`` (intervals), ``coefficients`` (name), and
        the relative errors ``median``, ``mean`` (both absolute) and ``bias`` (median signed error),
        0.01 for 1 %.
    """
    rows = []
    for part in PARTS:
        inside = intervals.of_part(part)
        for kind, mask in (("windows", inside.is_window), ("singles", inside.is_single)):
            chosen = inside.take(mask)
            for name, beta in betas.items():
                error = chosen.features @ beta / chosen.seconds - 1
                rows.append((part, kind, len(error), name, *_summary(error)))
    columns = ["part", "kind", "n", "coefficients", "median", "mean", "bias"]
    return pd.DataFrame(rows, columns=columns)


def _summary(error: np.ndarray) -> tuple[float, float, float]:
    """Return the median and mean absolute error, and median signed error; NaN if there are none."""
    if not len(error):
        return np.nan, np.nan, np.nan
    size = np.abs(error)
    return float(np.median(size)), float(size.mean()), float(np.median(error))


# Held-out evaluation: whether a calibration improves predictions beyond noise.
#
# An error scores a predicted value only. A likelihood also scores the prediction's interval: if two
# predictions have equal errors, the one with the narrower interval is better.

#: Maximum number of blocks for estimating a standard error. A block consists of adjacent
#: measurements, because their noise is correlated.
_BLOCKS = 20

#: Degrees of freedom of Student's t for measurements, low enough that no single outlier dominates.
_DEGREES = 5.0

Errors = Float[np.ndarray, " n"]


#: Changes in error up to this value, between before and after calibration, count as rounding.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Verdict:
    """Change in held-out error after calibration, with its standard error.

    Attributes:
        where: Name of the held-out data set.
        count: Number of held-out measurements whose errors are compared.
        gain: Decrease of the mean error. For likelihoods, mean log ratio of the likelihood after
            calibration to that before.
        standard_error: Standard error of the gain; NaN for a single measurement.
        before: Mean absolute relative error before the calibration; None for likelihoods.
        after: Mean absolute relative error after the calibration; None for likelihoods.
        is_weighted: Whether the mean errors are weighted.
        median: Median absolute relative error after the calibration; None for likelihoods.
    """

    where: str
    count: int
    gain: float
    standard_error: float
    before: float | None = None
    after: float | None = None
    is_weighted: bool = False
    median: float | None = None

    @property
    def word(self) -> str:
        """Return ``better``, ``worse``, or ``no better`` for changes within one standard error."""
        if not abs(self.gain) > float(np.nan_to_num(self.standard_error)) + _ROUNDING:
            return "no better"
        return "better" if self.gain > 0 else "worse"

    @property
    def is_worse(self) -> bool:
        """Return whether the held-out error increased by more than its standard error."""
        return self.word == "worse"

    @property
    def figures(self) -> list[str]:
        """Return the errors before and after calibration, and their change, as a string."""
        if self.before is None or self.after is None:
            factor = float(np.exp(self.gain))
            change = f"{factor:.2f} +- {factor * self.standard_error:.2f} x"
            return ["", f"likelihood ratio {factor:.2f}", change]
        change = f"{-100 * self.gain:+.2f} +- {100 * self.standard_error:.2f} points"
        return [f"{100 * self.before:.2f} %", f"{100 * self.after:.2f} %", change]

    @property
    def facts(self) -> dict[str, object]:
        """Return the verdict as JSON values for the coefficient file."""
        figures = ("gain",) if self.before is None else ("before", "after")
        known = {name: getattr(self, name) for name in ("where", "count", *figures)}
        error = self.standard_error
        return known | {"standard_error": error if np.isfinite(error) else None}


def judge(where: str, before: Errors, after: Errors, weight: Errors | float = 1.0) -> Verdict:
    """Return the change in mean absolute relative error from before to after the calibration.

    Args:
        where: Name of the held-out data.
        before: Relative errors before the calibration, in chronological order.
        after: Relative errors after the calibration, in chronological order.
        weight: Weight of each error when they are averaged; weights need not be normalized.
    """
    share = np.broadcast_to(weight, before.shape)
    is_weighted = bool(np.ptp(share) > 0)
    sizes = [np.abs(error) * (share / share.mean()) for error in (before, after)]
    gain = sizes[0] - sizes[1]
    means = float(sizes[0].mean()), float(sizes[1].mean())
    error, median = _standard_error(gain), float(np.median(np.abs(after)))
    return Verdict(where, len(gain), means[0] - means[1], error, *means, is_weighted, median)


def judge_likelihood(
    where: str, before: Errors, before_spread: Errors, after: Errors, after_spread: Errors
) -> Verdict:
    """Return the change in mean log likelihood of measurements after the calibration.

    The likelihood is that of the log errors, given the predicted standard deviations.
    """
    gain = _log_density(after / after_spread) - np.log(after_spread)
    gain -= _log_density(before / before_spread) - np.log(before_spread)
    return Verdict(where, len(gain), float(gain.mean()), _standard_error(gain))


def judgements(
    where: str, ratios: Sequence[Errors], spreads: Sequence[Errors], weight: Errors | float = 1.0
) -> list[Verdict]:
    """Return the changes in error and in likelihood of held-out measurements after calibration.

    Args:
        where: Name of the held-out data.
        ratios: Predicted over measured values, before and after calibration.
        spreads: Relative standard deviations of the predictions, before and after calibration.
        weight: Weight of each relative error in its mean; likelihoods have no weights.
    """
    earlier, later = (ratio - 1 for ratio in ratios)
    before, after = zip(np.log(ratios), spreads, strict=True)
    return [judge(where, earlier, later, weight), judge_likelihood(where, *before, *after)]


def _log_density(z: Errors) -> Errors:
    """Return the log density of Student's t at ``z`` standard deviations, up to a constant."""
    return -(_DEGREES + 1) / 2 * np.log1p(z**2 / _DEGREES)


def _standard_error(gain: Errors) -> float:
    """Return the standard error of a mean change over measurements.

    It is computed from the means of blocks of adjacent measurements; NaN for a single measurement.
    """
    blocks = [block.mean() for block in np.array_split(gain, min(_BLOCKS, len(gain)))]
    return float(np.std(blocks, ddof=1) / np.sqrt(len(blocks))) if len(blocks) > 1 else np.nan


def is_kept(verdicts: Sequence[Verdict]) -> bool:
    """Return whether at least one held-out error or likelihood improved and none became worse."""
    words = {verdict.word for verdict in verdicts}
    return "better" in words and "worse" not in words
