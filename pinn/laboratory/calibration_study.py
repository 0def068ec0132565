"""Calibration against baselines, and its error against the number of observations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import typer
from jaxtyping import Float
from scipy.optimize import nnls

from pinn.common.files import replace_atomically
from pinn.common.screen import WIDEST, Grid, page
from pinn.common.tables import write_frame
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.laboratory.formulas import row_bases
from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import step_costs
from pinn.physics.step import STEP_FEATURES
from pinn.physics.step_values import floor_seconds
from pinn.server.calibration.calibrate import (
    SELECTIONS,
    TEST,
    Intervals,
    calibrate_to,
    candidates,
    select,
    summary,
)
from pinn.server.calibration.prior import Prior
from pinn.training.data.deployments import observed_deployment

if TYPE_CHECKING:
    from pinn.server.calibration.run import Calibration


# The hierarchical two-stage pipeline (HFD-TL) for step times, as a baseline.
#
# latency = base . F_base + config . F_config + residual . F_residual. Base and configuration
# coefficients are fitted on a few donor deployments and frozen; a new one fits its residual
# alone. Donors here are three of the measured benchmarks whose steps follow from their load: a
# dense model and a mixture of experts on H100, and the dense one on another GPU (the method asks
# for an A100, which nobody published).

#: (model, GPU) of the donors.
DONORS = (
    ("meta-llama/Llama-3.3-70B-Instruct", "H100-SXM"),
    ("openai/gpt-oss-120b", "H100-SXM"),
    ("meta-llama/Llama-3.3-70B-Instruct", "B200-SXM"),
)

#: Strengths of the residual's ridge to choose from: from none to nothing but the donors.
STRENGTHS = 10.0 ** np.arange(-9, 1.01, 0.5)

Matrix = Float[np.ndarray, "n features"]


def shared_features(
    deployment: Deployment, sums: BatchSums, max_num_batched_tokens: float
) -> Matrix:
    """F_base and F_config of mean steps.

    Base: prefill tokens x FLOPs per token / peak, decode tokens x KV bytes per token / bandwidth,
    batch tokens / token budget. Configuration: 1 / TP, experts / 8, CPU offload on.
    """
    costs = step_costs([deployment])
    moe = deployment.model.moe
    experts = moe.experts / 8 if moe is not None else 0.0
    one = np.ones_like(sums.tokens)
    columns = [
        sums.prefill_tokens * (costs.gemm_token_s + costs.expert_token_s),
        sums.decode_requests * costs.kv_read_s,
        sums.tokens / max_num_batched_tokens,
        one / deployment.recipe.tensor_parallel_size,
        one * experts,
        one * (deployment.serving.cpu_offload_gb > 0),
    ]
    return np.stack(columns, axis=1)


def fit_donors(
    features: Matrix, seconds: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " features"]:
    """Base and configuration coefficients from the donors' mean times per output token.

    Args:
        features: Mean ``shared_features`` of each of the donors' benchmarks.
        seconds: Their measured mean times per output token.

    Raises:
        PinnError: If there are no donors.
    """
    if not len(seconds):
        raise PinnError(f"none of the donors {DONORS} is among the observations")
    found, _ = nnls(features / seconds[:, None], np.ones(len(seconds)))
    return found


@dataclass(frozen=True)
class Hierarchical:
    """The second stage: the residual of one deployment.

    Attributes:
        deployment: The new one.
        shared: Frozen base and configuration coefficients.
    """

    deployment: Deployment
    shared: Float[np.ndarray, " features"]

    def before(self, rows: Intervals) -> Float[np.ndarray, " n"]:
        """What the donors alone say."""
        budget = self.deployment.recipe.token_budget
        return shared_features(self.deployment, rows.sums, budget) @ self.shared

    def fit_predict(self, train: Intervals, test: Intervals) -> Float[np.ndarray, " n"]:
        """Fit the residual (1, KV usage squared) by ridge with cross-validated strength."""
        from sklearn.linear_model import RidgeCV

        ridge = RidgeCV(alphas=STRENGTHS, fit_intercept=True)
        ridge.fit(train.kv_usage[:, None] ** 2, train.seconds - self.before(train))
        return self.before(test) + ridge.predict(test.kv_usage[:, None] ** 2)


# The donors of the hierarchical pipeline: what their benchmarks teach a baseline.


def donor_coefficients(observations: pd.DataFrame) -> Float[np.ndarray, " features"]:
    """Base and configuration coefficients of the donors among measured deployments.

    Args:
        observations: As ``pinn.training.data.table.read_observations`` gives them.

    Raises:
        PinnError: If no donor is among them.
    """
    chosen = [
        (row["model"], observed_deployment(row).gpu.name) in DONORS
        for _, row in observations.iterrows()
    ]
    donors = observations[chosen]
    if donors.empty:
        return fit_donors(np.zeros((0, 1)), np.zeros(0))
    return fit_donors(row_bases(donors, hierarchical_basis).tpot, donors["tpot_s"].to_numpy())


def hierarchical_basis(
    deployment: Deployment, sums: BatchSums, _: float
) -> Float[np.ndarray, "batches functions"]:
    """F_base and F_config of batches."""
    return shared_features(deployment, sums, deployment.recipe.token_budget)


# Other ways to predict step times, fitted to the same intervals.

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


# Error against budget: how many observations a calibration needs, and does choosing them help?

#: What is shown, and over how many seeds; nothing is fitted with them.
BUDGETS = (10, 25, 50, 100, 250, 500, 1000)
SEEDS = 5

#: Share of the candidates that each seed offers, the same to every method: without it the active
#: selection, which draws nothing, would be judged on a single case.
OFFERED = 0.8

LINE = "line from nothing"


def budget_errors(
    intervals: Intervals,
    prior: Prior,
    kind: str = "windows",
    budgets: Sequence[int] = BUDGETS,
    seeds: int = SEEDS,
) -> pd.DataFrame:
    """Errors on the last 20 % of time after calibrations of every budget, selection and seed.

    Args:
        intervals: Of a run.
        prior: Coefficients before.
        kind: Intervals to calibrate on and to judge: ``windows`` or ``singles``.
        budgets: Numbers of observations; those beyond what is offered are left out.
        seeds: How often.

    Returns:
        Columns ``budget``, ``method`` (active, random, or a line fitted to the random ones),
        ``seed``, ``n`` (test rows), ``median``, ``mean`` and ``bias``.
    """
    last = intervals.of_part(TEST)
    test = last.take(last.is_window if kind == "windows" else last.is_single)
    everything = candidates(intervals, kind)
    beta = prior.mean[: len(STEP_FEATURES)]
    rows = []
    for seed in range(seeds):
        offer = np.random.default_rng(seed).permutation(len(everything))
        pool = everything.take(np.sort(offer[: max(1, int(OFFERED * len(everything)))]))
        for budget in (b for b in budgets if b <= len(pool)):
            chosen = {how: pool.take(select(how, pool, beta, budget, seed)) for how in SELECTIONS}
            predicted = {
                how: test.features @ calibrate_to(used, prior).beta for how, used in chosen.items()
            }
            predicted[LINE] = line(chosen["random"], test)
            for method, times in predicted.items():
                figures = summary(times / test.seconds - 1)
                entry = {"budget": budget, "method": method, "seed": seed, "n": len(test)}
                rows.append(entry | figures)
    return pd.DataFrame(rows)


def budget_table(errors: pd.DataFrame) -> pd.DataFrame:
    """Median and worst seed of the median error, per budget and method."""
    groups = errors.groupby(["budget", "method"])["median"]
    table = pd.DataFrame({"median_seed": groups.median(), "worst_seed": groups.max()})
    return table.reset_index()


def budget_plot(errors: pd.DataFrame, before: float, path: Path) -> None:
    """Draw the curve: medians over seeds, bands from the best seed to the worst.

    Args:
        errors: Of :func:`budget_errors`.
        before: Median error of the coefficients before any calibration, a share.
        path: PNG to write.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
    for method, color in zip((*SELECTIONS, LINE), ("tab:blue", "tab:orange", "gray"), strict=True):
        groups = 100 * errors[errors["method"] == method].pivot(
            index="budget", columns="seed", values="median"
        )
        label = method if method == LINE else f"calibrated, {method} selection"
        axis.plot(groups.index, groups.median(axis=1), "o-", color=color, label=label)
        axis.fill_between(
            groups.index, groups.min(axis=1), groups.max(axis=1), color=color, alpha=0.15, lw=0
        )
    axis.axhline(100 * before, color="black", lw=1, ls="--", label="before calibration")
    axis.set(xscale="log", yscale="log", xlabel="observations", ylabel="median error (%)")
    budgets = sorted(errors["budget"].unique())
    axis.set_xticks(budgets, [str(b) for b in budgets])
    axis.xaxis.minorticks_off()
    ticks = [t for t in (0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50) if t < 300 * before]
    axis.set_yticks(ticks, [f"{t:g}" for t in ticks])
    axis.yaxis.minorticks_off()
    axis.set_title(
        f"Mean step times of {errors['n'].iloc[0]} later intervals (last 20 % of the run)\n"
        f"median of {errors['seed'].nunique()} seeds, bands from the best to the worst",
        fontsize=11,
    )
    axis.grid(alpha=0.3)
    axis.legend()
    replace_atomically(path, lambda target: figure.savefig(target, format="png", dpi=120))
    plt.close(figure)


