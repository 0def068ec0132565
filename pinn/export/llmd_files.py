"""Export of training entries for llm-d's latency predictor, and of its autoscaler's parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from pinn.calibration.posterior import posterior_step_half_widths
from pinn.common import progress
from pinn.common.files import json_text, write_json_file, write_whole
from pinn.engines.assumptions import assumption_lines
from pinn.engines.labels import hardware_label
from pinn.errors import PinnError
from pinn.export.blis_files import folder_name
from pinn.export.blis_vectors import latency_of
from pinn.export.configured import Configured
from pinn.export.llmd_autoscaler import Autoscaler, fit_autoscaler
from pinn.export.llmd_seed import seed_entries
from pinn.surrogate.coefficient_set import CoefficientSet, read_coefficient_set
from pinn.surrogate.uncertainty.distance import gpu_is_known
from pinn.surrogate.uncertainty.intervals import METRICS, read_calibration

#: Version of llm-d's latency predictor whose schema the training entries follow.
PREDICTOR_STATE = "llm-d-latency-predictor, main of 2026-08-10"
#: Batches whose posterior intervals determine the noise of a calibrated deployment: the first one
#: for TPOT, the second one for TTFT.
_STEPS = ("32 decode @ 700", "1 prefill 2048 @ 0")

_POST = Path(__file__).with_name("llmd_post.py")


@dataclass(frozen=True)
class SeedSettings:
    """Settings for the training entries of all configurations.

    Attributes:
        checkpoint: File of the network; its intervals are in the same folder.
        coefficients: Paths of coefficient files that replace the network's coefficients.
        entries: Number of training entries per configuration.
        seed: Random seed.
    """

    checkpoint: Path
    coefficients: Sequence[Path]
    entries: int
    seed: int


@dataclass(frozen=True)
class Noise:
    """Noise that is added to the latencies of training entries.

    Attributes:
        half_widths: Half-width of the 90 % interval of the log latency, by metric (``tpot`` and
            ``ttft``); empty for no noise.
        source: Source of the half-widths, or the reason that there are none.
    """

    half_widths: Mapping[str, float]
    source: str

    def __str__(self) -> str:
        """Return a description of the noise in TPOT and TTFT, in percent."""
        if not self.half_widths:
            return f"without noise: {self.source}"
        ends = ", ".join(
            f"{metric.upper()} {_percent(-half)} to {_percent(half)}"
            for metric, half in self.half_widths.items()
        )
        return f"random noise within the 90 % intervals of {self.source}: {ends}"


def _percent(log_factor: float) -> str:
    return f"{100 * math.expm1(log_factor):+.0f} %"


def write_seeds(configured: Configured, settings: SeedSettings, out: Path, skip: bool) -> None:
    """Write a folder for each configuration, and print its name, files and fit errors.

    Args:
        configured: Configurations with coefficients.
        settings: Settings of the training entries.
        out: Folder in which the configurations' folders are created.
        skip: Whether to skip configurations that cannot be exported.

    Raises:
        PinnError: If a configuration cannot be exported.
    """
    for row in progress.counted(range(len(configured)), "configuration"):
        try:
            print("\n".join(_write_seed(configured, row, settings, out)))
        except PinnError as error:
            if not skip:
                raise PinnError(f"configuration {row + 1}: {error}") from error
            print(f"configuration {row + 1} skipped: {error}")


def _write_seed(configured: Configured, row: int, settings: SeedSettings, out: Path) -> list[str]:
    """Write the folder of one configuration, and return the lines to print about it."""
    latency, noise = latency_of(configured, row), find_noise(configured, row, settings)
    entries = seed_entries(latency, noise.half_widths, settings.entries, settings.seed)
    autoscaler = fit_autoscaler(latency)
    folder = out / folder_name(configured, row)
    facts = _facts(configured, row, settings) | {
        "noise": asdict(noise),
        "entries": len(entries),
        "ranges": _ranges(entries),
    }
    write_json_file(folder / "seed.json", facts)
    write_autoscaler(configured, row, autoscaler, folder / "autoscaler.json")
    write_whole(folder / "post.py", _POST.read_text(encoding="utf-8"))
    write_entries(entries, datetime.now(UTC), folder / "entries.jsonl")
    ttft = int((entries["actual_ttft_ms"] > 0).sum())
    return [
        folder.name,
        f"  {ttft:,} entries of TTFT, {len(entries) - ttft:,} of TPOT",
        f"  {noise}",
        *(f"  {line}" for line in autoscaler.lines()),
    ]


def write_entries(entries: pd.DataFrame, moment: datetime, path: Path) -> None:
    """Write training entries as JSON lines, with the export time as ``timestamp``."""
    timestamp = moment.isoformat(timespec="seconds")
    rows = entries.to_dict("records")
    lines = [json_text({**each, "timestamp": timestamp}) for each in rows]
    write_whole(path, "\n".join([*lines, ""]))


def write_autoscaler(configured: Configured, row: int, found: Autoscaler, path: Path) -> None:
    """Write the parameters (alpha to delta) of llm-d's autoscaler, with the errors of their fit."""
    deployment = configured.deployments[row]
    hardware = hardware_label(deployment)
    variant = {"model": deployment.model.name, "accelerator": deployment.gpu.name}
    write_json_file(path, {**variant, "hardware": hardware, **found.to_json()})


def find_noise(configured: Configured, row: int, settings: SeedSettings) -> Noise:
    """Return the noise to add to a configuration's latencies, from its prediction intervals.

    For calibrated coefficients, the intervals come from the posterior in their file, otherwise from
    the checkpoint.
    """
    deployment, source = configured.deployments[row], configured.sources[row]
    found = _calibrated(source, settings.coefficients)
    if found is not None:
        halves = posterior_step_half_widths(found, deployment, _STEPS)
        return Noise(dict(zip(METRICS, map(float, halves), strict=True)), source)
    try:
        calibration = read_calibration(settings.checkpoint)
        known = gpu_is_known(settings.checkpoint, deployment)
    except PinnError as error:
        return Noise({}, str(error))
    return Noise(calibration.log_half_widths(deployment, known), settings.checkpoint.name)


def _calibrated(source: str, files: Sequence[Path]) -> CoefficientSet | None:
    """Return the calibrated coefficients in the file ``source``; None without a posterior."""
    for path in files:
        if path.name == source:
            found = read_coefficient_set(path)
            return None if found.covariance is None else found
    return None


def _facts(configured: Configured, row: int, settings: SeedSettings) -> dict[str, object]:
    """Return JSON values: the deployment's configuration and the origin of the training entries."""
    return {
        "predictor": PREDICTOR_STATE,
        "configuration": configured.configurations[row],
        "assumptions": assumption_lines(configured.deployments[row]),
        "coefficients": configured.sources[row],
        "provenance": configured.provenance,
        "seed": settings.seed,
    }


def _ranges(entries: pd.DataFrame) -> dict[str, list[float]]:
    """Return the minimum and maximum of each numeric field of training entries."""
    numbers = entries.select_dtypes("number")
    return {str(name): [float(of.min()), float(of.max())] for name, of in numbers.items()}
