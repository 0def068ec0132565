"""Purely statistical regressions of TPOT and TTFT, tuned by an inner cross-validation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from pinn.common.files import file_sha256
from pinn.errors import PinnError
from pinn.evaluation.formulas import hierarchical_basis, row_bases
from pinn.evaluation.methods import Method, Prediction, Predictor
from pinn.surrogate.featurizer import featurize
from pinn.training.serving_rows import ServingRows

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

#: Inputs of a regression, one row per measured row: a matrix for TPOT and a matrix for TTFT.
Inputs = tuple[Float[np.ndarray, "n inputs"], Float[np.ndarray, "n inputs"]]


@dataclass(frozen=True)
class Setting:
    """Hyperparameters and target of a regression.

    Attributes:
        parameters: Parameters of the scikit-learn estimator.
        log: Whether the target is the logarithm of TPOT or TTFT instead of the time.
        over_floor: Whether the target is the ratio of the time to its roofline lower bound instead
            of the time.
    """

    parameters: Mapping[str, object]
    log: bool = True
    over_floor: bool = False


_FOLDS = 3

#: Columns that describe a row's benchmark load.
_LOAD = ["concurrency", "prompt_tokens", "output_tokens"]

#: Settings of ridge and lasso, which differ in regularization strength. As in HFD-TL, the target is
#: the time itself, not its logarithm.
_LINEAR = [Setting({"alpha": alpha}, log=False) for alpha in np.logspace(-6, 0, 7).tolist()]


def _both(parameters: Iterable[Mapping[str, object]]) -> list[Setting]:
    """Return settings for two targets: log time, and log(time / roofline lower bound)."""
    return [Setting(each, over_floor=over) for each in parameters for over in (False, True)]


#: Candidate settings of gradient-boosted trees: maximum depth and number of trees.
_TREES = _both(
    {"max_depth": depth, "n_estimators": trees, "subsample": 0.7, "learning_rate": 0.05}
    for depth, trees in ((2, 150), (3, 300))
)
#: Candidate settings of the MLP regression, which differ in weight decay.
_MLP = _both(
    {"hidden_layer_sizes": (64, 64), "alpha": decay, "max_iter": 150} for decay in (1e-2, 1.0)
)


def tuned_regressions(observations: pd.DataFrame, seed: int) -> list[Method]:
    """Return regression methods: ridge and lasso on HFD-TL's basis functions, trees, and an MLP.

    Args:
        observations: Measured deployments.
        seed: Random seed.
    """
    decomposed = row_bases(observations, hierarchical_basis).of
    inputs = partial(everything, observations.set_index("row_id")[_LOAD])
    found = {
        "HFD-TL, ridge": _Regression("ridge", decomposed, _LINEAR, seed),
        "HFD-TL, lasso": _Regression("lasso", decomposed, _LINEAR, seed),
        "gradient-boosted trees": _Regression("trees", inputs, _TREES, seed),
        "plain MLP": _Regression("mlp", inputs, _MLP, seed),
    }
    code = file_sha256(Path(__file__))
    return [
        Method(
            name,
            one.learn,
            logs=name.replace(" ", "-").replace(",", ""),
            recipe=f"{one.kind} {one.settings} {seed} {code}",
        )
        for name, one in found.items()
    ]


@dataclass(frozen=True)
class _Regression:
    """Regression of TPOT and TTFT with scikit-learn.

    Attributes:
        kind: ``ridge``, ``lasso``, ``trees`` or ``mlp``.
        inputs: Function of rows that returns the inputs for TPOT and for TTFT.
        settings: Settings from which the inner cross-validation chooses.
        seed: Random seed.
    """

    kind: str
    inputs: Callable[[ServingRows], Inputs]
    settings: Sequence[Setting]
    seed: int

    def learn(self, train: ServingRows, *_: object) -> Predictor:
        """Choose the setting with the lowest inner TPOT error, and fit it to all training rows."""
        best = min(self.settings, key=lambda setting: self._inner_error(train, setting))
        return self._fit(train, best)

    def _inner_error(self, rows: ServingRows, setting: Setting) -> float:
        """Return a setting's median APE of TPOT on held-out rows, averaged over the inner folds."""
        errors = []
        for keep in inner_groups(rows):
            held_out = rows.take(~keep)
            tpot, _ = self._fit(rows.take(keep), setting)(held_out)
            errors.append(float(np.median(np.abs(tpot / held_out.tpot_s - 1))))
        return float(np.mean(errors))

    def _fit(self, train: ServingRows, setting: Setting) -> Predictor:
        tpot, ttft = self.inputs(train)
        of_tpot = self._fit_one(tpot, train.tpot_s, train.tpot_floor_s, train.weight, setting)
        of_ttft = self._fit_one(ttft, train.ttft_s, train.ttft_floor_s, train.weight, setting)

        def regression(rows: ServingRows) -> Prediction:
            tpot, ttft = self.inputs(rows)
            return of_tpot(tpot, rows.tpot_floor_s), of_ttft(ttft, rows.ttft_floor_s)

        return regression

    def _fit_one(
        self,
        matrix: np.ndarray,
        seconds: np.ndarray,
        floor: np.ndarray,
        weight: np.ndarray,
        setting: Setting,
    ) -> Callable[[np.ndarray, np.ndarray], Float[np.ndarray, " n"]]:
        """Return a function of (inputs, lower bounds) that predicts TPOT or TTFT in seconds.

        Predictions are at least the roofline lower bounds.
        """
        target = np.log(seconds / floor if setting.over_floor else seconds)
        if not setting.log:
            target = np.exp(target) * 1e3
            # Weights of 1 / target^2 make the fit minimize relative errors, as the other methods
            # do.
            weight = weight / target**2
        model = _estimator(self.kind, setting.parameters, self.seed)
        weights = {f"{model.steps[-1][0]}__sample_weight": weight} if self.kind != "mlp" else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The MLP warns when it reaches its iteration limit.
            model.fit(matrix, target, **weights)

        def learned(inputs: np.ndarray, floor: np.ndarray) -> np.ndarray:
            predicted = model.predict(inputs)
            ratio = np.exp(predicted) if setting.log else predicted / 1e3
            return np.maximum(ratio * floor if setting.over_floor else ratio, floor)

        return learned


