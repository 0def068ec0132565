"""Coefficients fitted to a server of one's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinn.api import requests
from pinn.api.arguments import read_request, with_arguments
from pinn.calibration.fit import Fit
from pinn.cli import calibration_report, outputs
from pinn.errors import PinnError
from pinn.measurements.benchmarks.benchmark_run import GivenLoad
from pinn.simulator.engine_spec import EngineSpec
from pinn.specs.serving import ServingSpec
from pinn.surrogate.coefficient_set import write_coefficient_set


@dataclass(frozen=True)
class CalibratedServer:
    """A calibration.

    Attributes:
        fit: What was found.
        appended: Whether it went on from an earlier one.
        notes: What was left out, assumed or does not match.
    """

    fit: Fit
    appended: bool
    notes: tuple[str, ...]

    @property
    def kept(self) -> bool:
        """Whether it is better than before on what was left out."""
        return self.fit.kept

    def save(self, path: str | Path) -> None:
        """Write the file that every ``coefficients=`` takes.

        Raises:
            PinnError: If the calibration is not better than what was before.
        """
        if not self.kept:
            raise PinnError(
                "the calibration is not better than what was before on what it has not seen: "
                "measure more, or other loads"
            )
        write_coefficient_set(self.fit.coefficients, Path(path))

    def __str__(self) -> str:
        """What ``pinn calibrate`` prints."""
        return outputs.printed(calibration_report.print_fit, self.fit, self.notes, self.appended)


_SPECIFICATIONS = (ServingSpec, EngineSpec, GivenLoad)


@with_arguments(*_SPECIFICATIONS, request=requests.CalibrationRequest)
def calibrate(
    benchmarks: str | Path | Sequence[str | Path] = (),
    model: str | Path | None = None,
    gpu: str | Path | None = None,
    **given: Any,
) -> CalibratedServer:
    """Fit the coefficients to your own server, as ``pinn calibrate`` does.

    Args:
        benchmarks: Files or folders that a benchmark tool wrote.
        model: What they were of: a name, or a config.json.
        gpu: What they ran on: a name, or a datasheet.
        **given: All else, flags of the server, and of the load where the files leave it out, too.

    Raises:
        PinnError: If files cannot be read, do not match the flags, or say too little.
    """
    own = {"benchmarks": benchmarks, "model": model, "gpu": gpu}
    asked, flags = read_request(requests.CalibrationRequest, given, *_SPECIFICATIONS, **own)
    fit, notes = calibration_report.fit_measurements(asked, flags)
    return CalibratedServer(fit, asked.append is not None, tuple(notes))
