"""Scores of calibration on measured deployments: three rows per group are fitted, others scored.

A group is a model on a GPU with one number format, parallelism and engine version, and at least six
rows. A row is one measured load. The three rows for the fit have equal lengths and the
concurrencies nearest to 4, 16 and 64. They are sampled ten times if the group has enough rows. The
prior is predicted by the network trained without the model, with intervals from the errors on all
other models. The settings (spreads of the calibration factors, noise) are chosen for the best
intervals on the groups of other models. Batches are simulated with the network's own predictions.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from calibration_scores.left_out import LeftOut, read_left_out
from pinn.calibration import posterior
from pinn.calibration.calibrate import is_kept, judge, judge_likelihood
from pinn.calibration.prior import SCALAR_SPREADS, SCALARS, Prior, assumed_prior
from pinn.surrogate.uncertainty.quantiles import NORMAL_QUANTILE

_CONCURRENCIES = (4, 16, 64)
_LEAST_ROWS, _DRAWS, _SEED = 6, 10, 0
_GROUP = [
    "model", "gpu", "precision", "tensor_parallel_size", "enable_expert_parallel", "engine_version",
]  # fmt: skip

#: Candidate values of the calibration settings: relative standard deviation of a calibration
#: factor, noise of ITL, and noise of TTFT.
_SPREADS = (0.35, 0.5, 0.7, 1.0, 1.4)
_TIME_NOISES, _TTFT_NOISES = (0.01, 0.015, 0.02, 0.03, 0.045), (0.04, 0.06, 0.09, 0.13)
_GRIDS = (*[_SPREADS] * len(SCALARS), _TIME_NOISES, _TTFT_NOISES)

#: ``_START``: initial settings of the search. ``_LEAST_GAIN``: minimum relative improvement in a
#: round for the search to continue. ``_SEARCH_ROUNDS``: maximum number of rounds.
_START, _LEAST_GAIN, _SEARCH_ROUNDS = (*[0.5] * len(SCALARS), 0.03, 0.09), 1e-3, 4

#: Target share of measurements outside the intervals.
_BEYOND = 0.1

_FIGURES = ("tpot", "ttft")

Figures = Float[np.ndarray, "rows figures"]
#: Settings of a calibration: one value from each grid in ``_GRIDS``.
Settings = tuple[float, ...]


@dataclass(frozen=True)
class Draw:
    """Rows of a group to which a calibration is fitted, and the group's other rows, as indices."""

    group: int
    train: Int[np.ndarray, " three"]
    test: Int[np.ndarray, " others"]


#: Settings that ``pinn calibrate`` uses.
_IN_USE = (*SCALAR_SPREADS.values(), posterior.TIME_NOISE, posterior.TTFT_NOISE)


def score() -> tuple[pd.DataFrame, dict[str, float]]:
    """Return errors (%) by model before and after calibration, and interval coverage."""
    data = read_left_out()
    draws = list(all_draws(data))
    search = Search(data, draws)
    of_model = np.array([data.model[d.train[0]] for d in draws])
    print(f"{len({d.group for d in draws})} groups, {len(draws)} draws; in use: {words(_IN_USE)}")
    parts = []
    for model in np.unique(of_model):
        chosen = search.best(of_model != model)
        print(f"  chosen without {model!s}: {words(chosen)}")
        parts += [scored(draws[i], data, chosen) for i in np.flatnonzero(of_model == model)]
    print(f"  chosen on all: {words(search.best(np.ones(len(draws), bool)))}")
    rows = pd.concat(parts, ignore_index=True)
    table = pd.DataFrame(
        {"model": name, "figure": figure} | summary(part[part["figure"] == figure])
        for name, part in [("all", rows), *rows.groupby("model")]
        for figure in _FIGURES
    )
    return table, summary(rows[rows["figure"] == "tpot"])


def words(settings: Settings) -> str:
    """Return the settings of a calibration as text: spreads of factors, and noises."""
    spreads = ", ".join(f"{name} {spread:g}" for name, spread in _spreads(settings).items())
    return f"{spreads}; noise {settings[-2]:g} and {settings[-1]:g}"


def _spreads(settings: Settings) -> dict[str, float]:
    return dict(zip(SCALARS, settings, strict=False))


def all_draws(data: LeftOut) -> Iterator[Draw]:
    """Yield the samples of rows to which calibrations are fitted, for one group after another."""
    table = data.observations
    group = table.groupby(_GROUP, sort=False).ngroup().to_numpy()
    rng = np.random.default_rng(_SEED)
    for number in np.flatnonzero(np.bincount(group) >= _LEAST_ROWS):
        rows = np.flatnonzero(group == number)
        choices = [np.array(c) for c in _choices(table.iloc[rows], rows)]
        if len(choices) > _DRAWS:
            choices = [choices[i] for i in rng.choice(len(choices), _DRAWS, replace=False)]
        yield from (Draw(int(number), c, np.setdiff1d(rows, c)) for c in choices)


def _choices(table: pd.DataFrame, rows: np.ndarray) -> Iterator[tuple[int, ...]]:
    for _, part in table.assign(row=rows).groupby(["prompt_tokens", "output_tokens"]):
        left = dict(list(part.groupby("concurrency")["row"]))
        if len(left) < len(_CONCURRENCIES):
            continue
        nearest = []
        for wanted in _CONCURRENCIES:
            nearest.append(left.pop(min(left, key=lambda c: abs(np.log(c / wanted)))))
        yield from itertools.product(*nearest)


