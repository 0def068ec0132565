"""Teacher of the network: step times summed from kernels, and step coefficients (betas)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float
from scipy.linalg import block_diag
from scipy.optimize import nnls

from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.kernels.composition import COMPOSED_PARTS, compose_many
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.batch_sums import UniformBatches, sample_batches, uniform_sums
from pinn.physics.costs import step_costs
from pinn.surrogate.step_features import (
    GPU,
    HOST,
    LAUNCHING,
    STEP_FEATURES,
    Overhead,
    step_features,
)

# Calibration factors fitted to serving data: multipliers of kernel times, and overheads.
#
# A handful of measured models cannot identify how coefficients depend on a configuration. They can
# identify about a dozen factors shared by all configurations. Multipliers correct for the fact that
# kernels were measured in isolation but run in an engine. Overheads are the cost of unmeasured
# parts (norms, rotary embedding, host). Each factor has a log-normal prior.

#: Overheads per unit of a step feature, in addition to measured kernel times (from
#: ``STEP_FEATURES``), by feature.
OVERHEADS: dict[str, Overhead] = {
    name: feature.overhead for name, feature in STEP_FEATURES.items() if feature.overhead
}

#: Prior log standard deviation of kernel multipliers. Kernels were measured on one engine, so
#: multipliers are near 1. This value and the standard deviations of overheads were chosen by
#: holding out one model among the training models of every outer fold (LOG.md).
MULTIPLIER_SPREAD = 0.05
#: Prior log standard deviation of the sampling multiplier, an assumption: sampling was timed on
#: only one GPU, with PyTorch and without an engine.
SAMPLING_SPREAD = 0.15
#: Log standard deviation of each multiplier, in the order of ``COMPOSED_PARTS``.
MULTIPLIER_SPREADS = tuple(
    SAMPLING_SPREAD if name == "sampling" else MULTIPLIER_SPREAD for name in COMPOSED_PARTS
)


@dataclass(frozen=True)
class Scalars:
    """Calibration factors that turn measured kernel times into a step time.

    Attributes:
        multipliers: Factor of each operator, in the order of ``COMPOSED_PARTS``.
        overheads: Overhead of each step feature, seconds per unit, in the order of
            ``STEP_FEATURES``; 0 for features without one.
    """

    multipliers: Float[np.ndarray, " operators"]
    overheads: Float[np.ndarray, " features"]

    def step_seconds(
        self, parts: Float[np.ndarray, "*n operators"], features: Float[np.ndarray, "*n features"]
    ) -> Float[np.ndarray, "*n"]:
        """Return step times in seconds from kernels and overheads; launches overlap GPU work."""
        own = features * self.overheads
        gpu_s = parts @ self.multipliers + own[..., GPU].sum(-1)
        launching_s = own[..., LAUNCHING].sum(-1)
        return own[..., HOST].sum(-1) + np.maximum(launching_s, gpu_s)

    def betas(
        self, projected: Float[np.ndarray, "... operators features"]
    ) -> Float[np.ndarray, "... features"]:
        """Return step coefficients (betas): operators' betas times multipliers, plus overheads.

        Each beta is at least its lower bound.
        """
        betas = np.einsum("o,...of->...f", self.multipliers, projected) + self.overheads
        return np.maximum(betas, _BOUNDS)

    def to_json(self) -> dict[str, dict[str, float]]:
        """Return multipliers by operator, and overheads in seconds by step feature, as JSON."""
        overheads = zip(STEP_FEATURES, self.overheads.tolist(), strict=True)
        return {
            "multipliers": dict(zip(COMPOSED_PARTS, self.multipliers.tolist(), strict=True)),
            "overheads": {name: value for name, value in overheads if value},
        }


def saved_scalars(values: Mapping[str, Mapping[str, float]]) -> Scalars:
    """Return calibration factors from their JSON in a checkpoint's metadata.

    Raises:
        PinnError: If an operator is missing or a step feature unknown.
    """
    multipliers, overheads = values.get("multipliers", {}), values.get("overheads", {})
    if set(multipliers) != set(COMPOSED_PARTS) or not set(overheads) <= set(STEP_FEATURES):
        raise PinnError(
            f"the checkpoint has calibration factors of {sorted(multipliers)} and "
            f"{sorted(overheads)}, expected {', '.join(COMPOSED_PARTS)} and names "
            "of step features: train the checkpoint again with 'python train.py kernels=on'"
        )
    return Scalars(
        np.array([float(multipliers[name]) for name in COMPOSED_PARTS]),
        np.array([float(overheads.get(name, 0.0)) for name in STEP_FEATURES]),
    )


def prior_scalars() -> Scalars:
    """Return calibration factors at their priors, which are used without any serving data."""
    overheads = [OVERHEADS[n].prior if n in OVERHEADS else 0.0 for n in STEP_FEATURES]
    return Scalars(np.ones(len(COMPOSED_PARTS)), np.array(overheads))


# Groups of operators. Operators of different groups share no step feature, so that each group can
# be fitted separately.
#
# The time of a whole step does not show which features caused it. In a long prompt of a
# mixture-of-experts model, the time for moving experts' activations and the attention time both
# grow with the tokens. A network that confused these two parts had errors of 60 % on models in
# which one of them dominates (LOG.md).


def _joined() -> list[set[str]]:
    """Return the sets of operators that share step features, and two empty sets.

    The empty sets are for features without kernels.
    """
    groups = [{part} for part in COMPOSED_PARTS]
    for feature in STEP_FEATURES.values():
        shared = [group for group in groups if group & set(feature.explains)]
        if len(shared) > 1:
            groups = [group for group in groups if group not in shared] + [set.union(*shared)]
    return [*groups, set(), set()]


#: Names of the operators of each group, in the order of ``COMPOSED_PARTS``. The last two groups
#: have no kernels: launching, which overlaps all other groups, and the remaining overheads.
PART_GROUPS: tuple[tuple[str, ...], ...] = tuple(
    tuple(part for part in COMPOSED_PARTS if part in group) for group in _joined()
)


def _of_feature(explains: tuple[str, ...], part: str = "") -> int:
    found = [i for i, group in enumerate(PART_GROUPS) if set(group) & set(explains)]
    return found[0] if found else len(PART_GROUPS) - (2 if part == "launching" else 1)


#: Matrices of group membership: 1 if the step feature (first matrix) or operator (second matrix) of
#: a row belongs to the group of a column.
FEATURE_GROUPS: Float[np.ndarray, "features groups"] = np.eye(len(PART_GROUPS))[
    [_of_feature(feature.explains, feature.part) for feature in STEP_FEATURES.values()]
]
_OPERATOR_GROUPS: Float[np.ndarray, "operators groups"] = np.eye(len(PART_GROUPS))[
    [_of_feature((part,)) for part in COMPOSED_PARTS]
]


def group_seconds(
    scalars: Scalars,
    parts: Float[np.ndarray, "*n operators"],
    features: Float[np.ndarray, "*n features"],
) -> Float[np.ndarray, "*n groups"]:
    """Return the time of each of ``PART_GROUPS`` in each step, with overheads, in seconds.

    Args:
        scalars: Calibration factors.
        parts: Time in seconds of each operator, summed from kernels.
        features: Step features.
    """
    kernels = (parts * scalars.multipliers) @ _OPERATOR_GROUPS
    return kernels + (features * scalars.overheads) @ FEATURE_GROUPS


# Step coefficients (betas) for step times composed from kernels: the best-fitting non-negative
# coefficients.

#: Names of the step features that may explain an operator's time, by operator (type of kernels in a
#: step).
EXPLAINED_BY: dict[str, tuple[str, ...]] = {
    operator: tuple(name for name, f in STEP_FEATURES.items() if operator in f.explains)
    for operator in COMPOSED_PARTS
}

#: Weight of a whole step's error relative to the errors of its parts. With this weight, errors of
#: parts cancel in the sum; it reduced the step time error on batches outside the fit from 1.8 to
#: 1.4 % (LOG.md).
WHOLE_WEIGHT = 2.0

_NAMES = list(STEP_FEATURES)
_BOUNDS = np.array([f.lower_bound for f in STEP_FEATURES.values()])


def project(
    features: Float[np.ndarray, "n features"], parts: Float[np.ndarray, "n parts"]
) -> Float[np.ndarray, "parts features"]:
    """Fit step coefficients (betas) that explain the time of each part of a deployment's steps.

    Betas stay at or above their lower bounds, which keeps every step at or above its roofline lower
    bound. Errors are weighted by the inverse of the whole step's time, so a small part is not
    fitted at the expense of a large one. The betas of all parts are fitted jointly, because the
    error of their sum also counts.

    Args:
        features: Step features of ``n`` steps.
        parts: Time in seconds of each part of the steps.

    Returns:
        Betas of each part; their sum over parts gives the betas of the step.
    """
    if len(features) != len(parts):
        raise PinnError(
            f"features and parts must have as many steps as each other, got {len(features)} and "
            f"{len(parts)} steps"
        )
    scale = 1 / parts.sum(-1)
    occur = [(row, name) for row, name in enumerate(COMPOSED_PARTS) if parts[:, row].any()]
    columns = {row: _columns(operator, features) for row, operator in occur}
    bases = {row: features[:, mine] * scale[:, None] for row, mine in columns.items()}
    above_least = {row: parts[:, row] * scale - bases[row] @ _BOUNDS[columns[row]] for row in bases}
    whole = WHOLE_WEIGHT * np.concatenate([*bases.values()], axis=1)
    matrix = np.concatenate([block_diag(*bases.values()), whole])
    target = np.concatenate([*above_least.values(), WHOLE_WEIGHT * sum(above_least.values())])
    size = np.maximum(matrix.max(0), 1e-30)
    solution, _ = nnls(matrix / size, target)
    ends = np.cumsum([len(mine) for mine in columns.values()])
    betas = np.zeros((len(COMPOSED_PARTS), len(_NAMES)))
    above = np.split(solution / size, ends[:-1])
    for (row, mine), found in zip(columns.items(), above, strict=True):
        betas[row, mine] = _BOUNDS[mine] + found
    return betas


def _columns(operator: str, features: Float[np.ndarray, "n features"]) -> list[int]:
    """Return the indices of the step features that may explain an operator's time.

    Features that are 0 in all steps are omitted.
    """
    columns = [_NAMES.index(name) for name in EXPLAINED_BY[operator]]
    return [c for c in columns if features[:, c].any()]


# Teacher: composes step times from kernel times, scaled by calibration factors, and fits step
# coefficients (betas) to them.


def projected_parts(
    kernels: KernelSurrogates, deployments: Sequence[Deployment], seed: int = 0
) -> Float[np.ndarray, "n operators features"]:
    """Return the step coefficients (betas) that explain the time of each operator.

    The shape is ``[n, operators, features]``, for ``n`` deployments.
    """
    batches = [sample_batches(seed + i) for i in range(len(deployments))]
    parts = compose_many(kernels, deployments, batches)
    return np.array(list(map(project, features_of_batches(deployments, batches), parts)))


def features_of_batches(
    deployments: Sequence[Deployment], batches: Sequence[UniformBatches]
) -> Float[np.ndarray, "m n features"]:
    """Return step features of ``n`` batches of each of ``m`` deployments."""
    names = (f.name for f in fields(UniformBatches))
    of_all = {name: np.stack([getattr(of_one, name) for of_one in batches]) for name in names}
    pairs = zip(deployments, batches, strict=True)
    windows = np.array([[deployment.model.window_tokens or np.inf] for deployment, _ in pairs])
    sums = uniform_sums(**of_all, window=windows)
    return step_features(step_costs(deployments).reshape(-1, 1), sums)


@dataclass(frozen=True)
class Teacher:
    """Teacher of the network, which computes betas from kernels, slowly but accurately.

    Attributes:
        kernels: Surrogates of operators' times.
        scalars: Calibration factors, fitted to serving data.
    """

    kernels: KernelSurrogates
    scalars: Scalars

    def betas(self, deployments: Sequence[Deployment]) -> Float[np.ndarray, "n features"]:
        """Return the step coefficients (betas) of deployments, in seconds per feature unit."""
        return self.scalars.betas(projected_parts(self.kernels, deployments))
