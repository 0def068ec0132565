"""Calibration factors and alpha, fitted to measured deployments and serving runs.

Calibration factors turn kernel times into step times (``pinn.training.teacher``). Alpha denotes the
coefficients of a request's time outside the steps. Both are shared by all models and fitted jointly
to measured deployments and serving runs. A measured model also has per-model effects: one factor
for each operator, and one for all overheads together. An engine code path used by only one model
therefore does not distort the shared factors. Unseen models use the shared factors alone.

All parameters are logarithms of ratios to their priors, estimated by
``pinn.measurements.estimate``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.special import huber

from pinn.common.progress import note
from pinn.kernels.composition import COMPOSED_PARTS
from pinn.measurements import estimate
from pinn.measurements.runs.measured_runs import MeasuredRun
from pinn.simulator.linear_latency import LinearLatency
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES
from pinn.training import teacher
from pinn.training.run_rows import NO_RUNS, RunRows, run_rows
from pinn.training.serving_fit import LEAST_STEPS_SHARE, is_least_ttft
from pinn.training.serving_rows import PRIOR_ALPHA, ServingRows

_OVERHEAD_COLUMNS = [list(STEP_FEATURES).index(name) for name in teacher.OVERHEADS]
_OVERHEAD_PRIORS = teacher.prior_scalars().overheads[_OVERHEAD_COLUMNS]
_OPERATORS, _SHARED = len(COMPOSED_PARTS), len(COMPOSED_PARTS) + len(_OVERHEAD_COLUMNS)
#: Number of per-model effects: one for each operator, and one for all overheads together.
_OWN = _OPERATORS + 1
_DIRECT = _SHARED + len(PRIOR_ALPHA)

#: Matrix with 1 where a per-model effect (column) scales the times of a shared factor (row). The
#: rows of request coefficients (alphas) are 0, because they have no per-model effects.
_EFFECTS = np.eye(_DIRECT, _OWN)
_EFFECTS[_OPERATORS:_SHARED, -1] = 1.0
_EFFECTS[_SHARED:] = 0.0

#: Maximum distance of a log factor from its prior, in prior standard deviations, which keeps
#: exponentials from overflowing.
FARTHEST_SPREADS = 6.0

#: Maximum number of Gauss-Newton steps per fit, a numerical limit.
_STEPS = 200
#: Number of rounds with full changes of factors. Later rounds apply only half of each change,
#: because near saturation batches react so strongly that full changes would oscillate around the
#: solution.
_WHOLE_ROUNDS = 3
#: Median relative latency error above which a change that increases the error is halved. Far from
#: the solution, latencies are nonlinear, and the fit could converge to another minimum.
_TOO_FAR = 0.25

Logs = Float[np.ndarray, " logs"]


@dataclass(frozen=True)
class RunFitSettings:
    """Settings for fitting calibration factors and request coefficients (alpha) to servers.

    Attributes:
        rounds: Maximum number of rounds of simulating the runs and refitting.
        tolerance: Root mean square log change of the simulated metrics below which the rounds end.
        noise: Standard deviation of the log error of a run's latency metric.
        outlier: Log error of a run's latency metric beyond which the loss grows linearly.
        operator_spread: Prior standard deviation of the log of a model's factor for one operator.
        overhead_spread: Prior standard deviation of the log of a model's factor for all overheads,
            and of its factor for sampling.
        alpha_spread: Standard deviation of the log ratio of each alpha to its prior.
        tpot_delta: Log error of a deployment's TPOT beyond which the loss grows linearly.
        ttft_delta: Log error of a deployment's TTFT beyond which the loss grows linearly.
        ttft_weight: Weight of a deployment's TTFT relative to its TPOT.
        workers: Number of parallel simulations.
    """

    rounds: int = 5
    tolerance: float = 0.005
    noise: float = 0.03
    outlier: float = 0.1
    operator_spread: float = 0.1
    overhead_spread: float = 0.3
    alpha_spread: float = 0.7
    tpot_delta: float = 0.1
    ttft_delta: float = 0.1
    ttft_weight: float = 0.15
    workers: int = 1


@dataclass(frozen=True)
class RunFit:
    """Calibration factors, per-model effects and alpha, fitted to measured deployments and runs.

    Attributes:
        scalars: Calibration factors that all deployments share.
        model_effects: Logs of the factors for each operator, then for all overheads, by model.
        alpha: Coefficients of request features, in seconds per unit of each feature.
    """

    scalars: teacher.Scalars = field(default_factory=teacher.prior_scalars)
    model_effects: Mapping[str, Float[np.ndarray, " operators_and_overheads"]] = field(
        default_factory=dict
    )
    alpha: Float[np.ndarray, " request_features"] = field(default_factory=PRIOR_ALPHA.copy)

    def of_model(self, model: str) -> teacher.Scalars:
        """Return a model's calibration factors: the shared factors times its per-model effects."""
        if model not in self.model_effects:
            return self.scalars
        factors = np.exp(self.model_effects[model])
        shared = self.scalars
        return teacher.Scalars(shared.multipliers * factors[:-1], shared.overheads * factors[-1])

    def to_json(self) -> dict[str, object]:
        """Return factors, per-model effects and alpha by name, as JSON values."""
        names = (*COMPOSED_PARTS, "overheads")
        return {
            **self.scalars.to_json(),
            "model_effects": {
                model: dict(zip(names, np.exp(logs).tolist(), strict=True))
                for model, logs in self.model_effects.items()
            },
            "alpha": dict(zip(REQUEST_FEATURES, self.alpha.tolist(), strict=True)),
        }


