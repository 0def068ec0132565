"""Evidence for a prediction: its intervals, and its distance from measured deployments."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pinn.common import Json, JsonObject
from pinn.common.run_names import short_names
from pinn.surrogate.coefficient_set import CoefficientSet

#: Names of metrics in sentences, by interval metric.
METRIC_NAMES = {"tpot": "step time", "ttft": "TTFT"}

#: Lower and upper end of a prediction interval.
Ends = tuple[float, float]


@dataclass(frozen=True)
class Evidence:
    """Intervals of a prediction and of its step times, and their distance from the training data.

    Attributes:
        distance: JSON object with ``sentence``. For a network it also has ``nearest_measured``,
            ``distance`` in standard deviations, ``left_out_models`` (range of this distance for
            held-out models), ``outside_training_range`` and, with intervals, ``kind``, ``place``,
            ``kernel_distance``, ``by_operator`` and ``beyond_left_out``
            (``pinn.surrogate.uncertainty.network_evidence.describe_trust``).
        level: Share of measurements that the intervals cover.
        usual: Both ends of the interval below saturation, relative to the predicted value, by
            metric (``tpot``, ``ttft``); empty without intervals.
        coefficient_ends: Ends of the interval of each coefficient that has one, by ``beta.NAME``
            or ``alpha.NAME``.
        step_ends: Ends of the interval of each batch's step time, relative to the predicted time;
            empty without intervals.
        far: For each batch, a warning if its kernels are farther from measured kernels than any
            held-out data was.
        reference: Batch to which the intervals in ``usual`` apply.
        missing: Reason why a network has no intervals; empty if it has intervals.
    """

    distance: Mapping[str, Json]
    level: float = 0.0
    usual: Mapping[str, Ends] = field(default_factory=dict)
    coefficient_ends: Mapping[str, Ends] = field(default_factory=dict)
    step_ends: Sequence[Ends] = ()
    far: Sequence[Sequence[str]] = ()
    reference: str = ""
    missing: str = ""

    @property
    def sentence(self) -> str:
        """Return a sentence on errors for similar held-out data, or on a file's calibration."""
        return str(self.distance["sentence"])

    def intervals_json(self) -> JsonObject:
        """Return the value of the JSON key ``intervals``, or an empty object without intervals."""
        if self.missing:
            return {"intervals": {"missing": self.missing}}
        return {"intervals": {"level": self.level, **self.usual}} if self.usual else {}

    def intervals_line(self) -> str:
        """Return the intervals of all metrics in one sentence, or the reason why there are none."""
        if not self.usual:
            return f"No intervals: {self.missing}." if self.missing else ""
        named = ", ".join(
            f"{METRIC_NAMES[metric]} {100 * (low - 1):+.0f} % to {100 * (high - 1):+.0f} %"
            for metric, (low, high) in self.usual.items()
        )
        return f"{100 * self.level:.0f} % intervals below saturation ({self.reference}): {named}."


#: Function that returns the evidence for the step times of batches, which are given as text.
FindEvidence = Callable[[Sequence[str]], Evidence]


def file_evidence(found: CoefficientSet) -> Evidence:
    """Return the evidence for coefficients from a file without covariance: only their source."""
    names = source_names(found)
    text = (
        f"Calibrated to {names}."
        if names
        else "The coefficients are from a file, not from the network."
    )
    return Evidence({"sentence": text})


def source_names(found: CoefficientSet) -> str:
    """Return short names of the files to which coefficients were calibrated; empty if none."""
    paths = [source["path"] for source in found.calibration.get("sources", ())]
    return ", ".join(short_names(paths).values())
