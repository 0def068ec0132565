"""Held-out errors of a calibration by metric, and warnings of large errors."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pinn.calibration.alpha import LATER_REQUESTS
from pinn.calibration.benchmarks import BenchmarkCalibration
from pinn.calibration.calibrate import Verdict, judge
from pinn.calibration.calibrated import ServerCalibration
from pinn.calibration.posterior import step_half_widths
from pinn.calibration.prior import known_steps
from pinn.common.numbers import amount
from pinn.common.run_names import short_names

#: A larger median APE of a metric causes a warning. The value is an assumption, far outside the 90
#: % interval of every metric on held-out servers (docs/evaluation.md).
STILL_OFF = 0.25

#: Likely causes of a large latency error despite accurate step times, by the first word of the
#: metric's name. Some include a remedy.
_CAUSES = {
    "ttft": (
        "a server at or beyond saturation, where queue time dominates (omit such loads)",
        "prompts with shared prefixes (--prompt-groups, --shared-tokens)",
        "time spent in the client or in a gateway before the engine",
        "--max-num-batched-tokens or --max-num-seqs differ from the server's",
    ),
    "tpot": (
        "--gpu, --tensor-parallel-size or --quantization differ from the server's",
        "speculative decoding that is missing from the flags",
        "other workloads on the GPU, or a power cap",
    ),
    "e2e": (
        "outputs shorter than requested (--output-tokens)",
        "a server at or beyond saturation (omit such loads)",
    ),
}
_CAUSES |= {"itl": _CAUSES["tpot"], "step times": _CAUSES["tpot"]}
_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}


@dataclass(frozen=True)
class MetricError:
    """Error of a metric before and after a calibration.

    Attributes:
        metric: Display name, such as ``TTFT``.
        key: First word of the metric's name, used to look up likely causes of its error.
        verdict: Change of the metric's mean absolute relative error after calibration.
        is_held_out: Whether the measurements were held out; otherwise the calibration was fitted to
            them.
        word: Result as one word, such as ``better``, or a note that the metric was not fitted.
        cause: Known cause of a large error; empty if unknown.
    """

    metric: str
    key: str
    verdict: Verdict
    is_held_out: bool
    word: str
    cause: str = ""

    @property
    def warning(self) -> str | None:
        """Return a warning with a metric's error after calibration and its causes, or None."""
        if not (median := self.verdict.median or 0.0) > STILL_OFF:
            return None
        where = "held-out" if self.is_held_out else "fitted"
        over = amount(self.verdict.count, f"{where} measurement")
        causes = self.cause or "; ".join(_CAUSES.get(self.key, _CAUSES["e2e"]))
        error = f"{self.metric}: median APE is still {100 * median:.0f} %"
        return f"{error} over {over}. Likely causes: {causes}."


def metric_errors(found: ServerCalibration) -> list[MetricError]:
    """Return the held-out errors of each metric; for traces and steps, those of step times.

    Phases of a request outside engine steps are omitted. They take at most a few milliseconds, so
    their relative errors are not informative.
    """
    if isinstance(found, BenchmarkCalibration):
        return list(_of_benchmarks(found))
    return [
        MetricError(f"step times, {v.where}", "step times", v, True, v.word)
        for v in found.verdicts
        if v.median is not None and not v.where.startswith(LATER_REQUESTS)
    ]


def _of_benchmarks(found: BenchmarkCalibration) -> Iterator[MetricError]:
    held = len(found.held_out) > 0
    table = found.held_out if held else found.errors
    names = ", ".join(short_names(found.overloaded).values())
    cause = f"runs of an overloaded server ({names}), included because of --force" if names else ""
    for figure, rows in table.groupby("figure", sort=False):
        before, after = (_error(rows, side) for side in ("before", "after"))
        key = str(figure).partition("_")[0]
        verdict = judge("", before, after)
        word = "left as it was" if figure in found.left_alone else verdict.word
        name = _NAMES.get(key, str(figure).removesuffix("_per_s").replace("_", " "))
        yield MetricError(name, key, verdict, held, word if held else "fitted", cause)


def percentile_errors(found: BenchmarkCalibration) -> list[MetricError]:
    """Return the held-out errors of the highest measured percentile of each latency."""
    if found.percentiles.empty:
        return []
    highest: dict[str, str] = {}
    for figure in sorted(found.percentiles["figure"]):
        highest[figure.partition("_")[0]] = figure
    errors = []
    for key, figure in ((key, highest[key]) for key in _NAMES if key in highest):
        rows = found.percentiles[found.percentiles["figure"] == figure]
        verdict = judge("", *(_error(rows, side) for side in ("before", "after")))
        name = f"{_NAMES[key]} {figure.split('_')[1]}"
        errors.append(MetricError(name, key, verdict, True, f"{verdict.word} (not fitted)"))
    return errors


def _error(rows: pd.DataFrame, side: str) -> np.ndarray:
    return (rows[side] / rows["measured"] - 1).to_numpy(float)


def warnings_of(found: ServerCalibration) -> list[str]:
    """Return warnings about metrics with a large error after, or an unlikely one before the fit."""
    large = [text for each in metric_errors(found) if (text := each.warning) is not None]
    return large or _unlikely(found)


def _unlikely(found: ServerCalibration) -> list[str]:
    """Return a warning if times per output token were outside their interval before the fit.

    The fit absorbs a wrong flag, such as a similar GPU, so that errors after it do not show it.
    """
    if not isinstance(found, BenchmarkCalibration):
        return []
    rows = found.errors[found.errors["figure"].str.match("(tpot|itl)_")]
    if rows.empty:
        return []
    half = float(
        step_half_widths(found.prior, found.deployment, known_steps(found.deployment)[:1])[0]
    )
    error = float(np.median(np.log(rows["measured"] / rows["before"])))
    if abs(error) <= half:
        return []
    side = "longer" if error > 0 else "shorter"
    low, high = 100 * np.expm1(-half), 100 * np.expm1(half)
    return [
        f"Before the calibration, TPOT was {100 * abs(np.expm1(error)):.0f} % {side} than "
        f"predicted, outside the 90 % interval ({low:.0f} to +{high:.0f} %). A wrong flag has the "
        "same effect: check --model, --gpu, --tensor-parallel-size, --quantization and "
        "--engine-version."
    ]
