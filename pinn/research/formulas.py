"""Methods that are a formula of the step with a few coefficients."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls

from pinn.evaluation.methods import NO_LOGS, Prediction, Predictor
from pinn.kernels.exclusion import Exclusion
from pinn.physics.request import REQUEST_FEATURES
from pinn.research.load_bases import Bases
from pinn.training.serving_rows import ServingRows

#: The request features that a formula may use beside its steps.
_ALPHAS = ("arrival_to_queue.constant", "arrival_to_queue.prompt_token")


@dataclass(frozen=True)
class LinearFormula:
    """Non-negative coefficients of a step basis, one vector for everything.

    TPOT = coefficients . basis, least squares of relative errors, rows weighted as the
    surrogate's. TTFT = the same coefficients on the steps before the first token, plus a constant,
    a time per prompt token and a multiple of the step time.
    """

    name: str
    bases: Bases
    logs: str = NO_LOGS

    @property
    def recipe(self) -> str:
        """Beside the name: what a kept prediction depends on."""
        return _recipe(self.bases)

    def learn(self, train: ServingRows, exclude: Exclusion, folder: Path) -> Predictor:  # noqa: ARG002
        """Fit coefficients to the training rows."""
        tpot, ttft = self.bases.of(train.row_id)
        coefficients = _relative_nnls(tpot, train.tpot_s, train.weight)
        rest = np.maximum(train.ttft_s - ttft @ coefficients, 0.0)
        alphas = _relative_nnls(
            _request_columns(train, tpot @ coefficients), rest, train.weight, train.ttft_s
        )

        def from_formula(rows: ServingRows) -> Prediction:
            tpot, ttft = self.bases.of(rows.row_id)
            steps = tpot @ coefficients
            return steps, ttft @ coefficients + _request_columns(rows, steps) @ alphas

        return from_formula


@dataclass(frozen=True)
class PerDeployment:
    """A formula fitted to each deployment's own rows: an optimistic bound, since it saw them.

    Not for an unseen pair.
    """

    name: str
    bases: Bases
    logs: str = NO_LOGS

    @property
    def recipe(self) -> str:
        """Beside the name: what a kept prediction depends on."""
        return _recipe(self.bases)

    def learn(self, train: ServingRows, exclude: Exclusion, folder: Path) -> Predictor:
        """Nothing is learned beforehand: the rows to predict are what it is fitted to."""
        del train
        formula = LinearFormula(self.name, self.bases)

        def fitted_to_them(rows: ServingRows) -> Prediction:
            tpot, ttft = np.empty(len(rows)), np.empty(len(rows))
            for deployment in np.unique(rows.deployment):
                own = rows.deployment == deployment
                part = rows.take(own)
                tpot[own], ttft[own] = formula.learn(part, exclude, folder)(part)
            return tpot, ttft

        return fitted_to_them


@dataclass(frozen=True)
class PublishedFormula:
    """A formula with coefficients that somebody published; nothing is learned.

    Attributes:
        name: In tables.
        bases: Basis functions, seconds.
        coefficients: Of the basis.
        request_s: Seconds before the first token beside the steps.
        token_s: Seconds per output token beside the steps.
    """

    name: str
    bases: Bases
    coefficients: Float[np.ndarray, " functions"]
    request_s: float
    token_s: float
    logs: str = NO_LOGS

    @property
    def recipe(self) -> str:
        """Beside the name: what a kept prediction depends on."""
        return _recipe(self.bases, self.coefficients, self.request_s, self.token_s)

    def learn(self, train: ServingRows, exclude: Exclusion, folder: Path) -> Predictor:  # noqa: ARG002
        """Nothing to learn."""

        def published(rows: ServingRows) -> Prediction:
            tpot, ttft = self.bases.of(rows.row_id)
            before = self.request_s + self.token_s
            return tpot @ self.coefficients + self.token_s, ttft @ self.coefficients + before

        return published


def _recipe(bases: Bases, *more: object) -> str:
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for values in (bases.tpot, bases.ttft):
        digest.update(np.ascontiguousarray(values).tobytes())
    digest.update(repr(more).encode())
    return digest.hexdigest()


def _request_columns(rows: ServingRows, step_s: np.ndarray) -> Float[np.ndarray, "n 3"]:
    """A constant, the prompt tokens taken in, and the step time."""
    columns = [rows.request_features[:, request_feature(name)] for name in _ALPHAS]
    return np.stack([*columns, step_s], axis=1)


def request_feature(name: str) -> int:
    """Place of a request feature in the registry."""
    return list(REQUEST_FEATURES).index(name)


def _relative_nnls(
    matrix: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray,
    scale: np.ndarray | None = None,
) -> np.ndarray:
    """Non-negative least squares of errors relative to ``scale``, by default the target."""
    factor = np.sqrt(weight) / (target if scale is None else scale)
    size = np.maximum(np.abs(matrix * factor[:, None]).max(axis=0), 1e-300)
    found, _ = nnls(matrix * factor[:, None] / size, target * factor)
    return found / size
