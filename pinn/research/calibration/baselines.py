"""Other ways to predict step times, fitted to the same intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from importlib.util import find_spec

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.optimize import nnls

from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import step_costs
from pinn.physics.floor import floor_seconds
from pinn.physics.step import STEP_FEATURES
from pinn.research.calibration.hierarchical import Hierarchical
from pinn.specs.deployment import Deployment
from pinn.training.calibration.calibrate import calibrate_to, summary
from pinn.training.calibration.intervals import TEST, Intervals
from pinn.training.calibration.prior import Prior

#: Regressions of scikit-learn, which the extra ``research`` installs.
LEARNERS = ("ridge", "lasso", "polynomial", "gradient-boosted trees")

Times = Float[np.ndarray, " n"]
FitPredict = Callable[[Intervals, Intervals], Times]


def line(train: Intervals, test: Intervals) -> Times:
    """Four coefficients from nothing: 1, prefill tokens, decodes, context of the decodes."""
    return _least_squares(_load(train, 4), train.seconds, _load(test, 4))


def blackbox(train: Intervals, test: Intervals) -> Times:
    """beta0 + beta1 prefill tokens + beta2 decode tokens."""
    return _least_squares(_load(train, 3), train.seconds, _load(test, 3))


def roofline(deployment: Deployment) -> FitPredict:
    """max(FLOPs / peak, bytes / bandwidth) per phase, each over an efficiency that is tuned."""
    costs = step_costs([deployment])

    def phases(rows: Intervals) -> Float[np.ndarray, "n 2"]:
        parts = [_only(rows.sums, phase) for phase in ("prefill", "decode")]
        return np.stack([floor_seconds(costs, part) for part in parts], axis=1)

    def fit_predict(train: Intervals, test: Intervals) -> Times:
        slowness, _ = nnls(phases(train) / train.seconds[:, None], np.ones(len(train)))
        return phases(test) @ slowness

    return fit_predict


def _only(sums: BatchSums, phase: str) -> BatchSums:
    """The sums of one phase, those of the other set to 0."""
    return BatchSums(
        *(
            values if phase in name else np.zeros_like(values)
            for name, values in ((f.name, getattr(sums, f.name)) for f in fields(sums))
        )
    )


def _load(rows: Intervals, columns: int) -> Float[np.ndarray, "n columns"]:
    sums = rows.sums
    every = (np.ones(len(rows)), sums.prefill_tokens, sums.decode_requests, sums.decode_context)
    return np.stack(every[:columns], axis=1)


def _least_squares(
    train: Float[np.ndarray, "n parts"], seconds: Times, test: Float[np.ndarray, "tested parts"]
) -> Float[np.ndarray, " tested"]:
    """Least squares of relative errors."""
    found = np.linalg.lstsq(train / seconds[:, None], np.ones(len(seconds)), rcond=None)[0]
    return test @ found


def _learner(name: str) -> FitPredict:
    """A regression of scikit-learn on the load, KV usage and request count included."""

    def matrix(rows: Intervals) -> np.ndarray:
        return np.column_stack([_load(rows, 4)[:, 1:], rows.sums.prefill_requests, rows.kv_usage])

    def fit_predict(train: Intervals, test: Intervals) -> Times:
        from sklearn.ensemble import GradientBoostingRegressor
        from sklearn.linear_model import LassoCV, RidgeCV
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import PolynomialFeatures, StandardScaler

        strengths = np.logspace(-4, 4, 17)
        models = {
            "ridge": lambda: [StandardScaler(), RidgeCV(strengths)],
            "lasso": lambda: [StandardScaler(), LassoCV(max_iter=20_000)],
            "polynomial": lambda: [
                StandardScaler(), PolynomialFeatures(2), StandardScaler(), RidgeCV(strengths)
            ],
            "gradient-boosted trees": lambda: [GradientBoostingRegressor(random_state=0)],
        }  # fmt: skip
        model = make_pipeline(*models[name]())
        model.fit(matrix(train), train.seconds * 1e3)
        return model.predict(matrix(test)) / 1e3

    return fit_predict


def baselines(
    deployment: Deployment,
    prior: Prior,
    shared: Float[np.ndarray, " shared"],
) -> dict[str, FitPredict]:
    """Every method by name.

    Args:
        deployment: The new one.
        prior: Coefficients before a calibration.
        shared: Base and configuration coefficients of :func:`hierarchical.fit_donors`.

    Returns:
        Those that can be fitted here: the regressions of :data:`LEARNERS` need scikit-learn.
    """
    hierarchical = Hierarchical(deployment, shared)
    beta = prior.mean[: len(STEP_FEATURES)]
    return {
        "coefficients, before": lambda _, test: test.features @ beta,
        "coefficients, calibrated": lambda train, test: (
            test.features @ calibrate_to(train, prior).beta
        ),
        "hierarchical, donors alone": lambda _, test: hierarchical.before(test),
        "hierarchical, residual fitted": hierarchical.fit_predict,
        "roofline, tuned efficiencies": roofline(deployment),
        "blackbox": blackbox,
        "line of four coefficients": line,
        **{name: _learner(name) for name in LEARNERS if find_spec("sklearn") is not None},
    }


def baseline_table(
    methods: dict[str, FitPredict], train: Intervals, intervals: Intervals
) -> pd.DataFrame:
    """Errors on the last 20 % of the run's time after fitting to ``train``.

    Returns:
        Columns ``method``, ``kind``, ``n``, ``median``, ``mean``, ``bias`` and ``pearson_r``.
    """
    last = intervals.of_part(TEST)
    rows = []
    for kind, mask in (("windows", last.is_window), ("singles", last.is_single)):
        test = last.take(mask)
        if len(test) < 2:
            continue
        for name, fit_predict in methods.items():
            predicted = fit_predict(train, test)
            figures = summary(predicted / test.seconds - 1)
            varies = np.ptp(predicted) > 0
            r = np.corrcoef(predicted, test.seconds)[0, 1] if varies else np.nan
            rows.append({"method": name, "kind": kind, "n": len(test), **figures, "pearson_r": r})
    return pd.DataFrame(rows)
