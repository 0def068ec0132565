"""Scalars and alpha fitted to serving runs and deployments."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import Bounds, minimize
from torch import Tensor
from torch.nn.functional import huber_loss

from pinn.kernels.composition import COMPOSED_PARTS
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.metric_features import figure_features, figure_seconds
from pinn.simulator.run import Run
from pinn.simulator.simulate import Job, simulate_many
from pinn.surrogate.loss import log_huber
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES
from pinn.training import teacher
from pinn.training.data.measured_runs import MeasuredRun
from pinn.training.serving_fit import ttft_seconds
from pinn.training.serving_rows import PRIOR_ALPHA, ServingRows

# Measured serving runs as rows that are linear in the coefficients, given simulated batches.

#: Figure -> its weight in the fit. Means weigh most; a TTFT's 99th percentile depends on the few
#: cold prompts at the start of a run, which says little about anything else.
FIGURE_WEIGHTS = {
    "e2e_mean_s": 1.0, "e2e_p90_s": 0.3, "e2e_p99_s": 0.2, "ttft_mean_s": 1.0, "ttft_p90_s": 0.3,
    "itl_mean_s": 0.5,
}  # fmt: skip

#: Half the relative change of beta by which a figure's gain is measured.
_NUDGE = 0.01
#: Near saturation a small change of the step time changes E2E many times as much.
_GAINS = (0.3, 10.0)


@dataclass(frozen=True)
class RunRows:
    """``n`` figures of measured runs.

    Around the coefficients they were simulated with, log figure = log ``simulated_s`` +
    (``gain`` x change of ``step_features . beta`` + change of ``request_features . alpha``) /
    ``simulated_s``.

    Attributes:
        run: Index of each row's run.
        step_features: Mean step features behind the figure.
        request_features: Mean request features behind it.
        simulated_s: The figure in simulation.
        measured_s: As it was measured.
        gain: How many times as much the figure changes as its batches' own time: slower steps
            also make larger batches and longer queues.
        weight: Of each row in the fit.
    """

    run: Int[np.ndarray, " n"]
    step_features: Float[np.ndarray, "n step_features"]
    request_features: Float[np.ndarray, "n request_features"]
    simulated_s: Float[np.ndarray, " n"]
    measured_s: Float[np.ndarray, " n"]
    gain: Float[np.ndarray, " n"]
    weight: Float[np.ndarray, " n"]


#: The rows of no run.
NO_RUNS = RunRows(
    np.zeros(0, dtype=np.int64),
    np.zeros((0, len(STEP_FEATURES))),
    np.zeros((0, len(REQUEST_FEATURES))),
    *(np.zeros(0) for _ in range(4)),
)


def run_rows(
    runs: Sequence[MeasuredRun], latencies: Sequence[LinearLatency], workers: int = 1
) -> RunRows:
    """Simulate measured runs and work out what each measured figure depends on.

    A figure that reacts strongly counts less: its error is that of the step times, amplified. Runs
    of one model share the weight of the square root of their stages.

    Args:
        runs: What was measured.
        latencies: Coefficients of each.
        workers: Threads.
    """
    jobs = [
        Job(la.deployment, run.workload, replace(la, beta=la.beta * (1 + sign * _NUDGE)))
        for run, la in zip(runs, latencies, strict=True)
        for sign in (-1, 0, 1)
    ]
    simulated = simulate_many(jobs, workers)
    parts = [
        _columns(run, latency, simulated[3 * i : 3 * i + 3])
        for i, (run, latency) in enumerate(zip(runs, latencies, strict=True))
    ]
    index = np.repeat(np.arange(len(runs)), [len(part[-1]) for part in parts])
    step, request, seconds, measured, gain, weight = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    weight = weight * _model_weights(runs)[index] / np.maximum(gain, 1.0)
    return RunRows(index, step, request, seconds, measured, gain, weight)


def _columns(
    run: MeasuredRun, latency: LinearLatency, simulated: Sequence[Run]
) -> tuple[np.ndarray, ...]:
    """Columns of ``RunRows`` after the index; weights are those of the figures alone."""
    less, base, more = simulated
    places = itertools.product(run.stages, FIGURE_WEIGHTS)
    figures = [(stage, figure) for stage, figure in places if figure in run.measured[stage]]
    seconds, low, high = (
        np.array([figure_seconds(r, *figure) for figure in figures]) for r in (base, less, more)
    )
    step, request = figure_features(latency.deployment, base, figures)
    steps_s = step @ latency.beta
    gain = (high - low) / (2 * _NUDGE * steps_s)
    measured = np.array([run.measured[stage][figure] for stage, figure in figures])
    weight = np.array([FIGURE_WEIGHTS[figure] for _, figure in figures])
    return step, request, seconds, measured, np.clip(gain, *_GAINS), weight


def _model_weights(runs: Sequence[MeasuredRun]) -> np.ndarray:
    """1 / sqrt(stages of the same model) of each run."""
    names = [run.deployment.model.name for run in runs]
    stages = dict.fromkeys(names, 0)
    for name, run in zip(names, runs, strict=True):
        stages[name] += len(run.stages)
    return np.array([1 / np.sqrt(stages[name]) for name in names])


# Global scalars, each model's departure from them, and alpha: what measured servers may set.
#
# The scalars are those of ``pinn.training.teacher``, fitted to measured deployments and,
# where there are any, to serving runs at once; so is alpha, which means the same in both. A
# model that ran may depart from them: every operator, and all overheads together, by one factor.
# So what is peculiar to one model (an engine path of its own) does not bend what all share, and
# an unseen model gets the shared scalars alone.

_OVERHEAD_COLUMNS = [list(STEP_FEATURES).index(name) for name in teacher.OVERHEADS]

#: No coefficient is looked for farther from its prior: an exponential there says nothing any more.
FARTHEST_SPREADS = 6.0


@dataclass(frozen=True)
class RunFitSettings:
    """How measured servers teach scalars and alpha.

    Attributes:
        rounds: Most rounds of simulating and fitting.
        tolerance: Root mean square log change of the simulated figures at which the rounds end.
        noise: Standard deviation of a figure's log error.
        outlier: Log error beyond which the loss grows linearly.
        operator_spread: Of a model's factor on one operator, standard deviation of its log.
        overhead_spread: Of a model's factor on all overheads, and of that on sampling.
        alpha_spread: Of each alpha around its prior.
        tpot_delta: Log error of a deployment's TPOT beyond which the loss grows linearly.
        ttft_delta: The same for its TTFT.
        ttft_weight: Of a deployment's TTFT beside its TPOT.
        workers: Simulations at a time.
    """

    rounds: int = 5
    tolerance: float = 0.005
    noise: float = 0.03
    outlier: float = 0.1
    operator_spread: float = 0.4
    overhead_spread: float = 1.0
    alpha_spread: float = 0.7
    tpot_delta: float = 0.1
    ttft_delta: float = 0.1
    ttft_weight: float = 0.15
    workers: int = 1


@dataclass(frozen=True)
class RunFit:
    """What measured deployments and runs taught.

    Attributes:
        scalars: Shared by every deployment.
        departures: Model -> log factors of each operator, then of all overheads.
        alpha: Seconds per request feature in a simulation.
    """

    scalars: teacher.Scalars = field(default_factory=teacher.prior_scalars)
    departures: Mapping[str, Float[np.ndarray, " operators_and_overheads"]] = field(
        default_factory=dict
    )
    alpha: Float[np.ndarray, " request_features"] = field(default_factory=PRIOR_ALPHA.copy)

    def of_model(self, model: str) -> teacher.Scalars:
        """The scalars of a model: its own if it ran, else the shared ones."""
        if model not in self.departures:
            return self.scalars
        factors = np.exp(self.departures[model])
        shared = self.scalars
        return teacher.Scalars(shared.multipliers * factors[:-1], shared.overheads * factors[-1])

    def to_json(self) -> dict[str, object]:
        """By name."""
        names = (*COMPOSED_PARTS, "overheads")
        return {
            **self.scalars.to_json(),
            "departures": {
                model: dict(zip(names, np.exp(logs).tolist(), strict=True))
                for model, logs in self.departures.items()
            },
            "alpha": dict(zip(REQUEST_FEATURES, self.alpha.tolist(), strict=True)),
        }


def run_fit_from_json(values: Mapping[str, Any]) -> RunFit:
    """Rebuild what ``RunFit.to_json`` wrote; an alpha that is not there keeps its prior.

    Raises:
        PinnError: If an operator is missing or a name is unknown.
    """
    scalars = teacher.saved_scalars(values)
    departures = {
        model: np.log([factors[name] for name in (*COMPOSED_PARTS, "overheads")])
        for model, factors in values.get("departures", {}).items()
    }
    taught = values.get("alpha", {})
    alpha = [taught.get(name, PRIOR_ALPHA[i]) for i, name in enumerate(REQUEST_FEATURES)]
    return RunFit(scalars, departures, np.array(alpha))


@dataclass(frozen=True)
class Evidence:
    """What a fit looks at.

    Attributes:
        rows: Figures of runs; none where there are no runs.
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
    of_run = np.array([names.index(model) for model in evidence.models], dtype=np.int64)
    place = of_run[evidence.rows.run]
    shared = len(COMPOSED_PARTS) + len(teacher.OVERHEADS)
    sizes = [shared, len(names) * (len(COMPOSED_PARTS) + 1), len(PRIOR_ALPHA)]
    objective = _Objective(evidence, torch.tensor(place), len(names), sizes, settings)
    start = _pack(current, names)
    base = objective.terms(torch.tensor(start))

    def loss(logs: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.tensor(logs, requires_grad=True)
        value = objective.loss(point, base)
        (slope,) = torch.autograd.grad(value, point)
        return value.item(), slope.numpy()

    reach = FARTHEST_SPREADS * objective.spread.numpy()
    bounds = Bounds(np.minimum(start, -reach), np.maximum(start, reach))
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    return _unpack(found.x, names)


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
        self.tpot_terms = _terms(parts, serving.tpot_features)
        self.ttft_terms = _terms(parts, serving.ttft_features)
        self.ttft_request_terms = _request_terms(serving.request_features)
        self.ttft_offset = torch.tensor(serving.ttft_offset_s)
        self.request_terms = _request_terms(rows.request_features)
        self.simulated, self.measured, self.gain, self.weight = (
            torch.tensor(v) for v in (rows.simulated_s, rows.measured_s, rows.gain, rows.weight)
        )
        self.tpot, self.ttft, self.serving_weight = (
            torch.tensor(v) for v in (serving.tpot_s, serving.ttft_s, serving.weight)
        )
        own = [settings.operator_spread] * len(COMPOSED_PARTS) + [settings.overhead_spread]
        own[list(COMPOSED_PARTS).index("sampling")] = settings.overhead_spread
        spreads = [*teacher.MULTIPLIER_SPREADS, *(o.spread for o in teacher.OVERHEADS.values())]
        spreads += own * models + [settings.alpha_spread] * sizes[2]
        self.spread = torch.tensor(spreads, dtype=torch.float64)

    def terms(self, logs: Tensor) -> tuple[Tensor, Tensor]:
        """Seconds of each figure in steps and beside them."""
        shared, own, alpha = torch.split(logs, self.sizes)
        operators = len(COMPOSED_PARTS)
        departures = own.reshape(self.models, operators + 1)[self.place]
        multipliers = shared[:operators] + departures[:, :operators]
        overheads = shared[operators:] + departures[:, operators:]
        factors = torch.cat([multipliers, overheads], dim=1).exp()
        return (self.run_terms * factors).sum(1), self.request_terms @ alpha.exp()

    def loss(self, logs: Tensor, base: tuple[Tensor, Tensor]) -> Tensor:
        """Of runs, measured deployments and priors; ``base`` are the terms as simulated."""
        steps, beside = self.terms(logs)
        change = self.gain * (steps - base[0]) + beside - base[1]
        error = torch.log(self.simulated / self.measured) + change / self.simulated
        outlier = self.settings.outlier
        each = huber_loss(error, torch.zeros_like(error), reduction="none", delta=outlier)
        of_runs = (each * self.weight).sum() / self.settings.noise**2
        return of_runs + self._of_serving(logs) + ((logs / self.spread) ** 2).sum() / 2

    def _of_serving(self, logs: Tensor) -> Tensor:
        """Negative log likelihood of the measured deployments: the shared scalars hold for them."""
        shared, _, alpha = (part.exp() for part in torch.split(logs, self.sizes))
        s, weight = self.settings, self.serving_weight
        steps = self.ttft_terms @ shared
        beside = self.ttft_request_terms @ alpha + self.ttft_offset
        ttft = ttft_seconds(steps, beside)
        loss = log_huber(self.tpot_terms @ shared, self.tpot, weight, s.tpot_delta)
        loss = loss + s.ttft_weight * log_huber(ttft, self.ttft, weight, s.ttft_delta)
        return loss * len(self.tpot)


def _terms(parts: np.ndarray, features: np.ndarray) -> Tensor:
    """Seconds of operators and overheads at their priors, ``[n, operators + overheads]``."""
    priors = teacher.prior_scalars().overheads[_OVERHEAD_COLUMNS]
    operators = np.einsum("nof,nf->no", parts, features)
    return torch.tensor(np.concatenate([operators, features[:, _OVERHEAD_COLUMNS] * priors], 1))


def _request_terms(features: np.ndarray) -> Tensor:
    """Seconds of each alpha at its prior, ``[n, alphas]``."""
    return torch.tensor(features * PRIOR_ALPHA)


def _pack(fit: RunFit, models: Sequence[str]) -> np.ndarray:
    priors = teacher.prior_scalars().overheads[_OVERHEAD_COLUMNS]
    none = np.zeros(len(COMPOSED_PARTS) + 1)
    factors = fit.scalars.multipliers, fit.scalars.overheads[_OVERHEAD_COLUMNS] / priors
    own = (fit.departures.get(model, none) for model in models)
    alpha = fit.alpha / PRIOR_ALPHA
    return np.concatenate([*map(np.log, factors), *own, np.log(alpha)])


def _unpack(logs: np.ndarray, models: Sequence[str]) -> RunFit:
    operators, width = len(COMPOSED_PARTS), len(COMPOSED_PARTS) + 1
    shared = operators + len(teacher.OVERHEADS)
    overheads = teacher.prior_scalars().overheads
    overheads[_OVERHEAD_COLUMNS] *= np.exp(logs[operators:shared])
    own = logs[shared : shared + len(models) * width].reshape(len(models), width)
    alpha = PRIOR_ALPHA * np.exp(logs[shared + own.size :])
    scalars = teacher.Scalars(np.exp(logs[:operators]), overheads)
    return RunFit(scalars, dict(zip(models, own.copy(), strict=True)), alpha)