def write_study(found: Calibration, folder: Path) -> None:
    """Write and print a calibration beside baselines, and its error against the budget."""
    kind = "singles" if found.settings.kind == "singles" else "windows"
    prior = found.beta.prior
    errors = budget_errors(found.intervals, prior, kind)
    folder.mkdir(parents=True, exist_ok=True)
    write_frame(errors, folder / "budget.csv")
    before = found.errors.query(
        f"part == 'last 20 %' and kind == '{kind}' and coefficients == 'before'"
    )
    budget_plot(errors, float(before["median"].iloc[0]), folder / "budget.png")
    methods = baselines(found.deployment, prior, _donors())
    others = baseline_table(methods, candidates(found.intervals, kind), found.intervals)
    write_frame(others, folder / "baselines.csv")
    print_study(budget_table(errors), others)
    absent = [name for name in LEARNERS if name not in methods]
    if absent:
        typer.echo(f"left out {', '.join(absent)}: they need 'pip install scikit-learn'")
    typer.echo(f"wrote {folder}/budget.csv, budget.png and baselines.csv")


def _donors() -> np.ndarray:
    """The two-stage baseline's coefficients from the measured deployments that come along."""
    from pinn.training.data.silicon import read_silicon

    return donor_coefficients(read_silicon()[0])


def print_study(budgets: pd.DataFrame, others: pd.DataFrame) -> None:
    """Print error against budget and the baselines."""
    console = page(WIDEST)
    methods = (*SELECTIONS, LINE)
    caption = "median error (%), last 20 %: median / worst seed"
    table = Grid.of("budget", *methods, caption=caption)
    for budget, rows in budgets.groupby("budget"):
        by_method = {row["method"]: row for row in rows.to_dict("records")}
        cells = (
            " / ".join(f"{100 * by_method[m][f]:.2f}" for f in ("median_seed", "worst_seed"))
            for m in methods
        )
        table.add(str(budget), *cells)
    console.print(table)
    console.print()
    headings = ("method", "kind", "n", "median", "mean", "bias", "Pearson r")
    caption = "fitted to all of the first 60 %: errors on the last 20 % (%)"
    table = Grid.of(*headings, caption=caption, text=2)
    for row in others.to_dict("records"):
        figures = (f"{100 * row[f]:.2f}" for f in ("median", "mean", "bias"))
        table.add(row["method"], row["kind"], str(row["n"]), *figures, f"{row['pearson_r']:.2f}")
    console.print(table)
