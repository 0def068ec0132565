"""Global scalars, each model's departure from them, and alpha: what serving runs may set.

The scalars are those of ``pinn.teacher.scalars``, fitted to measured deployments and to runs at
once. A model that ran may depart from them: every operator, and all overheads together, by one
factor. So what is peculiar to one model (an engine path of its own) does not
bend what all share, and an unseen model gets the shared scalars alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import huber_loss

from pinn.errors import PinnError
from pinn.features.request import REQUEST_FEATURES
from pinn.features.step import STEP_FEATURES
from pinn.kernels.composition import OPERATORS
from pinn.network.loss import log_huber
from pinn.teacher.scalars import MULTIPLIER_SPREADS, OVERHEADS, Scalars, prior_scalars
from pinn.training.run_rows import RunRows
from pinn.training.serving_rows import STEP_TIME_ENTRIES, ServingRows

_OVERHEAD_COLUMNS = [list(STEP_FEATURES).index(name) for name in OVERHEADS]
_ALPHA_PRIOR = np.array([f.prior for f in REQUEST_FEATURES.values()])

#: Alphas that runs can teach. Those of the step time are not among them: a simulated request waits
#: for the steps in flight themselves, so they are 0 in a simulation.
LEARNED_ALPHAS = np.flatnonzero((_ALPHA_PRIOR > 0) & ~STEP_TIME_ENTRIES)


@dataclass(frozen=True)
class RunFitSettings:
    """How runs teach scalars and alpha.

    Attributes:
        rounds: Most rounds of simulating and fitting.
        tolerance: Root mean square log change of the simulated figures at which the rounds end.
        noise: Standard deviation of a figure's log error.
        outlier: Log error beyond which the loss grows linearly.
        operator_spread: Of a model's factor on one operator, standard deviation of its log.
        overhead_spread: Of a model's factor on all overheads, and of that on sampling.
        alpha_spread: Of each alpha around its prior.
        workers: Simulations at a time.
    """

    rounds: int = 6
    tolerance: float = 0.005
    noise: float = 0.03
    outlier: float = 0.1
    operator_spread: float = 0.4
    overhead_spread: float = 1.0
    alpha_spread: float = 0.7
    workers: int = 1


@dataclass(frozen=True)
class RunFit:
    """What runs and measured deployments taught.

    Attributes:
        scalars: Shared by every deployment.
        departures: Model -> log factors of each operator, then of all overheads.
        alpha: Seconds per request feature in a simulation.
    """

    scalars: Scalars = field(default_factory=prior_scalars)
    departures: Mapping[str, Float[np.ndarray, " operators_and_overheads"]] = field(
        default_factory=dict
    )
    alpha: Float[np.ndarray, " request_features"] = field(
        default_factory=lambda: np.where(STEP_TIME_ENTRIES, 0.0, _ALPHA_PRIOR)
    )

    def of_model(self, model: str) -> Scalars:
        """The scalars of a model: its own if it ran, else the shared ones."""
        if model not in self.departures:
            return self.scalars
        factors = np.exp(self.departures[model])
        return Scalars(
            self.scalars.multipliers * factors[:-1], self.scalars.overheads * factors[-1]
        )

    def to_json(self) -> dict[str, object]:
        """By name."""
        names = (*OPERATORS, "overheads")
        return {
            **self.scalars.to_json(),
            "departures": {
                model: dict(zip(names, np.exp(logs).tolist(), strict=True))
                for model, logs in self.departures.items()
            },
            "alpha": dict(zip(REQUEST_FEATURES, self.alpha.tolist(), strict=True)),
        }


def run_fit_from_json(values: Mapping[str, Any]) -> RunFit:
    """Rebuild what ``RunFit.to_json`` or ``Scalars.to_json`` wrote, alpha left out.

    Raises:
        PinnError: If an operator is missing or a name is unknown.
    """
    multipliers, overheads = values.get("multipliers", {}), values.get("overheads", {})
    unknown = set(overheads) - set(STEP_FEATURES)
    if set(multipliers) != set(OPERATORS) or unknown:
        raise PinnError(
            f"scalars of operators {', '.join(multipliers)} and overheads {', '.join(overheads)} "
            "are not those of this version: train the checkpoint again"
        )
    scalars = Scalars(
        np.array([multipliers[name] for name in OPERATORS]),
        np.array([overheads.get(name, 0.0) for name in STEP_FEATURES]),
    )
    departures = {
        model: np.log([factors[name] for name in (*OPERATORS, "overheads")])
        for model, factors in values.get("departures", {}).items()
    }
    return RunFit(scalars, departures)


@dataclass(frozen=True)
class Evidence:
    """What a fit looks at.

    Attributes:
        rows: Figures of runs.
        models: Model of each run.
        run_parts: Projected betas of each run's operators.
        serving: Measured deployments.
        serving_parts: Projected betas of each of ``serving.deployments``.
    """

    rows: RunRows
    models: Sequence[str]
    run_parts: Float[np.ndarray, "runs operators features"]
    serving: ServingRows
    serving_parts: Float[np.ndarray, "deployments operators features"]


def fit_to_runs(evidence: Evidence, current: RunFit, settings: RunFitSettings) -> RunFit:
    """Maximum a posteriori fit around the coefficients that the rows were simulated with."""
    names = sorted(set(evidence.models))
    place = np.array([names.index(model) for model in evidence.models])[evidence.rows.run]
    shared = len(OPERATORS) + len(OVERHEADS)
    sizes = [shared, len(names) * (len(OPERATORS) + 1), len(LEARNED_ALPHAS)]
    objective = _Objective(evidence, torch.tensor(place), len(names), sizes, settings)
    start = torch.tensor(_pack(current, names), requires_grad=True)
    base = objective.terms(start.detach())
    optimizer = torch.optim.LBFGS([start], max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = objective.loss(start, base)
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return _unpack(start.detach().numpy(), names)


def between(one: RunFit, other: RunFit) -> RunFit:
    """Halfway between two fits, in the logarithm of every coefficient."""
    names = sorted(set(one.departures) | set(other.departures))
    return _unpack((_pack(one, names) + _pack(other, names)) / 2, names)


class _Objective:
    """Negative log posterior of the packed log coefficients."""

    def __init__(
        self,
        evidence: Evidence,
        place: Tensor,
        models: int,
        sizes: Sequence[int],
        settings: RunFitSettings,
    ) -> None:
        rows, serving = evidence.rows, evidence.serving
        self.place, self.models, self.sizes, self.settings = place, models, list(sizes), settings
        self.run_terms = _terms(evidence.run_parts[rows.run], rows.step_features)
        parts = evidence.serving_parts[serving.deployment]
        self.serving_terms = _terms(parts, serving.tpot_features)
        request = rows.request_features[:, LEARNED_ALPHAS] * _ALPHA_PRIOR[LEARNED_ALPHAS]
        self.request_terms = torch.tensor(request)
        self.simulated, self.measured, self.gain, self.weight = (
            torch.tensor(v) for v in (rows.simulated_s, rows.measured_s, rows.gain, rows.weight)
        )
        self.tpot, self.tpot_weight = torch.tensor(serving.tpot_s), torch.tensor(serving.weight)
        own = [
            settings.overhead_spread if name == "sampling" else settings.operator_spread
            for name in OPERATORS
        ]
        own.append(settings.overhead_spread)
        self.spread = torch.tensor(
            [*MULTIPLIER_SPREADS]
            + [o.spread for o in OVERHEADS.values()]
            + own * models
            + [settings.alpha_spread] * sizes[2],
            dtype=torch.float64,
        )

    def terms(self, logs: Tensor) -> tuple[Tensor, Tensor]:
        """Seconds of each figure in steps and beside them."""
        shared, own, alpha = logs.split(self.sizes)
        departures = own.reshape(self.models, -1)[self.place]
        operators = len(OPERATORS)
        factors = torch.cat(
            [
                shared[:operators] + departures[:, :operators],
                shared[operators:] + departures[:, operators:],
            ],
            dim=1,
        ).exp()
        return (self.run_terms * factors).sum(1), self.request_terms @ alpha.exp()

    def loss(self, logs: Tensor, base: tuple[Tensor, Tensor]) -> Tensor:
        """Of runs, measured deployments and priors; ``base`` are the terms as simulated."""
        steps, beside = self.terms(logs)
        change = self.gain * (steps - base[0]) + beside - base[1]
        error = torch.log(self.simulated / self.measured) + change / self.simulated
        outlier = self.settings.outlier
        each = huber_loss(error, torch.zeros_like(error), reduction="none", delta=outlier)
        of_runs = (each * self.weight).sum() / self.settings.noise**2
        tpot = self.serving_terms @ logs[: self.sizes[0]].exp()
        of_serving = log_huber(tpot, self.tpot, self.tpot_weight, 0.1) * len(self.tpot)
        return of_runs + of_serving + ((logs / self.spread) ** 2).sum() / 2


def _terms(parts: np.ndarray, features: np.ndarray) -> Tensor:
    """Seconds of operators and overheads at their priors, ``[n, operators + overheads]``."""
    overheads = features[:, _OVERHEAD_COLUMNS] * prior_scalars().overheads[_OVERHEAD_COLUMNS]
    return torch.tensor(
        np.concatenate([np.einsum("nof,nf->no", parts, features), overheads], axis=1)
    )


def _pack(fit: RunFit, models: Sequence[str]) -> np.ndarray:
    priors = prior_scalars().overheads[_OVERHEAD_COLUMNS]
    none = np.zeros(len(OPERATORS) + 1)
    return np.concatenate(
        [
            np.log(fit.scalars.multipliers),
            np.log(fit.scalars.overheads[_OVERHEAD_COLUMNS] / priors),
            *(fit.departures.get(model, none) for model in models),
            np.log(fit.alpha[LEARNED_ALPHAS] / _ALPHA_PRIOR[LEARNED_ALPHAS]),
        ]
    )


def _unpack(logs: np.ndarray, models: Sequence[str]) -> RunFit:
    operators, width = len(OPERATORS), len(OPERATORS) + 1
    shared = operators + len(OVERHEADS)
    overheads = prior_scalars().overheads
    overheads[_OVERHEAD_COLUMNS] *= np.exp(logs[operators:shared])
    own = logs[shared : shared + len(models) * width].reshape(len(models), width)
    alpha = np.where(STEP_TIME_ENTRIES, 0.0, _ALPHA_PRIOR)
    alpha[LEARNED_ALPHAS] *= np.exp(logs[shared + own.size :])
    return RunFit(
        Scalars(np.exp(logs[:operators]), overheads),
        dict(zip(models, own.copy(), strict=True)),
        alpha,
    )