def calibrated(rows: np.ndarray, data: LeftOut, settings: Settings) -> posterior.Posterior:
    """Return the posterior of the coefficients after a fit to the given rows."""
    return posterior.fit_posterior(
        _prior(rows[0], data, settings),
        data.features[rows].reshape(2 * len(rows), -1),
        data.measured[rows].ravel(),
        np.tile(settings[-2:], len(rows)),
        data.offset[rows].ravel(),
    )


def _prior(row: int, data: LeftOut, settings: Settings) -> Prior:
    return assumed_prior(data.base[row], *data.doubts[row], _spreads(settings))


def _log_errors(
    rows: np.ndarray, data: LeftOut, found: Prior, settings: Settings
) -> tuple[Figures, Figures]:
    """Return the errors of rows' predicted TPOT and TTFT, and their standard deviations.

    Both are natural logarithms of ratios.
    """
    predicted = data.features[rows] @ found.mean + data.offset[rows]
    spread = found.spread(data.features[rows].reshape(2 * len(rows), -1)).reshape(len(rows), 2)
    return np.log(predicted / data.measured[rows]), np.hypot(spread, settings[-2:])


class Search:
    """Search for the calibration settings with the best 90 % intervals on evaluation rows.

    The criterion is the interval score (Gneiting and Raftery 2007): width of the interval + 2 / 0.1
    x distance of the measurement from the interval. The mean score is minimal for intervals that
    are as wide as the errors require. All groups have the same weight. TPOT and TTFT also have the
    same weight, since the logs of their mean scores are averaged.
    """

    def __init__(self, data: LeftOut, draws: list[Draw]) -> None:
        self.data, self.draws = data, draws
        self.group = np.array([d.group for d in draws])
        self._known: dict[Settings, Float[np.ndarray, "draws figures"]] = {}

    def best(self, use: Bool[np.ndarray, " draws"]) -> Settings:
        """Return the settings with the lowest interval score on the samples in ``use``.

        The search changes one setting at a time (coordinate search).
        """
        at, value = _START, self._value(_START, use)
        for _ in range(_SEARCH_ROUNDS):
            start = value
            for i, way in itertools.product(range(len(_GRIDS)), (-1, 1)):
                grid = _GRIDS[i][::way]
                for tried in grid[grid.index(at[i]) + 1 :]:
                    other = (*at[:i], tried, *at[i + 1 :])
                    found = self._value(other, use)
                    if found >= value:
                        break
                    at, value = other, found
            if start - value < _LEAST_GAIN:
                break
        return at

    def _value(self, settings: Settings, use: Bool[np.ndarray, " draws"]) -> float:
        if settings not in self._known:
            self._known[settings] = np.array([self._score(d, settings) for d in self.draws])
        of_draw, group = self._known[settings][use], self.group[use]
        of_group = [of_draw[group == g].mean(axis=0) for g in np.unique(group)]
        return float(np.log(np.mean(of_group, axis=0)).mean())

    def _score(self, draw: Draw, settings: Settings) -> Float[np.ndarray, " figures"]:
        found = calibrated(draw.train, self.data, settings)
        errors, spread = _log_errors(draw.test, self.data, found, settings)
        half = NORMAL_QUANTILE * spread
        beyond = np.maximum(np.abs(errors) - half, 0.0)
        return (2 * half + 2 / _BEYOND * beyond).mean(axis=0)


def scored(draw: Draw, data: LeftOut, settings: Settings) -> pd.DataFrame:
    """Return errors and intervals of a sample's evaluation rows, before and after calibration.

    The fit is used only if it improves the errors of rows that it was not fitted to.
    """
    prior = _prior(draw.train[0], data, settings)
    kept = _is_kept(draw, data, settings, prior)
    used = calibrated(draw.train, data, settings) if kept else prior
    before, _ = _log_errors(draw.test, data, prior, settings)
    after, spread = _log_errors(draw.test, data, used, settings)
    half = NORMAL_QUANTILE * spread
    return pd.DataFrame({
        "group": draw.group, "draw": str(draw.train), "kept": kept,
        "figure": np.repeat(_FIGURES, len(draw.test)), "model": np.tile(data.model[draw.test], 2),
        "before": np.abs(np.expm1(before.T.ravel())), "after": np.abs(np.expm1(after.T.ravel())),
        "covered": (np.abs(after) <= half).T.ravel(), "width": 2 * np.sinh(half.T.ravel()),
    })  # fmt: skip


def _is_kept(draw: Draw, data: LeftOut, settings: Settings, prior: Prior) -> bool:
    """Return whether fits to two of a sample's three rows improve the prediction of the third.

    ``pinn calibrate`` keeps a fit only under this condition.
    """
    alone = []
    for row in draw.train:
        found = calibrated(draw.train[draw.train != row], data, settings)
        alone.append(_log_errors(np.array([row]), data, found, settings))
    after, after_spread = np.concatenate(alone, axis=1)
    before, before_spread = _log_errors(draw.train, data, prior, settings)
    errors = [np.ravel(each / settings[-2:]) for each in (before, after)]
    both = map(np.ravel, (before, before_spread, after, after_spread))
    return is_kept([judge("", *errors), judge_likelihood("", *both)])


def summary(rows: pd.DataFrame) -> dict[str, float]:
    """Return scores over all samples by name, in percent."""
    of_draw = rows.groupby(["group", "draw"])[["before", "after", "kept"]].mean()
    shares = {
        f"{side}_{name}": rows[side].agg(name)
        for side in ("before", "after")
        for name in ("median", "mean")
    }
    shares["worse_draws"] = (of_draw["after"] - of_draw["before"] > 0.02).mean()
    shares["covered"] = rows["covered"].mean()
    shares["width"] = rows["width"].median()
    shares["kept"] = of_draw["kept"].mean()
    return {name: 100 * float(share) for name, share in shares.items()}
