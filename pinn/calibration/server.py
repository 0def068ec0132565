"""The result of a calibration."""

from dataclasses import dataclass
from pathlib import Path

from pinn.calibration import report
from pinn.calibration.fit import Fit
from pinn.common.screen import printed
from pinn.errors import PinnError
from pinn.surrogate.coefficient_set import set_to_json, write_coefficient_set


@dataclass(frozen=True)
class CalibratedServer:
    """A calibrated server.

    Attributes:
        fit: Fit to the measurements.
        appended: Whether it continues an earlier calibration.
        notes: What was left out, assumed or does not match.
    """

    fit: Fit
    appended: bool
    notes: tuple[str, ...]

    @property
    def kept(self) -> bool:
        """Whether held-out data is predicted better than before."""
        return self.fit.kept

    def to_json(self) -> dict[str, object]:
        """Return the content of the file that every ``coefficients=`` takes."""
        return dict(set_to_json(self.fit.coefficients))

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

    def print_report(self, details: bool = False) -> None:
        """Print errors, quantities and verdicts: one screen, or all with ``details``."""
        report.print_fit(self.fit, self.notes, self.appended, details)

    def __str__(self) -> str:
        """Return what ``pinn calibrate`` prints."""
        return printed(self.print_report)
