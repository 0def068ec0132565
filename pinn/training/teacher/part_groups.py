"""Parts of a step that share no feature: what the network can be taught of each by itself.

A whole step does not say which feature its time belongs to: of a mixture's long prompt, experts
that move activations and attention that grows with its tokens look alike, and a network that had
them confused was 60 % off where a model has much of the one and little of the other (LOG.md).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from pinn.kernels.composition import COMPOSED_PARTS
from pinn.physics.step import STEP_FEATURES
from pinn.training.teacher.scalars import Scalars


def _joined() -> list[set[str]]:
    """Parts, those together that some feature explains both of; and a group that explains none."""
    groups = [{part} for part in COMPOSED_PARTS]
    for feature in STEP_FEATURES.values():
        shared = [group for group in groups if group & set(feature.explains)]
        if len(shared) > 1:
            groups = [group for group in groups if group not in shared] + [set.union(*shared)]
    return [*groups, set()]


#: Names of the parts of each group, in order of the registry; those of the last, which no kernel
#: explains, are overheads alone.
PART_GROUPS: tuple[tuple[str, ...], ...] = tuple(
    tuple(part for part in COMPOSED_PARTS if part in group) for group in _joined()
)


def _of_feature(explains: tuple[str, ...]) -> int:
    found = [i for i, group in enumerate(PART_GROUPS) if set(group) & set(explains)]
    return found[0] if found else len(PART_GROUPS) - 1


#: 1 where a feature, or a part, belongs to a group.
FEATURE_GROUPS: Float[np.ndarray, "features groups"] = np.eye(len(PART_GROUPS))[
    [_of_feature(feature.explains) for feature in STEP_FEATURES.values()]
]
_OPERATOR_GROUPS: Float[np.ndarray, "operators groups"] = np.eye(len(PART_GROUPS))[
    [_of_feature((part,)) for part in COMPOSED_PARTS]
]


def group_seconds(
    scalars: Scalars,
    parts: Float[np.ndarray, "*n operators"],
    features: Float[np.ndarray, "*n features"],
) -> Float[np.ndarray, "*n groups"]:
    """Seconds of each group of steps, overheads included; their sum is the step.

    Args:
        scalars: Multipliers and overheads.
        parts: Composed seconds of each part.
        features: Step features.
    """
    kernels = (parts * scalars.multipliers) @ _OPERATOR_GROUPS
    return kernels + (features * scalars.overheads) @ FEATURE_GROUPS
