"""What a calibration starts from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pinn.coefficients.coefficient_set import (
    CoefficientSet,
    deployment_facts,
    read_coefficient_set,
)
from pinn.coefficients.coefficients import Coefficients
from pinn.coefficients.surrogate import Surrogate
from pinn.errors import PinnError
from pinn.specs.data_folder import find_checkpoint
from pinn.specs.deployment import Deployment
from pinn.training.calibration.checkpoint_prior import checkpoint_prior
from pinn.training.calibration.prior import Prior, prior_of_set


class Start:
    """A posterior to go on from, coefficients of a file, or a checkpoint.

    Attributes:
        append: File of an earlier calibration, whose posterior is the prior; None for none.
        base: File of other coefficients; None for none.
        checkpoint: Trained network; None for the usual one.
        notes: What people should know of the fit, in order; whoever finds something adds it.

    Raises:
        PinnError: If both files are given.
    """

    def __init__(self, append: Path | None, base: Path | None, checkpoint: Path | None) -> None:
        if append is not None and base is not None:
            raise PinnError("--append goes on from a posterior, --base from coefficients: give one")
        self.append, self.base, self.checkpoint = append, base, checkpoint
        self.notes: list[str] = []

    def coefficients(self, deployment: Deployment) -> CoefficientSet:
        """The coefficients before."""
        file = self.append or self.base
        if file is not None:
            found = read_coefficient_set(file)
            found.check_deployment(deployment, str(file))
            return found
        surrogate = self._surrogate()
        coefficients = surrogate.coefficients([deployment])
        return CoefficientSet(deployment_facts(deployment), coefficients, surrogate.taught_alphas())

    def of_network(
        self, deployment: Deployment, start: CoefficientSet
    ) -> Callable[[Deployment], Coefficients]:
        """Coefficients of a deployment, or of another that might have run."""

        def coefficients_of(other: Deployment) -> Coefficients:
            if other == deployment:
                return start.coefficients
            return self._surrogate().coefficients([other])

        return coefficients_of

    def prior(self, deployment: Deployment, start: CoefficientSet) -> Prior:
        """How far the coefficients before may be off."""
        if self.append is not None:
            return prior_of_set(start, str(self.append))
        used = find_checkpoint(self.checkpoint)
        prior, missing = checkpoint_prior(used, deployment, start.coefficients)
        if missing:
            self.notes.append(f"the prior is an assumption: {missing}")
        return prior

    def _surrogate(self) -> Surrogate:
        return Surrogate.load(find_checkpoint(self.checkpoint))