#: Key for ``model_effects`` in checkpoints of earlier versions.
_OLD_EFFECTS = "departures"


def run_fit_from_json(values: Mapping[str, Mapping[str, Any]]) -> RunFit:
    """Return the fit that ``RunFit.to_json`` wrote as ``values``; missing alphas are priors.

    Raises:
        PinnError: If an operator is missing or a name is unknown.
    """
    scalars = teacher.saved_scalars(values)
    saved = values.get("model_effects", values.get(_OLD_EFFECTS, {}))
    effects = {
        model: np.log([factors[name] for name in (*COMPOSED_PARTS, "overheads")])
        for model, factors in saved.items()
    }
    taught = values.get("alpha", {})
    alpha = [taught.get(name, PRIOR_ALPHA[i]) for i, name in enumerate(REQUEST_FEATURES)]
    return RunFit(scalars, effects, np.array(alpha))


@dataclass(frozen=True)
class Evidence:
    """Measurements to which calibration factors are fitted.

    Attributes:
        runs: Measured serving runs; may be empty.
        run_parts: Step coefficients (betas) that explain each operator's time for each run's
            deployment, ``[runs, operators, features]``.
        serving: Measured deployments.
        serving_parts: Step coefficients (betas) that explain each operator's time for each of
            ``serving.deployments``.
        rows: Measured latency metrics of the runs, linearized around a simulation.
    """

    runs: Sequence[MeasuredRun]
    run_parts: Float[np.ndarray, "runs operators features"]
    serving: ServingRows
    serving_parts: Float[np.ndarray, "deployments operators features"]
    rows: RunRows = NO_RUNS

    @property
    def models(self) -> list[str]:
        """Return the name of each run's model."""
        return [run.deployment.model.name for run in self.runs]

    @property
    def served(self) -> list[str]:
        """Return the name of each measured deployment's model."""
        return [deployment.model.name for deployment in self.serving.deployments]

    @property
    def names(self) -> list[str]:
        """Return the sorted names of all measured models."""
        return sorted({*self.models, *self.served})


def fit_to_runs(evidence: Evidence, current: RunFit, settings: RunFitSettings) -> RunFit:
    """Return the most probable factors and alpha, given runs linearized at ``current``.

    Args:
        evidence: Measurements to fit to.
        current: Factors and alpha with which ``evidence.rows`` was simulated.
        settings: Noise and prior spreads.
    """
    names = evidence.names
    start = _pack(current, names)
    spread = _spreads(len(names), settings)
    prior = estimate.Gaussian(np.zeros(len(start)), np.diag(spread**2))
    figures = _figures(evidence, start, settings)

    def misfit(logs: Logs) -> float:
        errors = ((each, each.errors(logs)[0]) for each in figures)
        loss = sum(float(each.weight @ huber(each.delta, error)) for each, error in errors)
        return loss + prior.distance_squared(logs) / 2

    def rows_at(logs: Logs) -> estimate.LinearRows:
        rows = [each.rows_at(logs) for each in figures]
        return estimate.LinearRows(*map(np.concatenate, zip(*rows, strict=True)))

    reach = FARTHEST_SPREADS * spread
    bounds = np.minimum(start, -reach), np.maximum(start, reach)
    problem = estimate.Problem(prior, *bounds, rows_at, misfit)
    return _unpack(estimate.most_probable(problem, start, _STEPS), names)


def _spreads(models: int, settings: RunFitSettings) -> Logs:
    """Return the prior standard deviation of each log factor: shared, alpha, then per model."""
    own = np.full(_OWN, settings.operator_spread)
    own[[list(COMPOSED_PARTS).index("sampling"), -1]] = settings.overhead_spread
    shared = [*teacher.MULTIPLIER_SPREADS, *(o.spread for o in teacher.OVERHEADS.values())]
    alpha = np.full(len(PRIOR_ALPHA), settings.alpha_spread)
    return np.concatenate([shared, alpha, np.tile(own, models)])


