"""Measured deployments, each group calibrated from three of its rows and scored on the others.

A group is a model on a GPU in one format, parallelism and engine version, with six rows or more.
Its three rows are of one length at the concurrencies nearest to 4, 16 and 64; ten draws where there
is a choice. All starts from the network that never saw the model, with intervals learned on the
other models, and the settings of the calibration are those that did best on the other models'
groups: the scalars' spread and the noise are the calmest within one standard error.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.stats import t as student

from pinn.evaluation.calibration_scores.left_out import LeftOut, read_left_out
from pinn.training.calibration.figure_noise import TIME_NOISE, TTFT_NOISE
from pinn.training.calibration.posterior import Posterior, fit_posterior, relative_spread
from pinn.training.calibration.prior import SCALAR_SPREAD, Prior, assumed_prior
from pinn.training.calibration.verdict import is_kept, judge
from pinn.trust.conformal import NORMAL_QUANTILE

_CONCURRENCIES = (4, 16, 64)
_LEAST_ROWS, _DRAWS, _SEED = 6, 10, 0
_GROUP = [
    "model", "gpu", "precision", "tensor_parallel_size", "enable_expert_parallel", "engine_version",
]  # fmt: skip

#: Settings to choose from: relative spread of a scalar, noise of times between tokens, of TTFT.
_GRID = tuple(itertools.product((0.2, 0.35, 0.5, 0.7), (0.02, 0.03, 0.045), (0.06, 0.09, 0.13)))

#: Degrees of freedom of the predictive density that settings are compared by.
_DEGREES = 5

_FIGURES = ("tpot", "ttft")


@dataclass(frozen=True)
class Draw:
    """Rows to calibrate on, and the others of their group."""

    group: int
    train: Int[np.ndarray, " three"]
    test: Int[np.ndarray, " others"]


@dataclass(frozen=True)
class Settings:
    """What a calibration assumes: see ``_GRID``."""

    spread: float
    time_noise: float
    ttft_noise: float

    @property
    def noise(self) -> tuple[float, float]:
        """Of TPOT and of TTFT."""
        return self.time_noise, self.ttft_noise


def score() -> tuple[pd.DataFrame, dict[str, float]]:
    """Median and mean errors (%) before and after, by model, and the coverage of intervals."""
    data = read_left_out()
    draws = all_draws(data)
    densities = np.array([[_density(d, data, Settings(*s)) for d in draws] for s in _GRID])
    group = np.array([d.group for d in draws])
    of_model = np.array([data.model[d.train[0]] for d in draws])
    parts = []
    for model in np.unique(of_model):
        others = of_model != model
        chosen = choose(densities[:, others], group[others])
        mine = [d for d, other in zip(draws, others, strict=True) if not other]
        parts += [scored(d, data, chosen).assign(settings=str(chosen)) for d in mine]
    released = choose(densities, group)
    rows = pd.concat(parts, ignore_index=True)
    table = pd.DataFrame(
        [
            summary(part[part["figure"] == figure]) | {"model": name, "figure": figure}
            for name, part in [("all", rows), *rows.groupby("model")]
            for figure in _FIGURES
        ]
    )
    table = table[["model", "figure", *[c for c in table if c not in ("model", "figure")]]]
    print(f"{len(set(rows['group']))} groups, {len(draws)} draws; settings of all: {released}, "
          f"in use: {Settings(SCALAR_SPREAD, TIME_NOISE, TTFT_NOISE)}")  # fmt: skip
    for model, part in rows.groupby("model"):
        print(f"  chosen without {model!s}: {part['settings'].iloc[0]}")
    return table, summary(rows[rows["figure"] == "tpot"])


def all_draws(data: LeftOut) -> list[Draw]:
    """Every group's draws."""
    table = data.observations
    group = table.groupby(_GROUP, sort=False).ngroup().to_numpy()
    rng = np.random.default_rng(_SEED)
    found = []
    for number in np.flatnonzero(np.bincount(group) >= _LEAST_ROWS):
        rows = np.flatnonzero(group == number)
        choices = [np.array(c) for c in _choices(table.iloc[rows], rows)]
        if len(choices) > _DRAWS:
            choices = [choices[i] for i in rng.choice(len(choices), _DRAWS, replace=False)]
        found += [Draw(int(number), c, np.setdiff1d(rows, c)) for c in choices]
    return found


def _choices(table: pd.DataFrame, rows: np.ndarray) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for _, part in table.assign(row=rows).groupby(["prompt_tokens", "output_tokens"]):
        at: list[int] = []
        left = sorted(part["concurrency"].unique())
        if len(left) < len(_CONCURRENCIES):
            continue
        for wanted in _CONCURRENCIES:
            at.append(min(left, key=lambda c: abs(np.log(c / wanted))))
            left.remove(at[-1])
        found += itertools.product(*(part.loc[part["concurrency"] == c, "row"] for c in at))
    return found


