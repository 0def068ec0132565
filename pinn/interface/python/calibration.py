"""Coefficients fitted to a server of one's own."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pinn.coefficients.coefficients import write_coefficient_set
from pinn.errors import PinnError
from pinn.interface.commands.calibrate import fit_measurements
from pinn.interface.commands.calibration_report import print_fit
from pinn.interface.python.prediction import FlagValue, given_flags, path_or_none, with_flags
from pinn.server.benchmarks.benchmark_run import GivenLoad
from pinn.server.calibration.calibrate import BetaSettings
from pinn.server.calibration.fit import Fit
from pinn.server.calibration.prior import Start
from pinn.simulator.engine_spec import EngineSpec
from pinn.specs.serving import ServingSpec


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
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            print_fit(self.fit, self.notes, self.appended)
        return text.getvalue()


@with_flags(ServingSpec, EngineSpec, GivenLoad)
def calibrate(
    benchmarks: str | Path | Sequence[str | Path] = (),
    model: str | Path | None = None,
    gpu: str | Path | None = None,
    *,
    observations: str | Path | None = None,
    steps: str | Path | None = None,
    append: str | Path | None = None,
    base: str | Path | None = None,
    checkpoint: str | Path | None = None,
    force: bool = False,
    budget: int = 500,
    select: str = "random",
    intervals: str = "both",
    seed: int = 0,
    **flags: FlagValue,
) -> CalibratedServer:
    """Fit the coefficients to your own server, as ``pinn calibrate`` does.

    Args:
        benchmarks: Files or folders that a benchmark tool wrote.
        model: What they were of: a name, or a config.json.
        gpu: What they ran on: a name, or a datasheet.
        observations: Folder that ``pinn ingest`` wrote, in place of benchmarks.
        steps: Folder that ``pinn measure`` wrote, or a CSV file like it, in place of benchmarks.
        append: File of an earlier calibration to go on from.
        base: Coefficients to start from, in place of the network.
        checkpoint: Trained network. [default: PINN_CHECKPOINT, else checkpoints/pinn.safetensors]
        force: Fit although the files do not match the flags.
        budget: Of traces: intervals to fit to; 0 for all.
        select: Of traces: ``random`` or ``active``.
        intervals: Of traces: ``windows``, ``singles`` or ``both``.
        seed: Of the random selection.
        **flags: Flags of the server, and of the load where the files leave it out.

    Raises:
        PinnError: If files cannot be read, do not match the flags, or say too little.
    """
    start = Start(path_or_none(append), path_or_none(base), path_or_none(checkpoint))
    paths = [benchmarks] if isinstance(benchmarks, str | Path) else benchmarks
    fit = fit_measurements(
        start,
        path_or_none(observations),
        [Path(path) for path in paths],
        None if model is None else str(model),
        None if gpu is None else str(gpu),
        BetaSettings(intervals, budget or None, select, seed),
        force,
        given_flags(flags, ServingSpec, EngineSpec, GivenLoad),
        path_or_none(steps),
    )
    return CalibratedServer(fit, append is not None, tuple(start.notes))