@dataclass(frozen=True)
class _Figures:
    """Measured latencies, each modelled as a sum of seconds scaled by factors.

    Attributes:
        terms: Time in seconds that each factor or alpha contributes if it has its prior value,
            ``[n, factors]``.
        model: Index of each row's model, for per-model effects; -1 for the shared factors alone.
        offset_s: Time in seconds that no factor scales; for runs, minus the simulated sum.
        measured_s: Measured metric, seconds.
        weight: Weight of each row's loss.
        delta: Log error beyond which the loss grows linearly.
        simulated_s: Simulated metric, to which the change of the sum is added; None if the metric
            equals the sum.
    """

    terms: Float[np.ndarray, "n factors"]
    model: Int[np.ndarray, " n"]
    offset_s: Float[np.ndarray, " n"]
    measured_s: Float[np.ndarray, " n"]
    weight: Float[np.ndarray, " n"]
    delta: float
    simulated_s: Float[np.ndarray, " n"] | None = None

    def seconds(self, logs: Logs) -> Float[np.ndarray, "n factors"]:
        """Return each term times its factor and per-model effects, in seconds, ``[n, factors]``."""
        own = np.vstack([logs[_DIRECT:].reshape(-1, _OWN), np.zeros(_OWN)])
        return self.terms * np.exp(logs[:_DIRECT] + own[self.model] @ _EFFECTS.T)

    def errors(self, logs: Logs) -> tuple[np.ndarray, Float[np.ndarray, "n factors"]]:
        """Return each latency's log error, and its derivatives with respect to the log factors."""
        seconds = self.seconds(logs)
        if (simulated := self.simulated_s) is not None:
            share = seconds / simulated[:, None]
            error = np.log(simulated / self.measured_s)
            return error + share.sum(axis=1) + self.offset_s / simulated, share
        steps, beside = seconds[:, :_SHARED].sum(axis=1), seconds[:, _SHARED:].sum(axis=1)
        is_least = is_least_ttft(steps, beside + self.offset_s)
        seconds[is_least] *= np.where(np.arange(_DIRECT) < _SHARED, LEAST_STEPS_SHARE, 0.0)
        total = seconds.sum(axis=1) + np.where(is_least, 0.0, self.offset_s)
        return np.log(total / self.measured_s), seconds / total[:, None]

    def rows_at(self, logs: Logs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return matrix, target and standard deviations of the problem linearized at ``logs``."""
        error, direct = self.errors(logs)
        # Derivatives with respect to per-model effects; the axes are latency, model and effect.
        own = np.zeros((len(error), (len(logs) - _DIRECT) // _OWN, _OWN))
        of_model = self.model >= 0
        own[of_model, self.model[of_model]] = (direct @ _EFFECTS)[of_model]
        matrix = np.hstack([direct, own.reshape(len(error), len(logs) - _DIRECT)])
        deviation = estimate.huber_deviation(error, self.weight**-0.5, self.delta)
        return matrix, matrix @ logs - error, deviation


def _figures(evidence: Evidence, start: Logs, settings: RunFitSettings) -> list[_Figures]:
    """Return the latencies to fit: those of serving runs, then TPOT and TTFT of deployments."""
    rows, serving = evidence.rows, evidence.serving
    of_run = np.searchsorted(evidence.names, evidence.models)
    of_deployment = np.searchsorted(evidence.names, evidence.served)
    terms = _terms(evidence.run_parts[rows.run], rows.step_features, rows.request_features)
    terms[:, :_SHARED] *= rows.gain[:, None]
    measured = rows.measured_s, rows.weight / settings.noise**2, settings.outlier
    none = np.zeros(len(rows.run))
    runs = _Figures(terms, of_run[rows.run], none, *measured, simulated_s=rows.simulated)
    runs = replace(runs, offset_s=-runs.seconds(start).sum(axis=1))
    parts = evidence.serving_parts[serving.deployment]
    shared, nothing = of_deployment[serving.deployment], np.zeros(len(serving))
    weight = serving.weight * len(serving) / serving.weight.sum()
    requests = serving.request_features
    tpot = _terms(parts, serving.tpot_features, 0 * requests), shared, nothing, serving.tpot_s
    ttft = _terms(parts, serving.ttft_features, requests), shared, serving.ttft_offset_s
    s = settings
    return [
        runs,
        _Figures(*tpot, weight / s.tpot_delta, s.tpot_delta),
        _Figures(*ttft, serving.ttft_s, s.ttft_weight * weight / s.ttft_delta, s.ttft_delta),
    ]


def _terms(
    parts: Float[np.ndarray, "n operators features"],
    steps: Float[np.ndarray, "n step_features"],
    requests: Float[np.ndarray, "n request_features"],
) -> Float[np.ndarray, "n factors"]:
    """Return the time in seconds that each operator, overhead and alpha adds at its prior value."""
    operators = np.einsum("nof,nf->no", parts, steps)
    overheads = steps[:, _OVERHEAD_COLUMNS] * _OVERHEAD_PRIORS
    return np.hstack([operators, overheads, requests * PRIOR_ALPHA])


def _pack(fit: RunFit, models: Sequence[str]) -> Logs:
    none = np.zeros(_OWN)
    overheads = fit.scalars.overheads[_OVERHEAD_COLUMNS] / _OVERHEAD_PRIORS
    factors = fit.scalars.multipliers, overheads, fit.alpha / PRIOR_ALPHA
    return np.concatenate(
        [*map(np.log, factors), *(fit.model_effects.get(m, none) for m in models)]
    )


def _unpack(logs: Logs, models: Sequence[str]) -> RunFit:
    overheads = teacher.prior_scalars().overheads
    overheads[_OVERHEAD_COLUMNS] *= np.exp(logs[_OPERATORS:_SHARED])
    own = logs[_DIRECT:].reshape(len(models), _OWN)
    scalars = teacher.Scalars(np.exp(logs[:_OPERATORS]), overheads)
    alpha = PRIOR_ALPHA * np.exp(logs[_SHARED:_DIRECT])
    return RunFit(scalars, dict(zip(models, own.copy(), strict=True)), alpha)


# Fit in rounds: simulate the runs, then fit to the simulated batches.


def run_latencies(
    fit: RunFit, runs: Sequence[MeasuredRun], parts: Float[np.ndarray, "runs operators features"]
) -> list[LinearLatency]:
    """Return the latency model of each run's deployment, with coefficients from a fit.

    Args:
        fit: Calibration factors, per-model effects and alpha.
        runs: Measured serving runs.
        parts: Step coefficients (betas) that explain each operator's time for each run's
            deployment. Factors and effects turn them into the betas of the deployment's steps.
    """
    return [
        LinearLatency(d := run.deployment, fit.of_model(d.model.name).betas(of_run), fit.alpha)
        for run, of_run in zip(runs, parts, strict=True)
    ]


@dataclass(frozen=True)
class RunSimulation:
    """Simulation of measured runs with given log factors; implements ``estimate.Simulation``.

    Attributes:
        evidence: Runs and measured deployments, without simulated rows.
        settings: Noise, prior spreads and number of rounds.
    """

    evidence: Evidence
    settings: RunFitSettings

    @property
    def names(self) -> list[str]:
        """Return the names of all measured models."""
        return self.evidence.names

    def simulate(self, logs: Logs) -> RunRows:
        """Return the runs' latency metrics, simulated with log factors and linearized there."""
        runs, parts = self.evidence.runs, self.evidence.run_parts
        latencies = run_latencies(_unpack(logs, self.names), runs, parts)
        return run_rows(runs, latencies, self.settings.workers)

    def refit(self, rows: RunRows, logs: Logs) -> Logs:
        """Return the most probable log factors, given latency metrics simulated with ``logs``."""
        evidence = replace(self.evidence, rows=rows)
        found = fit_to_runs(evidence, _unpack(logs, self.names), self.settings)
        return _pack(found, self.names)

    def misfit(self, rows: RunRows, logs: Logs) -> float:  # noqa: ARG002  the prior has no say
        """Return the median relative error of simulated latencies, but at least ``_TOO_FAR``.

        Differences between smaller errors therefore do not cause an update to be halved.
        """
        error = float(np.median(np.abs(rows.simulated / rows.measured_s - 1)))
        note(f"median error of a figure {100 * error:.2f} %")
        return max(error, _TOO_FAR)


def fit_in_rounds(evidence: Evidence, settings: RunFitSettings) -> RunFit:
    """Fit calibration factors, per-model effects and alpha to measured deployments and runs.

    Each round simulates the runs with the current fit, then fits to the resulting batches. Far from
    the solution, an update that increases the error is halved. The rounds end when the simulated
    metrics hardly change. Without runs, one fit suffices, because the batches in closed loops
    hardly depend on the coefficients.
    """
    if not evidence.runs:
        return fit_to_runs(evidence, RunFit(), settings)
    model = RunSimulation(evidence, settings)
    start = _pack(RunFit(), model.names)
    rounds = estimate.Rounds(settings.rounds, settings.tolerance, _WHOLE_ROUNDS)
    found = estimate.simulate_and_refit(model, start, model.simulate(start), rounds)
    return _unpack(found.following, model.names)