def calibrated(rows: Int[np.ndarray, " rows"], data: LeftOut, settings: Settings) -> Posterior:
    """The posterior of some rows."""
    return fit_posterior(
        _prior(rows[0], data, settings),
        data.features[rows].reshape(2 * len(rows), -1),
        data.measured[rows].ravel(),
        np.tile(settings.noise, len(rows)),
        data.offset[rows].ravel(),
    )


def _prior(row: int, data: LeftOut, settings: Settings) -> Prior:
    own, known = data.doubt(row)
    return assumed_prior(data.base[row], own, known, settings.spread)


def _log_errors(
    rows: np.ndarray, data: LeftOut, mean: np.ndarray
) -> Float[np.ndarray, "rows figures"]:
    predicted = data.features[rows] @ mean + data.offset[rows]
    return np.log(predicted / data.measured[rows])


def _spreads(
    rows: np.ndarray, data: LeftOut, found: Posterior | Prior, settings: Settings
) -> Float[np.ndarray, "rows figures"]:
    flat = data.features[rows].reshape(2 * len(rows), -1)
    spread = relative_spread(flat, found.mean, found.covariance).reshape(len(rows), 2)
    return np.hypot(spread, settings.noise)


def choose(
    density: Float[np.ndarray, "settings draws"], group: Int[np.ndarray, " draws"]
) -> Settings:
    """The calmest settings whose mean log density is the best within one standard error."""
    candidates = [Settings(*each) for each in _GRID]
    by_group = np.array([density[:, group == g].mean(axis=1) for g in np.unique(group)]).T
    best = int(by_group.mean(axis=1).argmax())
    behind = by_group[best] - by_group
    error = behind.std(axis=1, ddof=1) / np.sqrt(by_group.shape[1])
    allowed = [s for s, b, e in zip(candidates, behind.mean(axis=1), error, strict=True) if b <= e]
    return min(allowed, key=lambda s: (s.spread, -s.time_noise, -s.ttft_noise))


def _density(draw: Draw, data: LeftOut, settings: Settings) -> float:
    found = calibrated(draw.train, data, settings)
    spread = _spreads(draw.test, data, found, settings)
    error = _log_errors(draw.test, data, found.mean)
    return float((student.logpdf(error / spread, _DEGREES) - np.log(spread)).mean())


def scored(draw: Draw, data: LeftOut, settings: Settings) -> pd.DataFrame:
    """Errors and intervals of a draw's other rows; what is not better left out is not kept."""
    prior = _prior(draw.train[0], data, settings)
    noise = np.array(settings.noise)
    before = _log_errors(draw.train, data, prior.mean) / noise
    left_out = [
        _log_errors(
            np.array([row]),
            data,
            calibrated(draw.train[draw.train != row], data, settings).mean,
        )[0]
        / noise
        for row in draw.train
    ]
    verdict = judge("", before.ravel(), np.ravel(left_out))
    kept = is_kept([verdict])
    found = calibrated(draw.train, data, settings)
    used = found if kept else _prior(draw.train[0], data, settings)
    after = _log_errors(draw.test, data, used.mean)
    half = NORMAL_QUANTILE * _spreads(draw.test, data, used, settings)
    start = _log_errors(draw.test, data, data.base[draw.train[0]])
    tables = [
        pd.DataFrame({
            "group": draw.group, "draw": str(draw.train), "figure": figure, "kept": kept,
            "model": data.model[draw.test], "before": np.abs(np.expm1(start[:, i])),
            "after": np.abs(np.expm1(after[:, i])), "covered": np.abs(after[:, i]) <= half[:, i],
            "width": 2 * np.sinh(half[:, i]),
        })
        for i, figure in enumerate(_FIGURES)
    ]  # fmt: skip
    return pd.concat(tables)


def summary(rows: pd.DataFrame) -> dict[str, float]:
    """Percentages over all draws' rows; a draw is worse by its mean error."""
    of_draw = rows.groupby(["group", "draw"])[["before", "after"]].mean()
    return {
        "before_median": 100 * rows["before"].median(),
        "before_mean": 100 * rows["before"].mean(),
        "after_median": 100 * rows["after"].median(),
        "after_mean": 100 * rows["after"].mean(),
        "worse_draws": 100 * float((of_draw["after"] - of_draw["before"] > 0.02).mean()),
        "covered": 100 * float(rows["covered"].mean()),
        "width": 100 * rows["width"].median(),
        "kept": 100 * float(rows.groupby(["group", "draw"])["kept"].first().mean()),
    }