def _estimator(kind: str, parameters: Mapping[str, object], seed: int) -> Pipeline:
    try:
        from sklearn.ensemble import GradientBoostingRegressor
        from sklearn.linear_model import Lasso, Ridge
        from sklearn.neural_network import MLPRegressor
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError as error:
        raise PinnError(
            "the regressions need scikit-learn, which is not installed: run 'pip install "
            "scikit-learn'"
        ) from error
    estimators = {
        "ridge": Ridge(),
        "lasso": Lasso(max_iter=20_000),
        "trees": GradientBoostingRegressor(random_state=seed),
        "mlp": MLPRegressor(random_state=seed),
    }
    return make_pipeline(StandardScaler(), estimators[kind].set_params(**parameters))


def inner_groups(rows: ServingRows) -> Iterator[Bool[np.ndarray, " n"]]:
    """Yield, for each inner fold, a mask of the rows to train on.

    An inner fold holds out one model or, if all rows are for the same model, one GPU.
    """
    models = np.array([d.model.name for d in rows.deployments])[rows.deployment]
    gpus = np.array([d.gpu.name for d in rows.deployments])[rows.deployment]
    groups = models if len(set(models)) > 1 else gpus
    names = sorted(set(groups), key=lambda name: (-int((groups == name).sum()), name))
    if len(names) < 2:
        raise PinnError(
            f"inner cross-validation needs rows of two models or two GPUs, got only {names[0]}"
        )
    folds = min(_FOLDS, len(names))
    for fold in range(folds):
        yield ~np.isin(groups, names[fold::folds])


def everything(loads: pd.DataFrame, rows: ServingRows) -> Inputs:
    """Return each row's regression inputs for TPOT and for TTFT.

    Inputs are the features of a row's deployment, its GPU's rates, its load, step features and
    roofline lower bounds. Loads, step features and bounds are given as logarithms. The inputs for
    TPOT and for TTFT differ in step features and bounds.

    Args:
        loads: Concurrency, prompt and output tokens, by row id.
        rows: Measured deployments whose inputs are returned.
    """
    free, rates = featurize(rows.deployments)
    load = np.log(loads.loc[list(rows.row_id)].to_numpy(np.float64))
    shared = [free[rows.deployment], rates[rows.deployment], load]
    pairs = ((rows.tpot_features, rows.tpot_floor_s), (rows.ttft_features, rows.ttft_floor_s))
    # Clip step features to 1e-6, because 0 has no logarithm.
    tpot, ttft = (
        np.concatenate([*shared, np.log(np.maximum(some, 1e-6)), np.log(floor)[:, None]], axis=1)
        for some, floor in pairs
    )
    return tpot, ttft
